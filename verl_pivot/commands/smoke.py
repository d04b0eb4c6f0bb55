"""`verl-pivot smoke`: two steps of the stock trainer with each method, on what this machine has."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from verl_pivot.commands.options import with_home
from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from verl_pivot.smoke.composing import SmokeMachine
    from verl_pivot.smoke.smoke_run import SmokeResult


def smoke_command(
    methods: Annotated[list[str] | None, typer.Argument(help="Methods, as in +method=; by default every one.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Checkpoint whose architecture and tokenizer the tiny policy takes.")
    ] = None,
    launch: Annotated[
        Path | None, typer.Option(help="Script with your own launch, which is shortened; the script is read, not run.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of GPUs of a launch, or of CPU processes instead.")] = 1,
    rollouts: Annotated[int, typer.Option(min=8, help="Rollouts per step and worker.")] = 16,
    out: Annotated[Path, typer.Option(callback=with_home, help="Folder for files and logs.")] = Path("outputs/smoke"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")] = False,
) -> None:
    """Try whether methods run on this machine: two steps of the stock trainer with each method and a tiny policy.

    They run on GPUs if there are any, else with +local=cpu. The exit code is 1 if a method does not work; then the
    failed checks of `verl-pivot doctor` are printed, too.

    Examples:

      verl-pivot smoke

      verl-pivot smoke pivotrl grpo_roc --json > smoke.json

      verl-pivot smoke --launch train.sh

      verl-pivot smoke grpo_roc --model Qwen/Qwen3-8B --workers 8
    """
    from verl_pivot.smoke.composing import this_machine
    from verl_pivot.smoke.tiny_model import without_progress_bars

    without_progress_bars()
    results = []
    for result in _results(methods or [], model, launch, out, this_machine(workers, rollouts), _say(as_json)):
        results.append(result)
        if not as_json:
            _print(result)
    works = all(result.complaint is None for result in results)
    failed = [] if works else _failed_checks()
    if as_json:
        print(json.dumps({"works": works, "methods": [_as_json(each) for each in results], "doctor": failed}, indent=2))
    elif not works:
        _print_checks(failed)
    if not works:
        raise typer.Exit(1)


def _results(
    methods: list[str],
    model: str | None,
    launch: Path | None,
    out: Path,
    machine: "SmokeMachine",
    say: Callable[[str], None],
) -> Iterator["SmokeResult"]:
    from verl_pivot.smoke.launch_script import launch_of
    from verl_pivot.smoke.methods import CASES, case_of
    from verl_pivot.smoke.shortening import with_method
    from verl_pivot.smoke.smoke_run import smoke, smoke_launch

    if launch is not None:
        if len(methods) > 1:
            raise ConfigError("--launch tries one launch: name at most one method")
        words = with_method(launch_of(launch), methods[0] if methods else None)
        say(f"{launch}: settings that are replaced in its launch")
        yield smoke_launch(words, out / launch.stem, machine, model, say)
        return
    for method in methods:
        case_of(method)
    for method in methods or CASES:
        yield smoke(method, out / method, machine, model, say)


def _say(as_json: bool) -> Callable[[str], None]:
    return (lambda line: typer.echo(line, err=True)) if as_json else typer.echo


def _print(result: "SmokeResult") -> None:
    what = "works" if result.complaint is None else f"FAILS: {result.complaint}"
    typer.echo(f"{result.method}: {what} ({result.seconds:.0f} s; log {result.log})")
    if result.phases:
        typer.echo("  " + ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in result.phases.items()))


def _as_json(result: "SmokeResult") -> dict[str, Any]:
    return {
        "method": result.method,
        "works": result.complaint is None,
        "complaint": result.complaint,
        "seconds": round(result.seconds, 1),
        "phases": _finite(result.phases),
        "metrics": _finite(result.metrics),
        "overrides": list(result.overrides),
        "log": str(result.log),
    }


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    """The values with None for NaN and infinity, which JSON does not have."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _failed_checks() -> list[dict[str, str]]:
    from verl_pivot.commands.doctor import examine

    return [
        {"name": each.name, "detail": each.detail, "remedy": each.remedy}
        for each in examine(lambda what: None)
        if not each.passed
    ]


def _print_checks(failed: list[dict[str, str]]) -> None:
    if not failed:
        typer.echo("`verl-pivot doctor` finds nothing missing on this machine; see the log of the launch.")
    for check in failed:
        typer.echo(f"doctor: {check['name']}: {check['detail']}\n     remedy: {check['remedy']}")
