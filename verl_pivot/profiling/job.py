"""ProfileJob: what one run of `verl-pivot profile` measures, with which servers, and into which file."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import sha256
from heapq import nsmallest
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from verl_pivot.data.trajectories import read_trajectories
from verl_pivot.data.turns import turns
from verl_pivot.engines.retries import Retries
from verl_pivot.profiling.profiler import Totals
from verl_pivot.profiling.profiles import ProfileSettings, TurnKinds
from verl_pivot.types import Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """How `verl-pivot profile --ray` uses a Ray cluster."""

    address: str
    """Address of the cluster, host:port; "auto" is the cluster of this machine."""
    workers_per_node: int
    """Workers on each node, if all workers share the servers of --endpoint or --openai."""
    gpus_per_server: int
    """GPUs of a worker's own server, if none is shared; a node then has as many workers as its GPUs allow."""
    verifier_modules: tuple[str, ...]
    """Modules that every worker imports, since they register verifiers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileJob:
    """What one run of `verl-pivot profile` measures, as its options say."""

    trajectories: Path
    out: Path
    limit: int | None
    """Trajectories to read from the start of the file; None reads all."""
    num_drawn: int | None = None
    """Trajectories to draw from those by `seed`; None measures all of them."""
    settings: ProfileSettings
    retries: Retries
    seed: int
    concurrency: int
    """Turns in flight at each server."""
    endpoints: tuple[str, ...]
    """URLs of SGLang servers; with none here and no `openai`, a server is started."""
    openai: str | None
    """URL of an OpenAI-compatible server, which takes the place of SGLang servers."""
    server_flags: tuple[str, ...]
    """Extra flags of a server that is started."""
    on_ray: RayOptions | None
    """Use of a Ray cluster; None measures in this process."""
    allow_no_tools: bool = True
    """Whether to measure turns at which the expert calls a tool although the trajectory has no schemas."""

    def turns(self) -> Iterator[Turn]:
        """Every turn of the trajectories to measure, in the order of the file."""
        drawn = None if self.num_drawn is None else self._drawn(self.num_drawn)
        for trajectory in self._read():
            if drawn is None or trajectory.id in drawn:
                yield from kept_turns(turns(trajectory), self.settings.turns)

    def _drawn(self, number: int) -> frozenset[str]:
        return drawn_ids((trajectory.id for trajectory in self._read()), number, self.seed)

    def _read(self) -> Iterator[Trajectory]:
        return islice(read_trajectories(self.trajectories), self.limit)


def kept_turns(found: Iterable[Turn], kinds: TurnKinds) -> Iterator[Turn]:
    """Turns of these kinds alone."""
    return (turn for turn in found if kinds == "all" or turn.expert.tool_calls)


def drawn_ids(ids: Iterable[str], number: int, seed: int) -> frozenset[str]:
    """Ids of trajectories that are drawn by the seed; neither their order nor repeated ids change the draw."""

    def rank(identity: str) -> bytes:
        return sha256(f"{seed}:{identity}".encode()).digest()

    return frozenset(nsmallest(number, set(ids), key=rank))


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCounts:
    """Numbers of turns of a job."""

    num_turns: int
    """Turns of all its trajectories."""
    num_left: int
    """Turns that the profile does not hold yet."""
    num_messages: int
    """Turns at which the expert writes a message, and the verifier accepts any text."""


TurnProgress: TypeAlias = Callable[[TurnCounts, Totals], AbstractContextManager[Callable[[], None]]]
"""(counts of the job, totals of this run) -> context manager that gives the function to call after each turn."""
