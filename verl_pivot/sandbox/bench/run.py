"""Bench of the sandbox: sizes -> a report with every figure beside its target, measured on two cores."""

import asyncio
import datetime
import os
import platform
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console

from verl_pivot.errors import ConfigError, SandboxError, SandboxRequestError
from verl_pivot.sandbox.bench.harness import BenchHarness, BenchSizes
from verl_pivot.sandbox.bench.hostile import measure_hostile
from verl_pivot.sandbox.bench.load import measure_calls, measure_sessions, measure_sleepers
from verl_pivot.sandbox.bench.notebooks import measure_notebooks
from verl_pivot.sandbox.bench.processes import busy_seconds
from verl_pivot.sandbox.bench.rates import measure_bare, measure_http, measure_science
from verl_pivot.sandbox.bench.report import BenchRow
from verl_pivot.sandbox.bench.soak import measure_soak
from verl_pivot.sandbox.bench.warm import measure_warm
from verl_pivot.sandbox.bubblewrap.probe import Tier, probe, require_tier
from verl_pivot.sandbox.bubblewrap.python_view import PythonView

Part = Callable[[BenchHarness], Awaitable[list[BenchRow]]]
PARTS: Mapping[str, Part] = {
    "science": measure_science,
    "bare": measure_bare,
    "warm": measure_warm,
    "http": measure_http,
    "calls": measure_calls,
    "sleepers": measure_sleepers,
    "sessions": measure_sessions,
    "notebooks": measure_notebooks,
    "hostile": measure_hostile,
    "soak": measure_soak,
}
PART_SECONDS = 3600.0
"""Seconds after which a part is ended."""
NUM_CORES = 2
"""Number of cores that the targets are stated for."""
MAX_BUSY = 0.1
"""Share of these cores that other processes may take; above it the figures are not to be quoted."""
_LOOK_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """Report of one run."""

    rows: tuple[BenchRow, ...]
    sizes: BenchSizes
    seed: int
    cores: tuple[int, ...]
    """Numbers of the cores that the run was bound to."""
    busy_share: float
    """Share of these cores that other processes took before the run."""
    sandbox: str
    """Isolation tier, and version of bubblewrap."""
    started: str
    """Time of the start in UTC, as ISO 8601."""
    seconds: float
    """Seconds of the whole run."""

    @property
    def is_complete(self) -> bool:
        """Whether every figure could be measured."""
        return all(row.value is not None for row in self.rows)

    @property
    def title(self) -> str:
        targets = [row.is_reached for row in self.rows if row.target is not None or row.value is None]
        text = f"{sum(map(bool, targets))} of {len(targets)} targets reached, on {len(self.cores)} cores"
        if self.busy_share > MAX_BUSY:
            text += f"; other processes used {self.busy_share:.0%} of them: do not quote these figures"
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


def run_bench(sizes: BenchSizes, names: Sequence[str], *, seed: int, console: Console) -> BenchReport:
    """Measure parts of the bench, in the order of PARTS. Ends whatever it starts.

    Args:
        sizes: Numbers of calls and rounds.
        names: Names of the parts; empty for all parts.
        seed: Seed of all random choices.
        console: Shows the progress.

    Raises:
        ConfigError: If there is no such part, or no sandbox on this machine.
    """
    unknown = sorted(set(names) - set(PARTS))
    if unknown:
        raise ConfigError(f"unknown part {unknown[0]!r} of the bench; use {', '.join(PARTS)}")
    found = probe(PythonView.of())
    require_tier(found, Tier.T3)
    cores = _take_cores()
    started, begin = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), time.monotonic()
    busy_share = _busy_share(frozenset(cores))
    rows = asyncio.run(
        _measure([name for name in PARTS if name in names or not names], sizes, seed, len(cores), console)
    )
    return BenchReport(
        rows=tuple(rows),
        sizes=sizes,
        seed=seed,
        cores=cores,
        busy_share=busy_share,
        sandbox=found.summary,
        started=started,
        seconds=time.monotonic() - begin,
    )


async def _measure(
    names: Sequence[str], sizes: BenchSizes, seed: int, num_lanes: int, console: Console
) -> list[BenchRow]:
    harness = BenchHarness(sizes, num_lanes=num_lanes, seed=seed, console=console)
    rows: list[BenchRow] = []
    try:
        for name in names:
            rows += await _measure_part(name, harness)
    finally:
        await harness.close()
    return rows


async def _measure_part(name: str, harness: BenchHarness) -> list[BenchRow]:
    """Measure one part; a part that breaks becomes a row that says why, so that the others keep their figures."""
    try:
        async with asyncio.timeout(PART_SECONDS):
            return await PARTS[name](harness)
    except TimeoutError:
        problem = f"it did not end within {PART_SECONDS:.0f} s"
    except (SandboxError, SandboxRequestError) as error:
        problem = str(error)
    return [BenchRow(part=name, name="could not be measured", value=None, note=problem)]


def _take_cores() -> tuple[int, ...]:
    """Bind this process, and so everything that it starts, to NUM_CORES cores; returns their numbers."""
    cores = tuple(sorted(os.sched_getaffinity(0))[:NUM_CORES])
    os.sched_setaffinity(0, cores)
    return cores


def _busy_share(cores: frozenset[int]) -> float:
    """Share of the cores' time that is used during _LOOK_SECONDS."""
    before = busy_seconds(cores)
    time.sleep(_LOOK_SECONDS)
    return (busy_seconds(cores) - before) / (_LOOK_SECONDS * len(cores))
