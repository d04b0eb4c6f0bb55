"""The command line `verl-pivot`: one function per command, each importing what it needs when it runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from verl_pivot.data.profile_cli import profile_command
from verl_pivot.doctor import doctor_command
from verl_pivot.errors import ConfigError, PivotError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.table import Table

    from verl_pivot.data.importing import ImportReport
    from verl_pivot.data.selection import SelectionReport
    from verl_pivot.data.storage import RawRow
    from verl_pivot.types import JsonObject, Trajectory, Turn


class _Commands(TyperGroup):
    """What the user can mend is one sentence and exit code 1, not a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PivotError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from error


app = typer.Typer(
    name="verl-pivot",
    cls=_Commands,
    help="SFT trajectories -> pivots.parquet for the stock verl trainer: import, profile, select.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


# A command is one function, here or in a module that imports nothing slow; it fails with a PivotError.
app.command("doctor")(doctor_command)
app.command("profile")(profile_command)


@app.command("import")
def import_command(
    files: Annotated[list[Path], typer.Argument(help="JSON lines or parquet.")],
    out: Annotated[Path, typer.Option(help="The trajectories.jsonl to write.")],
    format: Annotated[Literal["openai", "nemo-gym"] | None, typer.Option(help="Told by each row unless given.")] = None,
    thinking: Annotated[
        Literal["keep", "strip"], typer.Option(help="What to do with the assistant's reasoning.")
    ] = "keep",
    verifier: Annotated[str, typer.Option(help="Verifier of rows that name none.")] = "tool_call",
    tools: Annotated[Path | None, typer.Option(help="JSON list of tool schemas, for rows that bring none.")] = None,
    outcome: Annotated[
        Literal["passed", "all"], typer.Option(help="'all' keeps trajectories whose outcome failed, too.")
    ] = "passed",
) -> None:
    """Read trajectories of others into our normal form; every row that is refused is written with its reason."""
    from verl_pivot.data.importing import import_rows
    from verl_pivot.data.rows import ImportOptions

    _refuse_overwriting(out, files)
    options = ImportOptions(
        format=format, thinking=thinking, verifier=verifier, tools=_read_tools(tools), outcome=outcome
    )
    report = import_rows(_rows_with_progress(files), out, options)
    _print_import(report, out)


def _read_tools(path: Path | None) -> "tuple[JsonObject, ...]":
    from verl_pivot.data.storage import BadRowError
    from verl_pivot.data.tools import parse_tools

    if path is None:
        return ()
    try:
        return parse_tools(path.read_bytes().decode())
    except (OSError, UnicodeDecodeError, BadRowError) as error:
        raise ConfigError(f"--tools {path} is no JSON list of tool schemas: {error}") from error


def _rows_with_progress(files: list[Path]) -> "Iterator[RawRow]":
    from rich.progress import track

    from verl_pivot.data.storage import num_rows, read_rows

    for file in files:
        yield from track(read_rows(file), description=f"reading {file.name}", total=num_rows(file), transient=True)


def _print_import(report: "ImportReport", out: Path) -> None:
    from rich.console import Console

    from verl_pivot.data.importing import rejected_path

    console = Console()
    table = _counts(f"{report.num_rows} rows")
    table.add_row("kept", str(report.num_kept), f"{report.num_turns} pivot candidates in {out}")
    if report.num_unknown_outcome:
        table.add_row("  of unknown outcome", str(report.num_unknown_outcome), "taken for passed")
    if report.num_calls_without_tools:
        table.add_row("  calls, but no tools", str(report.num_calls_without_tools), "give schemas with --tools")
    table.add_row("not passed", str(report.num_not_passed), "left out; --outcome all keeps them")
    for reason, count in report.rejected.most_common():
        table.add_row(f"rejected: {reason}", str(count), report.examples[reason])
    console.print(table)
    if report.rejected:
        console.print(f"{report.rejected.total()} rejected rows, each with its reason: {rejected_path(out)}")
    if report.num_merged_turns:
        console.print(f"{report.num_merged_turns} times text and the calls right after it were joined to one turn.")
    if report.ignored_columns:
        console.print(
            f"Columns not carried over: {', '.join(sorted(report.ignored_columns))}; "
            "what a verifier needs of them belongs into the object column `metadata`."
        )
    console.print(f"Next: verl-pivot profile {out} --help")


@app.command("select")
def select_command(
    trajectories: Annotated[Path, typer.Argument(help="What `verl-pivot import` wrote.")],
    out: Annotated[Path, typer.Option(help="The pivots.parquet to write.")],
    profile: Annotated[Path | None, typer.Option(help="What `verl-pivot profile` wrote.")] = None,
    lambda_diff: Annotated[float, typer.Option(help="Pivots have a mean reward below this, in (0, 1].")] = 1.0,
    keep: Annotated[
        Literal["pivots", "all"], typer.Option(help="'all' switches the filters on rewards off.")
    ] = "pivots",
    max_per_trajectory: Annotated[
        int | None, typer.Option(help="Keep those of highest reward variance; no cap unless given.")
    ] = None,
    max_prompt_tokens: Annotated[int, typer.Option(help="Longer prompts are refused; 0 is no limit.")] = 4096,
    model: Annotated[str | None, typer.Option(help="Whose tokenizer counts prompts that have no profile.")] = None,
    validation_share: Annotated[float, typer.Option(help="Share of the trajectories, in [0, 1).")] = 0.1,
    seed: Annotated[int, typer.Option(help="Of the split.")] = 0,
    check_verifier: Annotated[
        bool, typer.Option(help="Refuse turns whose verifier refuses the expert's own action.")
    ] = True,
    verifier_module: Annotated[
        list[str] | None, typer.Option(help="Module or .py file that registers verifiers; may be repeated.")
    ] = None,
) -> None:
    """Choose the turns worth training on: mixed rewards, and a mean below lambda_diff."""
    from verl_pivot.data.selecting import (
        CandidateSource,
        OutputPaths,
        gather_candidates,
        profiles_of,
        report_of,
        require_some,
        write_selection,
    )
    from verl_pivot.data.selection import SelectionRule, select
    from verl_pivot.verifiers.registry import load_verifier_modules

    _refuse_overwriting(out, [trajectories, *([profile] if profile else [])])
    settings: dict[str, object] = {
        "trajectories": str(trajectories),
        "profile": None if profile is None else str(profile),
        "model": model,
        "validation_share": validation_share,
        "seed": seed,
        "check_verifier": check_verifier,
    }
    rule = SelectionRule(
        lambda_diff=lambda_diff,
        keep=keep,
        max_per_trajectory=max_per_trajectory,
        max_prompt_tokens=max_prompt_tokens or None,
    )
    if profile is None and keep == "pivots":
        raise ConfigError(
            "the pivots are told by the profile: run `verl-pivot profile` and give its file with "
            "--profile, or take every turn with --keep all"
        )
    load_verifier_modules(verifier_module or [])
    source = CandidateSource(
        profiles=None if profile is None else profiles_of(profile, trajectories),
        count_prompt_tokens=_prompt_counter(model, rule.max_prompt_tokens) if profile is None else None,
        check_verifier=check_verifier,
        seed=seed,
        validation_share=validation_share,
    )
    candidates = gather_candidates(_trajectories_with_progress(trajectories, "reading"), source)
    selection = select(candidates, rule)
    _print_selection(selection.report)
    require_some(selection.report, validation_share=validation_share)
    paths, report = OutputPaths(train=out), report_of(selection, rule, settings)
    write_selection(_trajectories_with_progress(trajectories, "writing"), candidates, selection, paths, report)
    typer.echo(
        f"Wrote {paths.train}, {paths.validation.name}, {paths.report.name}"
        + (f", {paths.picture.name}" if profile else "")
        + "."
    )
    if not selection.report.num_validation:
        typer.echo("The validation split is empty, as asked for: train with data.val_files of your own.")


def _prompt_counter(model: str | None, max_prompt_tokens: int | None) -> "Callable[[Turn], int] | None":
    if model is None:
        if max_prompt_tokens is not None:
            raise ConfigError(
                "prompts are counted in tokens and nothing was profiled: give --model, the policy whose "
                "tokenizer counts them, or --max-prompt-tokens 0 to leave them unchecked"
            )
        return None
    from verl_pivot.rollout.rendering import PromptRenderer

    renderer = PromptRenderer(model)
    return lambda turn: len(renderer.prompt_ids(turn))


def _trajectories_with_progress(path: Path, doing: str) -> "Iterable[Trajectory]":
    from rich.progress import track

    from verl_pivot.data.formats import read_trajectories
    from verl_pivot.data.storage import num_rows

    return track(read_trajectories(path), description=f"{doing} {path.name}", total=num_rows(path), transient=True)


def _print_selection(report: "SelectionReport") -> None:
    from rich.console import Console

    console = Console()
    table = _counts(f"{report.num_candidates} pivot candidates")
    if any(report.num_by_outcome.values()):
        for outcome, count in report.num_by_outcome.items():
            table.add_row(f"profile: {outcome.value}", str(count), "")
    table.add_section()
    for decision, count in report.num_by_decision.items():
        note = f"{report.num_train} train, {report.num_validation} validation" if decision.value == "kept" else ""
        table.add_row(decision.value.replace("_", " "), str(count), note)
    for reason, count in report.num_refused_experts.items():
        table.add_row(f"  expert: {reason}", str(count), report.refused_expert_examples[reason])
    console.print(table)


def _refuse_overwriting(out: Path, inputs: list[Path]) -> None:
    if out.resolve() in [path.resolve() for path in inputs]:
        raise ConfigError(f"--out {out} is one of the inputs; choose another name, so that they are kept")


def _counts(title: str) -> "Table":
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("what became of them", no_wrap=True)
    table.add_column("count", justify="right")
    table.add_column("where, or why", overflow="fold")
    return table


if __name__ == "__main__":
    app()
