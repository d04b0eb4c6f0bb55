"""Nodes that a launch reserved for itself -> an error if one is lost while the trainer waits for rollouts.

verl hands prompts to its agent loops and waits for their rollouts, without an end where a node took them along.
"""

import time
from collections.abc import Callable, Mapping

import ray
from ray.util import placement_group_table

from verl_pivot.errors import NodeLostError

_SECONDS = 10.0
"""Time between two looks at the cluster."""

Places = Mapping[str, Mapping[int, str]]
"""{placement group: {bundle: its node}}"""


def reserved_places() -> Places:
    """The placement groups of this launch, of which other launches of the cluster have their own; empty without Ray."""
    if not ray.is_initialized():
        return {}
    launch = ray.get_runtime_context().get_job_id()  # with which the names of its placement groups end
    groups = placement_group_table()
    return {name: dict(group["bundles_to_node_id"]) for name, group in groups.items() if name.endswith(launch)}


class LostNodes:
    """Compares where the placement groups of a launch are with where they were; Ray moves those of a lost node."""

    def __init__(self, places: Callable[[], Places] = reserved_places, seconds: float = _SECONDS) -> None:
        self._places, self._seconds = places, seconds
        self._known: dict[str, Mapping[int, str]] = {}
        self._next = 0.0

    def check(self) -> None:
        """Look at the cluster, if the last look was some time ago.

        Raises:
            NodeLostError: Naming the node.
        """
        if time.monotonic() >= self._next:
            self.look()

    def look(self) -> None:
        """Look at the cluster.

        Raises:
            NodeLostError: Naming the node.
        """
        self._next = time.monotonic() + self._seconds
        for group, nodes in self._places().items():  # a bundle that waits for its node has an empty name
            known = self._known.setdefault(group, nodes)
            lost = {node for bundle, node in known.items() if node and nodes.get(bundle) != node}
            if lost:
                raise NodeLostError(
                    f"node {min(lost)} of the cluster was lost with the workers that ran on it: once there are as many "
                    "GPUs as before, start the same command again; with trainer.save_freq and "
                    "trainer.resume_mode=auto it goes on from its last checkpoint"
                )
