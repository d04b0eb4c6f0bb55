"""Files that commands write: inputs are never overwritten, and names that no file can have are refused."""

import os
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from verl_pivot.cli import app


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "250"})


@pytest.mark.parametrize(
    ("command", "overwritten"),
    [
        ("import a.jsonl --out a.jsonl", "--out a.jsonl"),
        ("import o.jsonl.rejected.jsonl --out o.jsonl", "o.jsonl.rejected.jsonl"),
        ("import o.published-profile.jsonl --out o.jsonl", "o.published-profile.jsonl"),
        ("import a.jsonl --tools t.json --out t.json", "--out t.json"),
        ("import a.jsonl --verifier-module v.py --out v.py", "--out v.py"),
        ("filter t.jsonl --rules r.yaml --out r.yaml", "--out r.yaml"),
        ("filter o.jsonl.dropped.jsonl --out o.jsonl", "o.jsonl.dropped.jsonl"),
        ("filter t.jsonl --rules o.jsonl.report.json --out o.jsonl", "o.jsonl.report.json"),
        ("filter t.jsonl --profile o.jsonl.profile.jsonl --out o.jsonl", "o.jsonl.profile.jsonl"),
        ("profile t.jsonl --model m --out t.jsonl", "--out t.jsonl"),
        ("select o.validation.parquet --keep all --out o.parquet", "o.validation.parquet"),
        ("select t.jsonl --profile o.report.json --out o.parquet", "o.report.json"),
        ("hard-set o.png --rollouts r.jsonl --out o.parquet", "o.png"),
        ("export e.jsonl --to nemo-gym --profile p.jsonl --out p.jsonl", "--out p.jsonl"),
        ("process label d.jsonl --rows o.pairs.parquet --pairs 2 --out o.parquet", "o.pairs.parquet"),
        ("process label d.jsonl --rows r.jsonl --principles p.parquet --out p.parquet", "--out p.parquet"),
        ("workflows induce d.jsonl --rows r.jsonl --out r.jsonl", "--out r.jsonl"),
        ("report run --profile p.html --out p.html", "--out p.html"),
        ("tools report d.png --plot d.png", "--plot d.png"),
        ("route simulate --recorded d.jsonl --out d.jsonl", "--out d.jsonl"),
        ("route simulate --recorded d.jsonl --before b.jsonl --out b.jsonl", "--out b.jsonl"),
        ("synthesize rejection --tasks s/tasks.parquet --out s", "s/tasks.parquet"),
        ("synthesize loop --trajectories s/round-2/trajectories.jsonl --rounds 2 --out s", "trajectories.jsonl"),
    ],
)
def test_no_file_that_a_command_writes_is_one_that_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, overwritten: str
) -> None:
    monkeypatch.chdir(tmp_path)

    result = run(*command.split())

    assert (result.exit_code, list(tmp_path.iterdir())) == (1, []), result.output
    assert overwritten in result.stderr
    assert result.stderr.endswith(" is one of the inputs; choose another name, so that they are kept\n")


COMMANDS = (
    "import a.jsonl",
    "filter t.jsonl",
    "profile t.jsonl --model m",
    "select t.jsonl --keep all",
    "hard-set p.parquet --rollouts r.jsonl",
    "export e.jsonl --to jsonl",
    "qa-rows q.jsonl",
    "process label d.jsonl --rows r.parquet",
    "workflows induce d.jsonl",
    "report run",
    "route simulate --recorded d.jsonl",
    "environment-rows verifiers:wordle",
    "mcp scenarios tools.yaml --base-url http://a --model m",
    "play tools.yaml --human --prompt Hi",
)
OF_FOLDERS = ("index d.jsonl", "synthesize rejection --tasks t.jsonl", "next-stage run")


@pytest.mark.parametrize("command", [*COMMANDS, *OF_FOLDERS])
def test_an_output_without_a_name_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)

    for out, shown in (("", "."), (".", "."), ("..", ".."), ("a/..", "a/..")):
        result = run(*command.split(), "--out", out)
        assert (result.exit_code, result.stderr) == (
            1,
            f"error: the output '{shown}' has no name: give the name to write, such as {Path(out) / 'new'}\n",
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_pipe_or_a_folder_as_output_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.parquet")
    Path("folder.parquet").mkdir()

    for name, what in (("pipe.parquet", "a device or pipe"), ("folder.parquet", "a folder")):
        result = run(*command.split(), "--out", name)
        assert (result.exit_code, result.stderr) == (
            1,
            f"error: {name} is {what}, which no file replaces: give --out the name of a file\n",
        )


def test_a_tilde_after_an_equals_sign_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Path("q.jsonl").write_text('{"question": "Who?", "answers": ["Ann"]}\n')

    result = run("qa-rows", "q.jsonl", "--out=~/q.parquet")

    assert f"Wrote {tmp_path}/home/q.parquet: 1 rows." in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "q.jsonl"]
    assert run("qa-rows", "q.jsonl", "--out=~no-one-here/q.parquet").stderr == (
        "error: ~no-one-here/q.parquet: there is no such home folder; write its whole path\n"
    )
