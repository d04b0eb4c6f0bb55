"""Next commands that commands print: they run as they are printed, in folders of any name."""

import json
import shlex
from pathlib import Path

from typer.testing import CliRunner

from tests.support.factories import make_turn
from verl_pivot.cli import app
from verl_pivot.commands.next_steps import next_override
from verl_pivot.exports.nemo_gym_rows import ReferenceScores, turn_to_nemo_gym


def run(words: list[str]) -> list[str]:
    result = CliRunner().invoke(app, words, env={"COLUMNS": "400"})
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_the_selection_by_published_scores_runs_as_it_is_printed(tmp_path: Path) -> None:
    folder = tmp_path / "Ann's new runs"
    folder.mkdir()
    row = turn_to_nemo_gym(make_turn(), reference=ReferenceScores(scores=(0.0, 1.0)))
    (folder / "in.jsonl").write_text(json.dumps(row) + "\n")

    lines = run(["import", str(folder / "in.jsonl"), "--out", str(folder / "t.jsonl"), "--workers", "1"])
    (printed,) = (line for line in lines if "To select from them: " in line)
    program, *words = shlex.split(printed.partition("To select from them: ")[2])

    assert (program, words[-2:]) == ("verl-pivot", ["--model", "$MODEL"])
    lines = run([*words[:-2], "--max-prompt-tokens", "0", "--validation-share", "0", "--workers", "1"])
    assert lines[-2].startswith(f"Wrote {folder}/pivots.parquet")


def test_a_path_in_an_override_is_quoted_for_the_shell_and_for_hydra() -> None:
    assert next_override("data.train_files", Path("runs/hard.parquet")) == "data.train_files=runs/hard.parquet"
    assert shlex.split(next_override("data.train_files", Path("my runs/Ann's.parquet"))) == [
        r"data.train_files='my runs/Ann\'s.parquet'"
    ]
