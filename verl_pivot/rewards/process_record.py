"""ProcessRecord: the judge's scores and the rewards of a trajectory's turns, as one text in verl's rows."""

from collections.abc import Mapping
from typing import Any

import msgspec

PROCESS_FIELD = "process"
"""Key of `reward_extra_info` that holds the record as JSON; "" for a trajectory that was not judged.

The record is a text, since verl's validation takes the mean of every value that is no text.
"""


class ProcessRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Rewards of one trajectory's turns, and the judge's scores that they come from.

    Example:
        ProcessRecord(rewards=(-0.25, 0.0), scores=(0.75,), num_asked=1)
    """

    rewards: tuple[float, ...]
    """[num_turns] rewards, the last one with the outcome."""
    scores: tuple[float | None, ...]
    """[num_turns - 1] the judge's scores of the turns before the last; None where it gave no valid answer."""
    checklist: tuple[str, ...] = ()
    """Items by which the turns were judged; empty with principles, or if the judge wrote no valid checklist."""
    reasons: tuple[str, ...] = ()
    """Reasons why answers were invalid, in the order of the turns."""
    num_asked: int = 0
    """Number of the judge's answers about turns, those to repeated questions included."""
    num_cached: int = 0
    """Number of answers, those that write a checklist included, for which this trajectory sent no request: they came
    from the cache, or an equal question of another trajectory had asked for them."""
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    """Tokens of all other answers, as the judge's server counts them."""
    seconds: float = 0.0
    """Seconds from the end of the trajectory to the last answer."""

    def as_text(self) -> str:
        return msgspec.json.encode(self).decode()


def process_record(reward_info: Mapping[str, Any]) -> ProcessRecord | None:
    """The record in a row's `reward_extra_info`; None for a trajectory that was not judged."""
    text = reward_info.get(PROCESS_FIELD)
    return msgspec.json.decode(text, type=ProcessRecord) if text else None
