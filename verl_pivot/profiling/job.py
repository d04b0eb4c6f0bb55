"""ProfileJob: the input, the servers and the output file of one run of `verl-pivot profile`."""

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
    """Number of workers on each node, if all workers share the servers of --endpoint or --openai."""
    gpus_per_server: int
    """GPUs of each worker's own server, if no server is shared; a node then runs as many workers as its GPUs allow."""
    verifier_modules: tuple[str, ...]
    """Modules that register verifiers; every worker imports them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileJob:
    """Options of one run of `verl-pivot profile`."""

    trajectories: Path
    out: Path
    limit: int | None
    """Number of trajectories to read from the start of the file; None reads all."""
    num_drawn: int | None = None
    """Number of trajectories to draw by `seed` from those that are read; None measures all of them."""
    settings: ProfileSettings
    retries: Retries
    seed: int
    concurrency: int
    """Number of turns that are measured at the same time at each server."""
    endpoints: tuple[str, ...]
    """URLs of SGLang servers; if there are none and `openai` is None, a server is started."""
    openai: str | None
    """URL of an OpenAI-compatible server, which is used instead of SGLang servers."""
    server_flags: tuple[str, ...]
    """Extra flags of a server that is started."""
    on_ray: RayOptions | None
    """Options of a Ray cluster; None measures in this process."""
    allow_no_tools: bool = True
    """Whether to measure turns with an expert's tool call even if the trajectory has no tool schemas."""

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
    """Turns of the given kinds only."""
    return (turn for turn in found if kinds == "all" or turn.expert.tool_calls)


def drawn_ids(ids: Iterable[str], number: int, seed: int) -> frozenset[str]:
    """Ids of trajectories, drawn by the seed; neither the order of the ids nor repeated ids change the draw."""

    def rank(identity: str) -> bytes:
        return sha256(f"{seed}:{identity}".encode()).digest()

    return frozenset(nsmallest(number, set(ids), key=rank))


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCounts:
    """Numbers of turns of a job."""

    num_turns: int
    """Turns of all trajectories of the job."""
    num_left: int
    """Turns that the profile does not hold yet."""
    num_messages: int
    """Turns at which the expert writes a message, and the verifier accepts any text."""


TurnProgress: TypeAlias = Callable[[TurnCounts, Totals], AbstractContextManager[Callable[[], None]]]
"""(counts of the job, totals of this run) -> context manager that yields the function to call after each turn."""
