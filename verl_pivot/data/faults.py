"""Errors in a row or in the user's code -> undecided verdicts that say the cause and name the row.

Such an error would end every rollout of a run in the same way. In the first step of a launch, the replay buffer
therefore stops the launch with the cause as its message. In later steps the rollout is masked and counted.
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
"""Maximum number of characters of a cause; the rest is cut."""
SYSTEM_FAILURE = "system_failure"
"""Reason of a rollout that a system failure ended, such as that of an engine, a sandbox or a file system."""
_MAX_QUOTED = 60


class FaultReason(StrEnum):
    """Reason of an undecided verdict whose cause the user can fix."""

    BROKEN_ROW = "broken_row"
    USER_CODE_FAILED = "user_code_failed"
    """A verifier, environment, tool or reward function raised an error or returned a value that is not allowed."""
    ROLLOUT_FAILED = "rollout_failed"
    """The agent loop raised an error."""


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
    """Text by which a person finds the row: its turn, its `extra_info.index`, or else the end of its prompt."""
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
        rewards: [num_rollouts] `reward_extra_info` that the reward manager wrote.
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
    return f"{details.most_common(1)[0][0]} ({num_faults} of {num_rollouts} rollouts so far have a fault)"
