"""`verl-pivot import`: recorded trajectories in many formats -> trajectories.jsonl, and a file of the refused rows."""

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from verl_pivot.commands.next_steps import message_turns_remark, next_command
from verl_pivot.commands.options import json_object, out_of_json_lines, refuse_overwriting
from verl_pivot.commands.tables import counts_table, printable, table_console
from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from verl_pivot.formats.import_sink import ImportReport
    from verl_pivot.formats.row_import import ImportOptions
    from verl_pivot.types import JsonObject


def import_command(
    files: Annotated[list[Path], typer.Argument(help="Files of JSON lines, JSON (both may be compressed) or parquet.")],
    out: Annotated[Path, typer.Option(callback=out_of_json_lines, help="The trajectories.jsonl to write.")],
    format: Annotated[
        str | None,
        typer.Option(
            help="Format of all rows; by default it is recognized row by row. An unknown name lists all formats."
        ),
    ] = None,
    thinking: Annotated[
        Literal["keep", "strip"], typer.Option(help="Whether to keep the reasoning in the assistant's messages.")
    ] = "keep",
    verifier: Annotated[str, typer.Option(help="Verifier of the rows that do not name one.")] = "tool_call",
    verifier_options: Annotated[
        str, typer.Option(help='JSON object with options of that verifier, such as {"mode": "name_only"}.')
    ] = "{}",
    tools: Annotated[
        Path | None, typer.Option(help="JSON file with a list of tool schemas, for rows without schemas.")
    ] = None,
    outcome: Annotated[
        Literal["passed", "all"], typer.Option(help="Which trajectories to keep; 'all' keeps those that failed, too.")
    ] = "passed",
    format_module: Annotated[
        list[str] | None, typer.Option(help="Module or .py file that registers formats of your own; repeatable.")
    ] = None,
    verifier_module: Annotated[
        list[str] | None, typer.Option(help="Module or .py file that registers verifiers of your own; repeatable.")
    ] = None,
    allow_no_tools: Annotated[
        bool,
        typer.Option(
            "--allow-no-tools",
            help="Keep trajectories that call tools but have no schemas, which are otherwise refused.",
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Ask each verifier twice about the expert's action, and report what it cannot judge."
        ),
    ] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default one per core.")] = None,
) -> None:
    """Convert recorded trajectories to trajectories.jsonl. Refused rows are written to a file beside it, with reasons.

    An interrupted import continues when it is run again.

    Example: verl-pivot import runs/*.jsonl --tools tools.json --out trajectories.jsonl
    """
    from verl_pivot.data.parallel import num_cores
    from verl_pivot.formats.importing import import_files, rejected_path
    from verl_pivot.formats.registry import format_named, load_format_modules
    from verl_pivot.formats.row_import import ImportOptions
    from verl_pivot.profiling.published import published_profile_path
    from verl_pivot.verifiers.registry import check_verifier, load_verifier_modules

    outputs = [out, rejected_path(out), published_profile_path(out)]
    refuse_overwriting(outputs, [*files, tools, *(format_module or []), *(verifier_module or [])])
    options = ImportOptions(
        format=format,
        format_modules=tuple(format_module or ()),
        thinking=thinking,
        verifier=verifier,
        verifier_options=json_object(verifier_options, "--verifier-options"),
        tools=_read_tools(tools),
        outcome=outcome,
        allow_no_tools=allow_no_tools,
        verifier_modules=tuple(verifier_module or ()),
    )
    load_format_modules(options.format_modules)
    load_verifier_modules(options.verifier_modules)
    check_verifier(options.verifier, options.verifier_options)
    if format is not None:
        format_named(format)
    with _progress(files) as on_rows:
        report = import_files(files, out, options, workers=workers or num_cores(), on_rows=on_rows)
    _print_import(report, out, options)
    if check:
        _print_check(out, options, workers or num_cores())


def _print_check(out: Path, options: "ImportOptions", workers: int) -> None:
    from verl_pivot.commands.progress import progress_bar
    from verl_pivot.selection.expert_checks import check_experts

    with progress_bar("experts", None) as on_turns:
        report = check_experts(out, options.verifier_modules, workers=workers, on_turns=on_turns)
    table = counts_table(f"{report.num_turns} expert actions, each judged twice by its verifier")
    table.add_row("accepted", str(report.num_accepted), "")
    for (reason, kind), count in report.others.most_common():
        table.add_row(f"{kind}: {reason}", str(count), printable(report.examples[reason, kind]))
    table_console().print(table)


def _read_tools(path: Path | None) -> "tuple[JsonObject, ...]":
    from verl_pivot.data.json_values import BadRowError
    from verl_pivot.data.tool_schemas import parse_tools

    if path is None:
        return ()
    try:
        return parse_tools(path.read_bytes().decode())
    except (OSError, UnicodeDecodeError, BadRowError) as error:
        raise ConfigError(f"--tools {path} is not a JSON list of tool schemas: {error}") from error


@contextmanager
def _progress(files: list[Path]) -> "Iterator[Callable[[int], None]]":
    """Show the progress over all files; yields the function to call with a number of finished rows."""
    from verl_pivot.commands.progress import progress_bar
    from verl_pivot.data.files import num_rows

    counts = [num_rows(file) for file in files]
    total = None if None in counts else sum(count or 0 for count in counts)
    with progress_bar("rows", total) as on_rows:
        yield on_rows


def _print_import(report: "ImportReport", out: Path, options: "ImportOptions") -> None:
    console = table_console()
    table = counts_table(f"{report.num_rows} rows")
    for name, count in report.formats.most_common():
        table.add_row(f"read as {name}", str(count), "")
    table.add_section()
    table.add_row("kept", str(report.num_kept), f"{report.num_turns} pivot candidates in {out}")
    if report.num_unknown_outcome:
        table.add_row("  of unknown outcome", str(report.num_unknown_outcome), "counted as passed")
    if report.num_calls_without_tools:
        table.add_row(
            "  with calls, but without schemas", str(report.num_calls_without_tools), "add schemas with --tools"
        )
    table.add_row("not passed", str(report.num_not_passed), "left out; --outcome all keeps them")
    for reason, count in report.rejected.most_common():
        table.add_row(f"rejected: {reason}", str(count), printable(report.examples[reason]))
    console.print(table)
    for line in _remarks(report, out, options):
        console.print(printable(line), highlight=False, soft_wrap=True)
    allow = ["--allow-no-tools"] if report.num_calls_without_tools else []
    words = ["profile", str(out), "--out", str(out.with_name("profile.jsonl")), *_module_words(options), *allow]
    typer.echo(f'Next: {next_command(words)} --model "$MODEL"  # MODEL: your policy, a folder or a Hugging Face name')


def _module_words(options: "ImportOptions") -> list[str]:
    return [word for module in options.verifier_modules for word in ("--verifier-module", module)]


def _remarks(report: "ImportReport", out: Path, options: "ImportOptions") -> "Iterator[str]":
    from verl_pivot.formats.importing import rejected_path
    from verl_pivot.profiling.published import published_profile_path

    if report.rejected:
        yield f"{report.rejected.total()} rejected rows, each with its reason: {rejected_path(out)}"
    if report.num_merged_turns:
        yield f"Joined a text and the calls right after it into one turn: {report.num_merged_turns} times."
    if report.ignored_columns:
        yield (
            f"Columns that were ignored: {', '.join(sorted(report.ignored_columns))}. "
            "If a verifier needs them, put them into the column `metadata`, a JSON object."
        )
    if report.num_published:
        words = ["select", str(out), "--profile", str(published_profile_path(out))]
        words += ["--out", str(out.with_name("pivots.parquet")), *_module_words(options)]
        select = f'{next_command(words)} --model "$MODEL"'  # its tokenizer counts the tokens of prompts
        yield f"{report.num_published} turns came with published scores. To select from them: {select}"
    if report.num_message_turns:
        yield message_turns_remark(report.num_message_turns, report.num_turns)
