"""Record of one rollout -> its Penalty: the p_err + p_format of GRPO-RoC, by which clean successes are preferred."""

from collections.abc import Sequence
from dataclasses import dataclass

from verl_pivot.data.rollout_records import RolloutRecord
from verl_pivot.resampling.settings import ResamplingMode

NO_CALLS = 0.5
"""p_err of a rollout without any call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalty:
    """Penalty of one rollout, and the counts that it is computed from; a cleaner rollout has a lower one.

    Example:
        Penalty(num_calls=4, num_errors=1, num_answers=1, num_turns=5).total == 0.25
    """

    num_calls: int
    num_errors: int
    """Calls that failed through the policy's fault. No others failed: a failure of the system masks the rollout."""
    num_answers: int | None
    """Answers between format tags; 0 if a tag is unmatched, None if no format tag is configured."""
    num_turns: int
    """Turns of the policy that count for p_format."""

    @property
    def error(self) -> float:
        """p_err: the share of calls that failed (rStar2-Agent, arXiv:2508.20722, section 2.2.3)."""
        return self.num_errors / self.num_calls if self.num_calls else NO_CALLS

    @property
    def format(self) -> float:
        """p_format: 1 without an answer or without a turn that counts, else surplus answers per turn, at most 1.

        Source: the same section.
        """
        if self.num_answers is None:
            return 0.0
        if self.num_answers == 0 or self.num_turns == 0:
            return 1.0
        return min(1.0, (self.num_answers - 1) / self.num_turns)

    @property
    def total(self) -> float:
        """p_total = p_err + p_format."""
        return self.error + self.format


def no_success_answers(successes: Sequence[Penalty]) -> bool:
    """Whether p_format is 1 for each of several successes because none has an answer between format tags.

    Their weights 1 / (p_err + p_format) then differ by a factor of 2 at most, and the rule of the paper hardly prefers
    clean successes.
    """
    return bool(successes) and all(penalty.num_answers == 0 for penalty in successes)


def penalty_of_record(record: RolloutRecord, mode: ResamplingMode = "paper") -> Penalty:
    """The penalty of a rollout. Entries of its record for turns with neither a call nor an answer do not count.

    Args:
        record: The rollout's record.
        mode: "released" does not count the policy's first turn, as microsoft/rStar does, so that p_format is 1 for an
            answer without any call (`rstar2_agent/down_sample/roc.py` looks for headers of turns in the response, and
            the first header is in the prompt). The others count all turns.
    """
    return Penalty(
        num_calls=record.num_calls,
        num_errors=record.num_tool_errors,
        num_answers=record.num_answers,
        num_turns=len(record.turn_tokens) - (mode == "released"),
    )


def penalty_of_steps(num_steps: int, num_failed: int) -> Penalty:
    """The penalty of a trajectory in a notebook, whose format has a reward of its own and no penalty.

    Args:
        num_steps: Steps of the policy, each with a cell.
        num_failed: Steps whose cell failed.
    """
    return Penalty(num_calls=num_steps, num_errors=num_failed, num_answers=None, num_turns=num_steps)
