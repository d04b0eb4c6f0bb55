"""`verl-pivot route simulate`: scenarios and routing policies -> how long the rollouts of training steps take."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verl_pivot.commands.options import out_file, refuse_overwriting
from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from verl_pivot.routing.simulator.comparison import ComparisonRow, SeedResult
    from verl_pivot.routing.simulator.engine import EngineRates
    from verl_pivot.routing.simulator.workload import Scenario
    from verl_pivot.types import JsonObject

_NUM_SEEDS = 5
RESULTS = "results.jsonl"
"""Name of the journal's file of results."""
_COLUMNS = (
    "seconds",
    "90 %\ndone",
    "speed-\nup",
    "slowest\nseed",
    "times\nbound",
    "sticky\nbound",
    "recom-\nputed",
    "re-\ntracted",
    "moves",
)
_LEGEND = """\
seconds     until the last rollout ends; 90 % done: seconds until nine of ten have ended
speed-up    over least_inflight, verl's own router; slowest seed: the smallest speed-up of any seed
times bound seconds / a lower bound that no schedule can beat
sticky      seconds / a lower bound for schedules in which rollouts stay on their engine
recomputed  tokens of conversations that were computed again, in % of generated tokens
retracted   requests that an engine stopped because its memory was short, in % of rollouts
moves       turns that went to another engine than the turn before
oracle      knows the length of every response in advance, which no router can"""

route_app = typer.Typer(help="Compare routing policies, which choose the engine of each rollout.", no_args_is_help=True)


@route_app.callback()
def route() -> None:
    """Compare routing policies, which choose the engine of each rollout."""


@route_app.command("simulate")
def simulate_command(
    scenario: Annotated[
        list[str] | None,
        typer.Option(
            help="A, M, F, S, D, L, E, G, H, V, W, described above, or a variant such as A1 or A-slow; repeatable. By "
            "default A, M, F, D and L."
        ),
    ] = None,
    all_scenarios: Annotated[
        bool,
        typer.Option(
            "--all",
            help="All scenarios and variants but H, with 16 engines each, under verl's own router and kv_forecast.",
        ),
    ] = False,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Routing policy to compare with verl's own, least_inflight; repeatable. By default all of them."
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(
            min=1, help="Number of training steps to simulate of each scenario, each drawn with a seed of its own."
        ),
    ] = _NUM_SEEDS,
    first_seed: Annotated[
        int, typer.Option(min=0, help="Seed of the first step; the other steps have the next seeds.")
    ] = 0,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Change a field of every scenario, such as capacity=300000; repeatable. An unknown field lists all.",
        ),
    ] = None,
    recorded: Annotated[
        Path | None,
        typer.Option(
            help="Roll out recorded rollouts again, <trainer.rollout_data_dir>/pivot/<step>.jsonl, on the engines of a "
            "scenario, D by default."
        ),
    ] = None,
    before: Annotated[
        Path | None,
        typer.Option(
            help="With --recorded: recorded rollouts of the step before, from which kv_forecast learns lengths."
        ),
    ] = None,
    rates: Annotated[
        str, typer.Option(help="Speeds of the engines, of a 14B model on one H100: estimated (roofline) or measured.")
    ] = "estimated",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default one per core.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            callback=out_file,
            help="JSON file for the tables. With it, an interrupted command continues when it is run again.",
        ),
    ] = None,
) -> None:
    """Simulate training steps' rollouts under each routing policy.

    The engines are like SGLang's.

    Scenarios: A has 64 engines under memory pressure. The others differ from A: M has more turns, F longer responses,
    S severe memory pressure, D no memory pressure, L fewer rollouts, E the longest responses first, G 8 engines, H
    512 engines, V engines that reserve no memory, W slow tools. Variants, such as A1 (one turn), A-slow (a slow engine)
    and A-stock (agent loops of verl), are listed where an unknown name is given. No policy knows the lengths of
    responses in advance, except the oracle, which is there to compare with.

    Example: verl-pivot route simulate --scenario A --scenario M --policy kv_forecast --seeds 3
    """
    from verl_pivot.data.files import replacing
    from verl_pivot.routing.simulator.comparison import BASELINE, ROUTING_POLICIES, summarize
    from verl_pivot.routing.simulator.engine import RATES
    from verl_pivot.routing.simulator.workload import SCENARIOS, with_options
    from verl_pivot.routing.simulator.workload import all_scenarios as every_scenario

    refuse_overwriting([out] if out else [], [recorded, before])
    if recorded is None and before is not None:
        raise ConfigError("--before does nothing without --recorded: name the recorded step, too, or leave it out")
    if recorded is not None:
        given = {
            "--all": all_scenarios,
            "--seeds": seeds != _NUM_SEEDS,
            "--first-seed": first_seed,
            "--workers": workers,
        }
        _check_recorded([*(name for name, value in given.items() if value)], scenario or [])
    _check_names("--rates", [rates], list(RATES))
    by_default = ["kv_forecast", "kv_forecast_no_prior"] if all_scenarios else list(ROUTING_POLICIES)
    chosen = list(dict.fromkeys([BASELINE, *(policy or by_default)]))
    _check_names("--policy", chosen, list(ROUTING_POLICIES))
    known = every_scenario() if all_scenarios else SCENARIOS
    names = scenario or (list(known) if all_scenarios else ["D"] if recorded else ["A", "M", "F", "D", "L"])
    _check_names("--scenario", names, list(known))
    scenarios = {name: with_options(known[name], options or []) for name in names}
    if recorded is not None:
        results = {recorded.name: [_replay(recorded, before, scenarios[names[0]], chosen, RATES[rates])]}
    else:
        cores = workers or len(os.sched_getaffinity(0))
        results = _simulate(scenarios, range(first_seed, first_seed + seeds), chosen, rates, cores, out)
    tables = {name: list(summarize(found)) for name, found in results.items()}
    for name, table in tables.items():
        _print_rows(name, table, results[name])
    typer.echo(_LEGEND)
    if out is not None:
        with replacing(out) as unfinished:
            shown = {name: [asdict(row) for row in table] for name, table in tables.items()}
            unfinished.write_text(json.dumps(shown, indent=2), encoding="utf-8")


def _replay(
    recorded: Path, before: Path | None, scenario: "Scenario", policies: list[str], rates: "EngineRates"
) -> "SeedResult":
    from verl_pivot.routing.simulator.comparison import compare, compared_step
    from verl_pivot.routing.simulator.recorded import read_conversations

    conversations_before = [] if before is None else read_conversations(before)
    setting = compared_step(scenario, read_conversations(recorded), conversations_before)
    return compare(recorded.name, 0, setting, policies, rates)


def _check_recorded(unused: list[str], scenarios: list[str]) -> None:
    """Raise ConfigError for options that say how to draw steps, where a recorded step is rolled out again."""
    if len(scenarios) > 1:
        unused.append("a second --scenario")
    if unused:
        raise ConfigError(
            f"{unused[0]} does nothing with --recorded, which simulates one step on the engines of one scenario: leave "
            "it out"
        )


def _check_names(option: str, names: list[str], known: list[str]) -> None:
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"{option} {unknown[0]}: unknown name, choose from {', '.join(known)}")


def _simulate(
    scenarios: "dict[str, Scenario]", seeds: range, policies: list[str], rates: str, workers: int, out: Path | None
) -> "dict[str, list[SeedResult]]":
    """Simulate every scenario with every seed; with an `out`, a journal beside it keeps finished results."""
    from verl_pivot.data.journal import open_journal
    from verl_pivot.routing.simulator.comparison import seed_result_from_json

    found: dict[tuple[str, int], SeedResult] = {}

    def simulate_rest(on_result: "Callable[[SeedResult], object]") -> None:
        jobs = [(name, seed) for name in scenarios for seed in seeds if (name, seed) not in found]
        for result in _simulated(scenarios, jobs, policies, rates, workers):
            found[result.scenario, result.seed] = result
            on_result(result)

    if out is None:
        simulate_rest(lambda result: None)
    else:
        with open_journal(out, journal_settings(scenarios, policies, rates)) as journal:
            lines = journal.append_to(RESULTS)
            for line in (journal.folder / RESULTS).read_text().splitlines():
                done = seed_result_from_json(line)
                found[done.scenario, done.seed] = done

            def keep(result: "SeedResult") -> None:
                lines.write(f"{result.to_json()}\n".encode())
                journal.commit({})

            simulate_rest(keep)
            journal.discard()
    return {name: [found[name, seed] for seed in seeds] for name in scenarios}


def journal_settings(scenarios: "dict[str, Scenario]", policies: list[str], rates: str) -> "JsonObject":
    """Settings that results kept in a journal depend on."""
    chosen: dict[str, JsonObject] = {name: asdict(scenario) for name, scenario in scenarios.items()}
    return {"scenarios": {**chosen}, "policies": [*policies], "rates": rates}


def _simulated(
    scenarios: "dict[str, Scenario]", jobs: list[tuple[str, int]], policies: list[str], rates: str, workers: int
) -> "Iterator[SeedResult]":
    """Yield the result of each job as soon as it is ready; a job is the name of a scenario and a seed."""
    from concurrent.futures import ProcessPoolExecutor, as_completed

    from verl_pivot.commands.progress import progress_bar
    from verl_pivot.routing.simulator.comparison import compare_seed
    from verl_pivot.routing.simulator.engine import RATES

    with ProcessPoolExecutor(workers) as pool, progress_bar("steps", len(jobs)) as on_done:
        running = [
            pool.submit(compare_seed, name, scenarios[name], seed, policies, RATES[rates]) for name, seed in jobs
        ]
        for job in as_completed(running):
            yield job.result()
            on_done(1)


def _print_rows(name: str, table_rows: "list[ComparisonRow]", results: "list[SeedResult]") -> None:
    from rich import box
    from rich.table import Table

    from verl_pivot.commands.tables import table_console

    bound = sum(result.bound_seconds for result in results) / len(results)
    title = f"{name}: means of {len(results)} steps, lower bound {bound:.0f} s"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("policy", overflow="fold")
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for row in table_rows:
        table.add_row(
            row.policy,
            f"{row.makespan_seconds:.0f}",
            f"{row.ninety_percent_seconds:.0f}",
            f"{row.speed_up:.2f}",
            f"{row.min_speed_up:.2f}",
            f"{row.bound_ratio:.2f}",
            f"{row.sticky_bound_ratio:.2f}",
            f"{row.recomputed_share:.1%}",
            f"{row.retracted_share:.2%}",
            f"{row.num_moves:.0f}",
        )
    table_console().print(table)
