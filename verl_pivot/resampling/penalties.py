"""One rollout's record -> its penalty: how clean a success was (GRPO-RoC's p_err + p_format)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_pivot.tools.calls import CallStatus
from verl_pivot.tools.contract import ErrorKind

_NO_ACTION, _TOOL_ERROR = ErrorKind.NO_ACTION.value, CallStatus.TOOL_ERROR.value
NO_CALLS = 0.5
"""p_err of a rollout that called no tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalty:
    """Of one rollout; lower is cleaner.

    Example:
        Penalty(num_calls=4, num_errors=1, num_answers=1, num_turns=5).total == 0.25
    """

    num_calls: int
    num_errors: int
    """Calls that the policy got wrong; those that the system broke mask the rollout."""
    num_answers: int | None
    """Answers between tags; 0 also where tags are unmatched, None where no tag is asked for."""
    num_turns: int
    """Of the policy."""

    @property
    def error(self) -> float:
        """p_err: the share of calls that failed (rStar2-Agent, arXiv:2508.20722, section 2.2.3)."""
        return self.num_errors / self.num_calls if self.num_calls else NO_CALLS

    @property
    def format(self) -> float:
        """p_format: 1 without an answer, else surplus answers per turn, at most 1 (the same section).

        Turns are all of the policy's; the released code misses the first, whose header stands in the prompt.
        """
        if self.num_answers is None:
            return 0.0
        return 1.0 if self.num_answers == 0 else min(1.0, (self.num_answers - 1) / self.num_turns)

    @property
    def total(self) -> float:
        """p_total."""
        return self.error + self.format


def penalty_of_record(record: Mapping[str, Any]) -> Penalty:
    """Read the tool loop's record (`RolloutRecord.as_dict`).

    A turn with neither call nor answer is in the record as an error, but is no call.
    """
    calls = [call["status"] for call in record["calls"] if call["error_kind"] != _NO_ACTION]
    return Penalty(
        num_calls=len(calls),
        num_errors=calls.count(_TOOL_ERROR),
        num_answers=record["num_answers"],
        num_turns=len(record["turn_tokens"]),
    )
