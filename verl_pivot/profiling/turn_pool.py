"""Turns -> TurnProfiles, measured by a WorkerPool; sums and messages of its workers are collected here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from verl_pivot.profiling.profiler import Totals
from verl_pivot.types import Turn, TurnProfile
from verl_pivot.workers.worker_pool import WorkerPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Answer of a worker for one turn."""

    profile: TurnProfile
    totals: Totals
    """Sums over this turn only."""
    judge_usage: Mapping[tuple[str, str], int]
    """Requests and tokens of judges since the worker's last answer, as in `verifiers.judge_usage.usage`."""
    messages: tuple[str, ...] = ()
    """Messages for the user about endpoints that the worker lost, and turns that get no samples."""


class TurnPool:
    """Measures turns by the workers of a cluster; the turns of a trajectory go to one worker."""

    def __init__(
        self,
        workers: WorkerPool[Turn, Measured],
        totals: Totals,
        judge_usage: Callable[[Mapping[tuple[str, str], int]], object],
        say: Callable[[str], None],
    ) -> None:
        """Keep the workers; nothing is measured yet.

        Args:
            workers: Workers that measure turns.
            totals: Sums over all workers, updated with every turn.
            judge_usage: Called after each turn with the requests and tokens of its judges.
            say: Called with each message for the user.
        """
        self._workers, self._totals, self._judge_usage, self._say = workers, totals, judge_usage, say
        self._said: set[str] = set()

    async def measure(self, turn: Turn) -> TurnProfile:
        """Sample and score one turn; raises the errors of `WorkerPool.work`."""
        name = f"turn {turn.index} of trajectory {turn.trajectory_id!r}"
        measured = await self._workers.work(turn, group=turn.trajectory_id, name=name)
        for field in fields(Totals):
            setattr(self._totals, field.name, getattr(self._totals, field.name) + getattr(measured.totals, field.name))
        self._judge_usage(measured.judge_usage)
        for message in measured.messages:
            self._say_once(message)
        return measured.profile

    async def close(self) -> None:
        await self._workers.close()

    def _say_once(self, message: str) -> None:
        """Show a message unless another worker sent the same one, as every worker reports a lost endpoint."""
        if message not in self._said:
            self._said.add(message)
            self._say(message)
