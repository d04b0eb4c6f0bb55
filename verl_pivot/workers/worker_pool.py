"""Tasks -> results of workers on many nodes that may join or fail at any time: turns of a profile, or items."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from cachetools import LRUCache

from verl_pivot.errors import EngineError

TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")
TaskT_contra = TypeVar("TaskT_contra", contravariant=True)
ResultT_co = TypeVar("ResultT_co", covariant=True)

CHECK_SECONDS = 2.0
"""Seconds between two checks of which nodes the cluster has."""
MAX_ATTEMPTS = 3
"""Attempts at one task; a further attempt is made only if the task's worker was lost."""
MAX_FAILURES = 3
"""Workers that a slot may lose in a row, with no task finished between, before it is given up."""
NUM_ASSIGNMENTS = 10_000
"""Groups of tasks whose worker is remembered."""
PATIENCE_SECONDS = 600.0
"""Seconds to wait for a node to join when none is left."""


class WorkerLostError(EngineError):
    """A worker has died, and the tasks that it was working on must be done again."""


class Slot(NamedTuple):
    """Room for one worker on a node."""

    node_id: str
    number: int
    """Number among the slots of the node, from 0."""


class Worker(Protocol[TaskT_contra, ResultT_co]):
    """Worker process on some node."""

    async def start(self) -> None:
        """Wait until the worker can take tasks.

        Raises:
            WorkerLostError: If another attempt may help.
            PivotError: If the fault is in the settings.
        """
        ...

    async def work(self, task: TaskT_contra) -> ResultT_co:
        """Do one task.

        Raises:
            WorkerLostError: If another attempt may help.
            PivotError: If the fault is in the task or the settings.
        """
        ...

    async def end(self) -> None:
        """Let the worker end its server if it still answers, then kill it."""
        ...

    def kill(self) -> None: ...


class WorkerCluster(Protocol[TaskT_contra, ResultT_co]):
    """The nodes on which workers run."""

    async def slots(self) -> Mapping[Slot, str]:
        """{slot: address of its node} of every node that is alive."""
        ...

    def make(self, slot: Slot, address: str) -> Worker[TaskT_contra, ResultT_co]:
        """Begin to make a worker in a slot."""
        ...


@dataclass(slots=True, kw_only=True)
class _Place(Generic[TaskT, ResultT]):
    """Slot of the cluster with its worker, if it has one at the moment."""

    slot: Slot
    address: str
    worker: Worker[TaskT, ResultT] | None = None
    is_ready: bool = False
    start_at: float = 0.0
    """Earliest time for the next worker, on the monotonic clock."""
    num_failures: int = 0
    """Workers lost in a row."""
    num_in_flight: int = 0
    """Tasks that the worker is doing."""

    @property
    def is_given_up(self) -> bool:
        return self.num_failures >= MAX_FAILURES


class WorkerPool(Generic[TaskT, ResultT]):
    """Keeps a worker in each slot of the cluster from `open` until `close`; the tasks of a group go to one worker."""

    def __init__(
        self,
        cluster: WorkerCluster[TaskT, ResultT],
        say: Callable[[str], None],
        check_seconds: float = CHECK_SECONDS,
    ) -> None:
        """Make a pool without workers; `open` starts them.

        Args:
            cluster: Nodes on which workers run.
            say: Called with a message for the user when a worker is lost.
            check_seconds: Seconds between two checks of the cluster; also the pause before a lost worker is replaced,
                which doubles with each loss in a row.
        """
        self._cluster = cluster
        self._say = say
        self._check_seconds = check_seconds
        self._places: dict[Slot, _Place[TaskT, ResultT]] = {}
        self._assignments: LRUCache[str, _Place[TaskT, ResultT]] = LRUCache(NUM_ASSIGNMENTS)
        """{group: the place whose worker does its tasks}"""
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._last_attempt = asyncio.Lock()
        """Held by a task during its last attempt."""
        self._had_slot_at = time.monotonic()
        """Last time at which some slot could get a worker, on the monotonic clock."""

    async def open(self) -> None:
        """Start workers, and wait until the first one is ready.

        Raises:
            EngineError: If no worker starts.
            PivotError: Whatever a worker raised.
        """
        self._run(self._keep_workers())
        while not self._ready():
            await self._change()

    @property
    def num_places(self) -> int:
        """Number of slots of the cluster, with a ready worker or without."""
        return len(self._places)

    async def work(self, task: TaskT, *, group: str, name: str) -> ResultT:
        """Do one task, again with another worker if its worker is lost.

        Args:
            task: Task for the worker.
            group: Tasks of a group go to one worker as long as it lives.
            name: Name of the task for the message, such as "item 7".

        Raises:
            EngineError: If no worker is left, or the task itself seems to kill its workers.
            PivotError: Whatever a worker raised.
        """
        problem = ""
        for attempt in range(1, MAX_ATTEMPTS + 1):
            async with self._alone_if_last(attempt):
                place = await self._assigned(group)
                worker = place.worker
                assert worker is not None, place
                place.num_in_flight += 1
                try:
                    result = await worker.work(task)
                except WorkerLostError as error:
                    problem = str(error)
                    self._lose(place, worker, problem)
                else:
                    place.num_failures = 0
                    return result
                finally:
                    place.num_in_flight -= 1
        raise EngineError(
            f"{MAX_ATTEMPTS} workers in a row died while they worked on {name} (the last time: {problem}): leave it "
            "out, or give the nodes more memory"
        )

    async def close(self) -> None:
        """End every worker."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        workers = [place.worker for place in self._places.values() if place.worker is not None]
        self._places.clear()
        await asyncio.gather(*(worker.end() for worker in workers))

    def _alone_if_last(self, attempt: int) -> AbstractAsyncContextManager[None]:
        """Lock for last attempts, one at a time: it shows which of several tasks kills its workers."""
        return self._last_attempt if attempt == MAX_ATTEMPTS else nullcontext()

    async def _assigned(self, group: str) -> _Place[TaskT, ResultT]:
        """Place of the group's worker, or of the least busy worker if it has none; waits until a worker is ready."""
        while not (ready := self._ready()):
            await self._change()
        place = self._assignments.get(group)
        if place is None or not place.is_ready:
            place = self._assignments[group] = min(ready, key=lambda place: place.num_in_flight)
        return place

    def _ready(self) -> list[_Place[TaskT, ResultT]]:
        """Places whose worker is ready; raises the error with which the pool failed, if it did."""
        if self._failure is not None:
            raise self._failure
        return [place for place in self._places.values() if place.is_ready]

    async def _change(self) -> None:
        """Wait until a worker becomes ready or the pool fails."""
        await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _keep_workers(self) -> None:
        """Check the cluster regularly, and start the workers that are missing."""
        while True:
            self._update_places(await self._cluster.slots(), time.monotonic())
            await asyncio.sleep(self._check_seconds)

    def _update_places(self, alive: Mapping[Slot, str], now: float) -> None:
        for slot in self._places.keys() - alive.keys():
            self._forget(slot)
        for slot, address in alive.items():
            place = self._places.setdefault(slot, _Place(slot=slot, address=address))
            if place.worker is None and not place.is_given_up and place.start_at <= now:
                place.worker = self._cluster.make(slot, address)
                self._run(self._start(place, place.worker))
        self._check_places_left(now)

    def _check_places_left(self, now: float) -> None:
        """Raise EngineError if no place is left that could get a worker."""
        places = self._places.values()
        if any(not place.is_given_up for place in places):
            self._had_slot_at = now
        elif places:
            raise EngineError(
                f"no worker is left: every slot lost {MAX_FAILURES} workers in a row, for the reasons above"
            )
        elif now - self._had_slot_at > PATIENCE_SECONDS:
            raise EngineError(f"the Ray cluster has no node left, and none joined within {PATIENCE_SECONDS:.0f} s")

    async def _start(self, place: _Place[TaskT, ResultT], worker: Worker[TaskT, ResultT]) -> None:
        try:
            await worker.start()
        except WorkerLostError as error:
            self._lose(place, worker, str(error))
        if place.worker is worker:
            place.is_ready = True
            self._notify()

    def _lose(self, place: _Place[TaskT, ResultT], worker: Worker[TaskT, ResultT], problem: str) -> None:
        """Remove a dead worker from its place; of many tasks that notice the loss, only the first has an effect."""
        if place.worker is not worker:
            return
        worker.kill()
        place.worker, place.is_ready = None, False
        place.start_at = time.monotonic() + self._check_seconds * 2**place.num_failures
        place.num_failures += 1
        num_left = sum(other.is_ready for other in self._places.values())
        end = "; its slot is given up" if place.is_given_up else ""
        self._say(f"{problem} (workers left: {num_left}{end})")

    def _forget(self, slot: Slot) -> None:
        place = self._places.pop(slot)
        if place.worker is not None:
            self._lose(place, place.worker, f"node {place.address} has left the cluster")

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Keep the error that ended a background task; `_ready` raises it."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error
            self._notify()
