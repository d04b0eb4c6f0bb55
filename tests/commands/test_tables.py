"""Tables that commands, examples and benchmarks print: how wide they are, and text that looks like markup in them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from verl_pivot.cli import app
from verl_pivot.commands.profile_display import print_summary
from verl_pivot.commands.tables import counts_table, message_console, table_console
from verl_pivot.profiling.profiler import Totals
from verl_pivot.profiling.running import FinishedProfile
from verl_pivot.profiling.summary import summarize


def test_a_table_in_a_pipe_is_wider_than_80_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)

    assert table_console().width == 160


def test_a_width_that_the_user_sets_holds_in_a_pipe_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")

    assert table_console().width == 72


def test_text_in_brackets_or_colons_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    table = counts_table("rows in [red]a[/x].jsonl")
    table.add_row("[red]hidden[bold]", "1", "[/x] :smile:")

    table_console().print(table)
    message_console().print("[/x] of [red]hidden[bold] :smile:")

    printed = capsys.readouterr()
    assert [line.split() for line in printed.out.splitlines() if "[" in line] == [
        ["rows", "in", "[red]a[/x].jsonl"],
        ["│", "[red]hidden[bold]", "│", "1", "│", "[/x]", ":smile:", "│"],
    ]
    assert printed.err == "[/x] of [red]hidden[bold] :smile:\n"


MESSAGES = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "[/x] [red]hidden[bold]"}]


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "300"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_commands_print_ids_reasons_and_paths_with_brackets_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "[red]hidden[bold]" / "[x"
    folder.mkdir(parents=True)
    source, trajectories = folder / "in.jsonl", folder / "t.jsonl"
    rows = [{"id": f"[/x]{number}", "messages": MESSAGES, "passed": number > 0} for number in range(3)]
    source.write_text("".join(f"{json.dumps(row)}\n" for row in [*rows, {"id": "[/y]", "messages": "[/z]"}]))
    questions = folder / "q.jsonl"
    questions.write_text('{"question": "Who?", "answers": ["Ann"]}\n{"question": "[/x]", "answers": []}\n')

    imported = run("import", source, "--out", trajectories, "--outcome", "all", "--workers", 1)
    filtered = run("filter", trajectories, "--out", folder / "f.jsonl", "--workers", 1)
    asked = run("qa-rows", questions, "--out", folder / "q.parquet", "--data-source", "[/s]")
    exported = run("export", trajectories, "--to", "verl", "--out", folder / "e.parquet")
    selected = run(
        "select",
        trajectories,
        "--keep",
        "all",
        "--max-prompt-tokens",
        0,
        "--validation-share",
        0,
        "--workers",
        1,
        "--out",
        folder / "p.parquet",
    )

    assert f"1 rejected rows, each with its reason: {folder}/t.jsonl.rejected.jsonl" in imported
    assert f"{folder}/in.jsonl, line 4" in imported
    assert "[/x]0" in filtered
    assert "[/s]" in asked
    assert f"{folder}/q.jsonl, line 2" in asked
    assert f"3rowsin{folder}/e.parquet" in "".join(exported.split())  # a title is as wide as its table
    assert f"Wrote {folder}/p.parquet" in selected


def test_the_profile_is_named_with_its_brackets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = summarize([])

    print_summary(FinishedProfile(summary, 1.0, Totals()), Totals(), out=Path("[red]p[/x].jsonl"))

    assert "Profile [red]p[/x].jsonl" in capsys.readouterr().out
