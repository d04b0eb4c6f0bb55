"""Wall limit -> deadline of a call by default: what a limit ends has a result first, also on a busy machine."""

import math

from verl_pivot.sandbox.lane.core_time import granted_seconds

DEADLINE_SECONDS = 120.0
"""Seconds for a call with its queues and retries, whose program or cell takes at most _OWN_SECONDS."""
_OWN_SECONDS = 60.0


def deadline_for(wall_seconds: float, deadline_seconds: float = DEADLINE_SECONDS) -> float:
    """Deadline of a call with this wall limit, in seconds from now.

    Args:
        wall_seconds: Wall limit of its program or cell, which also gets the time that it waits for a core.
        deadline_seconds: Deadline for a limit of 10 s or less.
    """
    longest_seconds = wall_seconds + granted_seconds(math.inf, wall_seconds)
    return deadline_seconds + max(0.0, longest_seconds - _OWN_SECONDS)
