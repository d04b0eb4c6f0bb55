"""Spare processes, forked and confined ahead of time: the next program of the same kind starts at once.

A short program takes less time than the fork and the confinement before it, which spares do while other programs run.
"""

import contextlib

from verl_pivot.sandbox.lane.event_loop import EventLoop
from verl_pivot.sandbox.lane.pod_process import PodProcess
from verl_pivot.sandbox.lane.pods import PodMaker, PodShape
from verl_pivot.sandbox.lane.zygote_handle import ZygoteHandle


class Spares:
    """At most one spare process for each zygote, in a pod of the shape that was asked for twice in a row."""

    def __init__(self, loop: EventLoop, pods: PodMaker) -> None:
        self._loop = loop
        self._pods = pods
        self._spares: dict[ZygoteHandle, PodProcess] = {}
        self._shapes: dict[ZygoteHandle, PodShape] = {}
        """Shape that was asked for last."""

    def take(self, zygote: ZygoteHandle, shape: PodShape) -> PodProcess:
        """The first process of a new pod, forked by a zygote that is ready.

        Raises:
            OSError: If no process can be made.
        """
        spare = self._spares.pop(zygote, None)
        if spare is not None and (spare.has_ended or spare.pod.shape != shape):
            spare.discard()
            spare = None
        return spare or self._make(zygote, shape)

    def prepare(self, zygote: ZygoteHandle, shape: PodShape) -> None:
        """Make the next spare; to be called after a process of this shape was taken and has its task."""
        is_usual = self._shapes.get(zygote) == shape
        self._shapes[zygote] = shape
        if is_usual and zygote not in self._spares and zygote.is_ready:
            with contextlib.suppress(OSError):  # the next `take` reports that no process can be made
                self._spares[zygote] = self._make(zygote, shape)

    def _make(self, zygote: ZygoteHandle, shape: PodShape) -> PodProcess:
        return PodProcess(self._loop, zygote, self._pods.make(shape, shared_bytes=zygote.resident_bytes))
