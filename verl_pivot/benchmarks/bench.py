"""Sizes -> every figure that the sandbox must reach, measured in one run on two cores, with its target."""

import asyncio
import datetime
import os
import platform
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console

from verl_pivot.benchmarks.bench_hostile import measure_hostile
from verl_pivot.benchmarks.bench_load import measure_calls, measure_sessions, measure_sleepers
from verl_pivot.benchmarks.bench_processes import busy_seconds
from verl_pivot.benchmarks.bench_rates import measure_bare, measure_http, measure_science
from verl_pivot.benchmarks.bench_report import Row
from verl_pivot.benchmarks.bench_soak import measure_soak
from verl_pivot.benchmarks.bench_stage import Sizes, Stage
from verl_pivot.bubblewrap.probe import Tier, probe, require_tier
from verl_pivot.bubblewrap.python_view import PythonView
from verl_pivot.errors import ConfigError, SandboxError, SandboxRequestError

Part = Callable[[Stage], Awaitable[list[Row]]]
PARTS: Mapping[str, Part] = {
    "science": measure_science,
    "bare": measure_bare,
    "http": measure_http,
    "calls": measure_calls,
    "sleepers": measure_sleepers,
    "sessions": measure_sessions,
    "hostile": measure_hostile,
    "soak": measure_soak,
}
PART_SECONDS = 3600.0
"""A part that takes longer is ended, and says so."""
NUM_CORES = 2
"""What the targets are stated for."""
MAX_BUSY = 0.1
"""Share of the cores that others may take; above it the figures are not to be quoted."""
_LOOK_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One run."""

    rows: tuple[Row, ...]
    sizes: Sizes
    seed: int
    cores: tuple[int, ...]
    busy_share: float
    """Of these cores, taken by others before the run."""
    sandbox: str
    """Tier of the isolation, and bubblewrap's version."""
    started: str
    seconds: float

    @property
    def is_complete(self) -> bool:
        """Every figure could be measured."""
        return all(row.value is not None for row in self.rows)

    @property
    def title(self) -> str:
        targets = [row.is_reached for row in self.rows if row.target is not None or row.value is None]
        text = f"{sum(map(bool, targets))} of {len(targets)} targets reached, on {len(self.cores)} cores"
        if self.busy_share > MAX_BUSY:
            text += f", of which others took {self.busy_share:.0%}: not to be quoted"
        return text

    def as_json(self) -> dict[str, object]:
        return {
            "started": self.started,
            "seconds": round(self.seconds, 1),
            "machine": {
                "cores": list(self.cores),
                "busy_share": round(self.busy_share, 3),
                "sandbox": self.sandbox,
                "platform": platform.platform(),
                "python": platform.python_version(),
            },
            "seed": self.seed,
            "sizes": asdict(self.sizes),
            "rows": [row.as_json() for row in self.rows],
        }


def run_bench(sizes: Sizes, names: Sequence[str], *, seed: int, console: Console) -> Report:
    """Measure the named parts, all where none is named, in the order of PARTS. Ends whatever it starts.

    Raises:
        ConfigError: If there is no such part, or no sandbox on this machine.
    """
    unknown = sorted(set(names) - set(PARTS))
    if unknown:
        raise ConfigError(f"there is no part {unknown[0]!r} of the bench; use {', '.join(PARTS)}")
    found = probe(PythonView.of())
    require_tier(found, Tier.T3)
    cores = _take_cores()
    started, begin = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), time.monotonic()
    busy_share = _busy_share(frozenset(cores))
    rows = asyncio.run(
        _measure([name for name in PARTS if name in names or not names], sizes, seed, len(cores), console)
    )
    return Report(
        rows=tuple(rows),
        sizes=sizes,
        seed=seed,
        cores=cores,
        busy_share=busy_share,
        sandbox=found.summary,
        started=started,
        seconds=time.monotonic() - begin,
    )


async def _measure(names: Sequence[str], sizes: Sizes, seed: int, num_lanes: int, console: Console) -> list[Row]:
    stage = Stage(sizes, num_lanes=num_lanes, seed=seed, console=console)
    rows: list[Row] = []
    try:
        for name in names:
            rows += await _measure_part(name, stage)
    finally:
        await stage.close()
    return rows


async def _measure_part(name: str, stage: Stage) -> list[Row]:
    """One that breaks leaves the others their figures."""
    try:
        async with asyncio.timeout(PART_SECONDS):
            return await PARTS[name](stage)
    except TimeoutError:
        problem = f"it did not end within {PART_SECONDS:.0f} s"
    except (SandboxError, SandboxRequestError) as error:
        problem = str(error)
    return [Row(part=name, name="could not be measured", value=None, note=problem)]


def _take_cores() -> tuple[int, ...]:
    """Bind this process, and so everything that it starts, to as many as the targets are stated for."""
    cores = tuple(sorted(os.sched_getaffinity(0))[:NUM_CORES])
    os.sched_setaffinity(0, cores)
    return cores


def _busy_share(cores: frozenset[int]) -> float:
    before = busy_seconds(cores)
    time.sleep(_LOOK_SECONDS)
    return (busy_seconds(cores) - before) / (_LOOK_SECONDS * len(cores))
