"""One process ahead of each kind of program: the next one like it finds its pod ready and begins at once.

A fork and all that locks a process up take most of the time of a short program; they are done while others run.
"""

import contextlib

from verl_pivot.lane.loop import Loop
from verl_pivot.lane.pods import PodMaker, PodShape
from verl_pivot.lane.processes import Process
from verl_pivot.lane.zygotes import Zygote


class Spares:
    """At most one of each zygote, of the shape that was asked for twice in a row."""

    def __init__(self, loop: Loop, pods: PodMaker) -> None:
        self._loop = loop
        self._pods = pods
        self._spares: dict[Zygote, Process] = {}
        self._shapes: dict[Zygote, PodShape] = {}
        """Which was asked for last."""

    def take(self, zygote: Zygote, shape: PodShape) -> Process:
        """The first process of a pod of its own, from a zygote that is ready.

        Raises:
            OSError: If no process can be made.
        """
        spare = self._spares.pop(zygote, None)
        if spare is not None and (spare.has_ended or spare.pod.shape != shape):
            spare.discard()
            spare = None
        return spare or self._make(zygote, shape)

    def prepare(self, zygote: Zygote, shape: PodShape) -> None:
        """The next one, after one of this shape was taken and has its task."""
        is_usual = self._shapes.get(zygote) == shape
        self._shapes[zygote] = shape
        if is_usual and zygote not in self._spares and zygote.is_ready:
            with contextlib.suppress(OSError):  # whoever needs a process will hear that there is none
                self._spares[zygote] = self._make(zygote, shape)

    def _make(self, zygote: Zygote, shape: PodShape) -> Process:
        return Process(self._loop, zygote, self._pods.make(shape))
