"""Command `verl-pivot route simulate`: scenarios and policies -> makespans beside the bound and verl's router."""

import json
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from verl_pivot.routing.comparison import Row, SeedResult
    from verl_pivot.routing.sim_engine import EngineRates
    from verl_pivot.routing.workload import Scenario

route_app = typer.Typer(help="Scheduling of rollouts over engines.", no_args_is_help=True)


@route_app.callback()
def route() -> None:
    """Scheduling of rollouts over engines."""


@route_app.command("simulate")
def simulate_command(
    scenario: Annotated[list[str] | None, typer.Option(help="A, M, F, S, D, L, E, G, H, V, W; repeatable.")] = None,
    policy: Annotated[list[str] | None, typer.Option(help="Repeatable; all of them unless given.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="So many steps are drawn of each scenario.")] = 5,
    first_seed: Annotated[int, typer.Option(min=0, help="Of them.")] = 0,
    options: Annotated[
        list[str] | None, typer.Option("--set", help="A scenario's field=value, such as capacity=300000; repeatable.")
    ] = None,
    recorded: Annotated[
        Path | None, typer.Option(help="Roll out again what <trainer.rollout_data_dir>/tools/<step>.jsonl recorded.")
    ] = None,
    before: Annotated[
        Path | None, typer.Option(help="With --recorded: an earlier step's dump, whose lengths are known.")
    ] = None,
    rates: Annotated[
        str, typer.Option(help="What an engine's steps take: estimated (roofline, the default) or measured on an H100.")
    ] = "estimated",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; all cores unless given.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the tables as JSON, too.")] = None,
) -> None:
    """Simulate steps of rollouts on SGLang-like engines, every policy on the same conversations.

    A is 64 engines under memory pressure, M has many turns, F long rollouts, S severe pressure, D none, L is light,
    E has long prompts first, G 8 engines, H 512, V engines without reservation, W slow tools. Lengths are hidden from
    the policies, except from the oracle, which is there to compare with.

    Example: verl-pivot route simulate --scenario A --scenario M --policy kv_forecast --seeds 3
    """
    from verl_pivot.routing.comparison import BASELINE, POLICIES, rows
    from verl_pivot.routing.sim_engine import RATES
    from verl_pivot.routing.workload import SCENARIOS, with_options

    _check_names("--rates", [rates], list(RATES))
    chosen = list(dict.fromkeys([BASELINE, *(policy or POLICIES)]))
    _check_names("--policy", chosen, list(POLICIES))
    names = scenario or (["D"] if recorded else ["A", "M", "F", "D", "L"])
    _check_names("--scenario", names, list(SCENARIOS))
    scenarios = {name: with_options(SCENARIOS[name], options or []) for name in names}
    if recorded is not None:
        results = {recorded.name: [_replay(recorded, before, scenarios[names[0]], chosen, RATES[rates])]}
    else:
        cores = workers or len(os.sched_getaffinity(0))
        results = _simulate(scenarios, range(first_seed, first_seed + seeds), chosen, RATES[rates], cores)
    tables = {name: list(rows(found)) for name, found in results.items()}
    for name, table in tables.items():
        _print_rows(name, table, results[name])
    if out is not None:
        out.write_text(json.dumps({name: [asdict(row) for row in table] for name, table in tables.items()}, indent=2))


def _replay(
    recorded: Path, before: Path | None, scenario: "Scenario", policies: list[str], rates: "EngineRates"
) -> "SeedResult":
    from verl_pivot.routing.comparison import Setting, compare
    from verl_pivot.routing.recorded import read_conversations

    lengths = [] if before is None else [each.response_tokens for each in read_conversations(before)]
    setting = Setting(scenario=scenario, conversations=read_conversations(recorded), lengths_before=lengths)
    return compare(recorded.name, 0, setting, policies, rates)


def _check_names(option: str, names: list[str], known: list[str]) -> None:
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"{option} {unknown[0]}: known are {', '.join(known)}")


def _simulate(
    scenarios: "dict[str, Scenario]", seeds: range, policies: list[str], rates: "EngineRates", workers: int
) -> "dict[str, list[SeedResult]]":
    from verl_pivot.commands.progress import progress_bar
    from verl_pivot.routing.comparison import compare_seed

    results: dict[str, list[SeedResult]] = {name: [] for name in scenarios}
    with ProcessPoolExecutor(workers) as pool, progress_bar("steps", len(scenarios) * len(seeds)) as on_done:
        jobs = [
            pool.submit(compare_seed, name, scenario, seed, policies, rates)
            for name, scenario in scenarios.items()
            for seed in seeds
        ]
        for job in as_completed(jobs):
            results[job.result().scenario].append(job.result())
            on_done(1)
    return {name: sorted(found, key=lambda result: result.seed) for name, found in results.items()}


def _print_rows(name: str, table_rows: "list[Row]", results: "list[SeedResult]") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    bound = sum(result.bound_seconds for result in results) / len(results)
    title = f"{name}: {len(results)} seeds, bound {bound:.0f} s"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("policy", overflow="fold")
    for column in ("s", "faster", "least", "x bound", "90 %", "again", "retracted", "moves"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in table_rows:
        table.add_row(
            row.policy if row.policy != "oracle" else "oracle (knows the lengths)",
            f"{row.makespan_seconds:.0f}",
            f"{row.speed_up:.2f}",
            f"{row.least_speed_up:.2f}",
            f"{row.over_bound:.2f}",
            f"{row.ninety_percent_seconds:.0f}",
            f"{row.reprefilled_share:.1%}",
            f"{row.retracted_share:.2%}",
            f"{row.num_moves:.0f}",
        )
    Console().print(table)
