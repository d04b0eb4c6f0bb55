"""Nodes that a launch reserved for itself -> an error if one is lost while the trainer waits for rollouts.

verl hands prompts to its agent loops and waits for their rollouts. If a node is lost with some of them, it waits
forever.
"""

import time
from collections.abc import Callable, Mapping

import ray
from ray.util import placement_group_table

from verl_pivot.errors import NodeLostError

_SECONDS = 10.0
"""Seconds between two checks of the cluster."""

Places = Mapping[str, Mapping[int, str]]
"""{placement group: {bundle: its node}}"""


def reserved_places() -> Places:
    """Places of this launch's placement groups, without those of other launches on the cluster; empty without Ray."""
    if not ray.is_initialized():
        return {}
    launch = ray.get_runtime_context().get_job_id()  # the names of its placement groups end with this id
    groups = placement_group_table()
    return {name: dict(group["bundles_to_node_id"]) for name, group in groups.items() if name.endswith(launch)}


class LostNodes:
    """Compares the places of a launch's placement groups with earlier ones, since Ray moves those of a lost node."""

    def __init__(self, places: Callable[[], Places] = reserved_places, seconds: float = _SECONDS) -> None:
        self._places, self._seconds = places, seconds
        self._known: dict[str, Mapping[int, str]] = {}
        self._next = 0.0

    def check(self) -> None:
        """Check the cluster, if the last check was at least `seconds` ago.

        Raises:
            NodeLostError: Naming the node.
        """
        if time.monotonic() >= self._next:
            self.look()

    def look(self) -> None:
        """Check the cluster now.

        Raises:
            NodeLostError: Naming the node.
        """
        self._next = time.monotonic() + self._seconds
        for group, nodes in self._places().items():  # a bundle that waits for a node has an empty node name
            known = self._known.setdefault(group, nodes)
            lost = {node for bundle, node in known.items() if node and nodes.get(bundle) != node}
            if lost:
                raise NodeLostError(
                    f"node {min(lost)} of the cluster was lost with the workers that ran on it: once there are as many "
                    "GPUs as before, start the same command again; with trainer.save_freq and trainer.resume_mode=auto "
                    "it continues from its last checkpoint"
                )
