"""This machine -> programs that one lane may run at once, and bytes of memory for all of them."""

import os
import resource

from verl_pivot.sandbox.bubblewrap.group_tree import memory_limits

_NUM_SLOTS_PER_LANE = 512
_FDS_OF_LANE, _FDS_OF_PROGRAM = 224, 10
"""Descriptors that a lane has open for itself and its zygotes, and at most for each program that runs."""


def num_slots_of_lane() -> int:
    """Programs that one lane may run at once: their descriptors fit into the hard limit on open files."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, min(_NUM_SLOTS_PER_LANE, (most - _FDS_OF_LANE) // _FDS_OF_PROGRAM))


def memory_of_machine() -> int:
    """Bytes of memory of this machine, or of the container or the job that this process runs in."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min((physical, *memory_limits()))
