"""Turns -> TurnProfiles, measured by workers on many nodes that may join or fail at any time."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol

from cachetools import LRUCache

from verl_pivot.errors import EngineError
from verl_pivot.profiling.profiler import Totals
from verl_pivot.types import Turn, TurnProfile

CHECK_SECONDS = 2.0
"""Seconds between two checks of which nodes the cluster has."""
MAX_ATTEMPTS = 3
"""Attempts to measure one turn; a further attempt is made only if the turn's worker was lost."""
MAX_FAILURES = 3
"""Workers that a slot may lose in a row, with no turn finished between, before it is given up."""
NUM_ASSIGNMENTS = 10_000
"""Trajectories whose worker is remembered."""
PATIENCE_SECONDS = 600.0
"""Seconds to wait for a node to join when none is left."""


class WorkerLostError(EngineError):
    """A worker has died, and the turns that it was measuring must be measured again."""


class Slot(NamedTuple):
    """Room for one worker on a node."""

    node_id: str
    number: int
    """Number among the slots of the node, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Answer of a worker for one turn."""

    profile: TurnProfile
    totals: Totals
    """Sums over this turn alone."""
    judge_usage: Mapping[tuple[str, str], int]
    """Requests and tokens of judges since the worker's last answer, as in `verifiers.judge_usage.usage`."""
    messages: tuple[str, ...] = ()
    """Messages for the user about endpoints that the worker lost."""


class Worker(Protocol):
    """Worker process on some node."""

    async def start(self) -> None:
        """Wait until the worker can measure turns.

        Raises:
            WorkerLostError: If another attempt may help.
            PivotError: If the fault is in the settings.
        """
        ...

    async def measure(self, turn: Turn) -> Measured:
        """Sample and score one turn.

        Raises:
            WorkerLostError: If another attempt may help.
            PivotError: If the fault is in the turn or the settings.
        """
        ...

    async def end(self) -> None:
        """Let the worker end its server if it still answers, then kill it."""
        ...

    def kill(self) -> None: ...


class WorkerCluster(Protocol):
    """The nodes on which workers run."""

    async def slots(self) -> Mapping[Slot, str]:
        """{slot: address of its node} of every node that is alive."""
        ...

    def make(self, slot: Slot, address: str) -> Worker:
        """Begin to make a worker in a slot."""
        ...


@dataclass(slots=True, kw_only=True)
class _Place:
    """Slot of the cluster with its worker, if it has one at the moment."""

    slot: Slot
    address: str
    worker: Worker | None = None
    is_ready: bool = False
    start_at: float = 0.0
    """Earliest time for the next worker, on the monotonic clock."""
    num_failures: int = 0
    """Workers lost in a row."""
    num_in_flight: int = 0
    """Turns that the worker is measuring."""

    @property
    def is_given_up(self) -> bool:
        return self.num_failures >= MAX_FAILURES


class WorkerPool:
    """Keeps a worker in each slot of the cluster from `open` until `close`; a trajectory's turns go to one worker."""

    def __init__(
        self,
        cluster: WorkerCluster,
        totals: Totals,
        judge_usage: Callable[[Mapping[tuple[str, str], int]], object],
        say: Callable[[str], None],
        check_seconds: float = CHECK_SECONDS,
    ) -> None:
        """Make a pool without workers; `open` starts them.

        Args:
            cluster: Nodes on which workers run.
            totals: Sums over all workers, updated with every turn.
            judge_usage: Called after each turn with the requests and tokens of its judges.
            say: Called with a message for the user when a worker or an endpoint is lost.
            check_seconds: Seconds between two checks of the cluster; also the pause before a lost worker is replaced,
                which doubles with each loss in a row.
        """
        self._cluster = cluster
        self._totals = totals
        self._judge_usage = judge_usage
        self._say = say
        self._check_seconds = check_seconds
        self._places: dict[Slot, _Place] = {}
        self._assignments: LRUCache[str, _Place] = LRUCache(NUM_ASSIGNMENTS)
        """{trajectory id: the place whose worker measures its turns}"""
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._said: set[str] = set()
        self._last_attempt = asyncio.Lock()
        """Held by a turn during its last attempt."""
        self._had_slot_at = time.monotonic()
        """When some slot could last get a worker."""

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

    async def measure(self, turn: Turn) -> TurnProfile:
        """Sample and score one turn, again with another worker if its worker is lost.

        Raises:
            EngineError: If no worker is left, or the turn itself seems to kill its workers.
            PivotError: Whatever a worker raised.
        """
        problem = ""
        for attempt in range(1, MAX_ATTEMPTS + 1):
            async with self._alone_if_last(attempt):
                place = await self._assigned(turn.trajectory_id)
                worker = place.worker
                assert worker is not None, place
                place.num_in_flight += 1
                try:
                    measured = await worker.measure(turn)
                except WorkerLostError as error:
                    problem = str(error)
                    self._lose(place, worker, problem)
                else:
                    place.num_failures = 0
                    return self._recorded(measured)
                finally:
                    place.num_in_flight -= 1
        raise EngineError(
            f"turn {turn.index} of trajectory {turn.trajectory_id!r} was being measured by {MAX_ATTEMPTS} workers when "
            f"each of them died (the last time: {problem}): leave the trajectory out, or give the nodes more memory"
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
        """Lock for last attempts: one at a time, so that a turn that kills workers is told from the turns beside it."""
        return self._last_attempt if attempt == MAX_ATTEMPTS else nullcontext()

    async def _assigned(self, trajectory_id: str) -> _Place:
        """Place of the trajectory's worker, or of the idlest worker if it has none; waits until a worker is ready."""
        while not (ready := self._ready()):
            await self._change()
        place = self._assignments.get(trajectory_id)
        if place is None or not place.is_ready:
            place = self._assignments[trajectory_id] = min(ready, key=lambda place: place.num_in_flight)
        return place

    def _ready(self) -> list[_Place]:
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

    def _recorded(self, measured: Measured) -> TurnProfile:
        """Profile in a worker's answer, whose sums and messages are recorded."""
        for field in fields(Totals):
            setattr(self._totals, field.name, getattr(self._totals, field.name) + getattr(measured.totals, field.name))
        self._judge_usage(measured.judge_usage)
        for message in measured.messages:
            self._say_once(message)
        return measured.profile

    def _say_once(self, message: str) -> None:
        """Pass a message on unless another worker sent the same: each of them notices a lost endpoint by itself."""
        if message not in self._said:
            self._said.add(message)
            self._say(message)

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

    async def _start(self, place: _Place, worker: Worker) -> None:
        try:
            await worker.start()
        except WorkerLostError as error:
            self._lose(place, worker, str(error))
        if place.worker is worker:
            place.is_ready = True
            self._notify()

    def _lose(self, place: _Place, worker: Worker, problem: str) -> None:
        """Remove a dead worker from its place; of many turns that notice the loss, only the first has an effect."""
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
        """Keep the error that ended a task, which the next turn raises."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error
            self._notify()
