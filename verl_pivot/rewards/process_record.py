"""ProcessRecord: what the judge said of a trajectory's turns and what they were paid, as one text in verl's rows."""

from collections.abc import Mapping
from typing import Any

import msgspec

PROCESS_FIELD = "process"
"""Key of `reward_extra_info` that holds the record as JSON; "" for a trajectory that was not judged.

A text, since verl's validation takes the mean of every value that is no text.
"""


class ProcessRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Rewards of one trajectory's turns, and what they come from.

    Example:
        ProcessRecord(rewards=(-0.25, 0.0), scores=(0.75,), num_asked=1)
    """

    rewards: tuple[float, ...]
    """[num_turns] rewards, the last one with the outcome."""
    scores: tuple[float | None, ...]
    """[num_turns - 1] the judge's scores of the turns before the last; None where it gave no valid answer."""
    checklist: tuple[str, ...] = ()
    """Items by which the turns were judged; empty with principles, and if the judge wrote none that count."""
    reasons: tuple[str, ...] = ()
    """Why answers were invalid, in the order of their turns."""
    num_asked: int = 0
    """Answers of the judge, repeated questions included."""
    num_cached: int = 0
    """Answers among these that an earlier process had got."""
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    """Tokens of the answers that are not cached, as the judge's server counts them."""
    seconds: float = 0.0
    """Seconds from the end of the trajectory to the last answer."""

    def as_text(self) -> str:
        return msgspec.json.encode(self).decode()


def process_record(reward_info: Mapping[str, Any]) -> ProcessRecord | None:
    """The record in a row's `reward_extra_info`; None for a trajectory that was not judged."""
    text = reward_info.get(PROCESS_FIELD)
    return msgspec.json.decode(text, type=ProcessRecord) if text else None
