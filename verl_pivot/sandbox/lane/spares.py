"""Spare processes, forked and confined ahead of time: the next program of the same kind starts at once.

The fork and the confinement take longer than a short program runs. With spares, both are done while other programs run.
"""

import contextlib
from functools import partial

from verl_pivot.sandbox.lane.event_loop import EventLoop
from verl_pivot.sandbox.lane.pod_process import PodProcess
from verl_pivot.sandbox.lane.pods import PodMaker, PodShape
from verl_pivot.sandbox.lane.zygote_handle import ZygoteHandle

_REFILL_SECONDS = 0.005
"""Seconds of pause before a further spare is made, so that requests that have come are served first."""


class Spares:
    """Spare processes of each zygote, in pods of its usual shape; one process, unless `keep` sets another number.

    A shape becomes the usual one when it is asked for twice in a row.
    """

    def __init__(self, loop: EventLoop, pods: PodMaker) -> None:
        self._loop = loop
        self._pods = pods
        self._spares: dict[ZygoteHandle, list[PodProcess]] = {}
        self._shapes: dict[ZygoteHandle, PodShape] = {}
        """Shape that was asked for last."""
        self._usual: dict[ZygoteHandle, PodShape] = {}
        """Shape of the spares that are made."""
        self._num_kept: dict[ZygoteHandle, int] = {}
        self._refilling: set[ZygoteHandle] = set()
        """Zygotes for which a further refill is scheduled."""

    def keep(self, zygote: ZygoteHandle, shape: PodShape, *, num_kept: int) -> None:
        """Keep `num_kept` spares of a zygote from now on, of this shape until another becomes the usual one."""
        self._num_kept[zygote] = num_kept
        self._usual[zygote] = shape
        self.refill(zygote)

    def take(self, zygote: ZygoteHandle, shape: PodShape) -> PodProcess:
        """The first process of a new pod, forked by a zygote that is ready.

        Raises:
            OSError: If no process can be made.
        """
        spares = self._living(zygote)
        fitting = next((spare for spare in spares if spare.pod.shape == shape), None)
        if fitting is None:
            fitting = self._make(zygote, shape)
        else:
            spares.remove(fitting)
            fitting.was_ahead = True
        try:
            fitting.pod.open_door()
        except OSError:
            fitting.discard()
            raise
        return fitting

    def prepare(self, zygote: ZygoteHandle, shape: PodShape) -> None:
        """Make the next spare; to be called after a process of this shape was taken and has its task."""
        if self._shapes.get(zygote) == shape:
            self._usual[zygote] = shape
        self._shapes[zygote] = shape
        self.refill(zygote)

    def refill(self, zygote: ZygoteHandle) -> None:
        """Make one spare if any is missing, and the others soon."""
        self._refilling.discard(zygote)
        shape = self._usual.get(zygote)
        if shape is None or not zygote.is_ready:
            return
        spares = self._living(zygote)
        for spare in [spare for spare in spares if spare.pod.shape != shape]:
            spares.remove(spare)
            spare.discard()
        num_missing = self._num_kept.get(zygote, 1) - len(spares)
        if num_missing > 0:
            with contextlib.suppress(OSError):  # the next `take` reports that no process can be made
                spares.append(self._make(zygote, shape))
        if num_missing > 1 and zygote not in self._refilling:
            self._refilling.add(zygote)
            self._loop.after(_REFILL_SECONDS, partial(self.refill, zygote))

    def _living(self, zygote: ZygoteHandle) -> list[PodProcess]:
        """Spares of a zygote, without those that have ended."""
        spares = self._spares.setdefault(zygote, [])
        for spare in [spare for spare in spares if spare.has_ended]:
            spares.remove(spare)
            spare.discard()
        return spares

    def _make(self, zygote: ZygoteHandle, shape: PodShape) -> PodProcess:
        return PodProcess(self._loop, zygote, self._pods.make(shape, shared_bytes=zygote.resident_bytes))
