"""Causes that lie in a row or in the user's code, as verdicts, and the row that they name.

Such a cause would end every rollout of a run in the same way. The rollout is undecided with one of these reasons, and
the replay buffer stops the first step of a launch with its sentence; in later steps the rollout is masked and counted.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any

from verl_pivot.errors import ConfigError, DataError, PivotError, ToolBugError, UserCodeError
from verl_pivot.types import Verdict
from verl_pivot.user_code import described

MAX_SENTENCE = 1000
"""Characters of a cause that are kept."""
SYSTEM_FAILURE = "system_failure"
"""Reason for a rollout that a system outside of row and code ended: an engine, a sandbox, a file system."""
_MAX_QUOTED = 60


class FaultReason(StrEnum):
    """Reason of an undecided verdict whose cause the user can mend."""

    BROKEN_ROW = "broken_row"
    USER_CODE_FAILED = "user_code_failed"
    """A verifier, environment, tool or reward function raised or returned what it must not."""
    ROLLOUT_FAILED = "rollout_failed"
    """The agent loop raised."""


def fault_verdict(error: Exception) -> Verdict:
    """Undecided verdict with the cause as its detail."""
    if isinstance(error, UserCodeError | ToolBugError):
        return Verdict.undecided(FaultReason.USER_CODE_FAILED, str(error)[:MAX_SENTENCE])
    if isinstance(error, DataError | ConfigError):
        return Verdict.undecided(FaultReason.BROKEN_ROW, str(error)[:MAX_SENTENCE])
    cause = str(error) if isinstance(error, PivotError) else described(error)
    reason = SYSTEM_FAILURE if isinstance(error, PivotError | OSError) else FaultReason.ROLLOUT_FAILED
    return Verdict.undecided(reason, cause[:MAX_SENTENCE])


def with_row_name(verdict: Verdict, row: Mapping[str, Any]) -> Verdict:
    """The verdict with the name of its row before the cause, if it is the verdict of a fault.

    Args:
        verdict: Any verdict.
        row: Columns of the rollout's row.
    """
    name = row_name(row)
    if verdict.reason not in set(FaultReason) or name in verdict.detail:
        return verdict
    return replace(verdict, detail=f"{name}: {verdict.detail}")


def row_name(row: Mapping[str, Any]) -> str:
    """What a person finds a row by: its turn, its `extra_info.index`, or else how its prompt ends."""
    if row.get("trajectory_id") is not None and row.get("turn_index") is not None:
        return f"turn {row['trajectory_id']}:{row['turn_index']}"
    extra_info = row.get("extra_info")
    if isinstance(extra_info, Mapping) and extra_info.get("index") is not None:
        return f"row with extra_info.index {extra_info['index']}"
    prompt = row.get("raw_prompt")
    if prompt is None or not len(prompt):
        return "a row"
    return f"row whose prompt ends with {str(prompt[-1].get('content'))[-_MAX_QUOTED:]!r}"


def fault_of(rewards: Iterable[Mapping[str, Any]]) -> str | None:
    """The most frequent cause among the `reward_extra_info` of rollouts, with its share; None if there is none.

    Args:
        rewards: [num_rollouts] what the reward manager wrote.
    """
    details: Counter[str] = Counter()
    num_faults = num_rollouts = 0
    for reward in rewards:
        num_rollouts += 1
        if reward.get("reason") in set(FaultReason):
            num_faults += 1
            details[str(reward.get("detail", ""))] += 1
    if not details:
        return None
    return f"{details.most_common(1)[0][0]} ({num_faults} of {num_rollouts} rollouts so far fail like this)"
