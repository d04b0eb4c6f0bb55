"""This machine -> programs that one lane may run at once, and bytes of memory for all of them."""

import os
import resource

from verl_pivot.errors import ConfigError
from verl_pivot.sandbox.bubblewrap.group_tree import memory_limits

_NUM_SLOTS_PER_LANE = 512
_FDS_OF_LANE, _FDS_OF_PROGRAM = 224, 10
"""File descriptors that a lane needs for itself and its zygotes, and at most for each running program."""


def num_slots_of_lane(num_prewarmed: int) -> int:
    """Programs that one lane may run at once: their descriptors fit into the hard limit on open files.

    Raises:
        ConfigError: If `num_prewarmed` interpreters, each of which takes a slot, would leave less than half of them.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_slots = max(1, min(_NUM_SLOTS_PER_LANE, (most - _FDS_OF_LANE) // _FDS_OF_PROGRAM))
    if num_prewarmed > num_slots // 2:
        raise ConfigError(
            f"session.prewarm: {num_prewarmed} interpreters of each lane would take more than half of its {num_slots} "
            f"slots; lower it, or raise the limit on open files, which is {most}"
        )
    return num_slots - num_prewarmed


def memory_of_machine() -> int:
    """Bytes of memory of this machine, or of the container or the job that this process runs in."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min((physical, *memory_limits()))
