"""Record of one rollout -> its Penalty: how clean a success was (p_err + p_format of GRPO-RoC)."""

from dataclasses import dataclass

from verl_pivot.data.rollout_records import CallStatus, RolloutRecord
from verl_pivot.types import ErrorKind

NO_CALLS = 0.5
"""p_err of a rollout without any call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalty:
    """What the penalty of one rollout is made of; lower is cleaner.

    Example:
        Penalty(num_calls=4, num_errors=1, num_answers=1, num_turns=5).total == 0.25
    """

    num_calls: int
    num_errors: int
    """Calls that the policy got wrong. Calls that the system broke do not occur: their rollout is masked."""
    num_answers: int | None
    """Answers between format tags, 0 if tags are unmatched; None if no format tag is configured."""
    num_turns: int
    """Turns of the policy."""

    @property
    def error(self) -> float:
        """p_err: the share of calls that failed (rStar2-Agent, arXiv:2508.20722, section 2.2.3)."""
        return self.num_errors / self.num_calls if self.num_calls else NO_CALLS

    @property
    def format(self) -> float:
        """p_format: 1 without an answer, else surplus answers per turn, at most 1 (the same section).

        All turns of the policy count; the released code misses the first, whose header stands in the prompt.
        """
        if self.num_answers is None:
            return 0.0
        return 1.0 if self.num_answers == 0 else min(1.0, (self.num_answers - 1) / self.num_turns)

    @property
    def total(self) -> float:
        """p_total = p_err + p_format."""
        return self.error + self.format


def penalty_of_record(record: RolloutRecord) -> Penalty:
    """The penalty of a rollout; a turn with neither call nor answer is in its record as an error, but is no call."""
    statuses = [call.status for call in record.calls if call.error_kind is not ErrorKind.NO_ACTION]
    return Penalty(
        num_calls=len(statuses),
        num_errors=statuses.count(CallStatus.TOOL_ERROR),
        num_answers=record.num_answers,
        num_turns=len(record.turn_tokens),
    )
