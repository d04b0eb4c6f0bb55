"""`verl-pivot report`: what it writes, prints and refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.dumped_runs import make_line, write_run
from verl_pivot.cli import app
from verl_pivot.profiling.profiles import KIND


def test_it_writes_one_file_and_says_what_it_read(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", {1: [make_line("a_0_0"), make_line("b_0_0", 0.0)]})
    out = tmp_path / "new" / "report.html"

    result = CliRunner().invoke(app, ["report", str(folder), "--out", str(out)])

    assert (result.exit_code, result.output) == (0, f"Wrote {out}: 1 run, 2 rollouts.\n")
    assert out.read_text().startswith("<!DOCTYPE html>")
    assert list(out.parent.iterdir()) == [out]


def test_the_numbers_alone_are_one_json_object(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", {1: [make_line("a_0_0", 0.5)]}, [{"step": 1, "actor/lr": 0.25}])

    result = CliRunner().invoke(app, ["report", str(folder), "--json", "--rollouts", "0"])

    found = json.loads(result.stdout)
    assert found["runs"][0]["metrics"] == {"actor/lr": [[1, 0.25]]}
    assert found["runs"][0]["parts"][0]["scores"] == {"1": 0.5}
    assert found["rollouts"] == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none", "--json"], "{folder}/none does not exist: give the folder of a run, or a dump of rollouts"),
        (["empty", "--json"], "{folder}/empty holds neither Hydra's configuration nor metrics nor dumps of rollouts"),
        (["blank", "--json"], "{folder}/blank has no settings, metrics or rollouts to report"),
        (["notes.txt", "--json"], "{folder}/notes.txt has no settings, metrics or rollouts to report"),
        (
            ["profile.jsonl", "--json"],
            "{folder}/profile.jsonl comes from a stage before training (profile), but a report",
        ),
        (["run", "pivots.parquet", "--json"], "look at the file with `verl-pivot inspect {folder}/pivots.parquet`"),
        (["run", "run/../run", "--json"], "a RUN is given twice: each must be a different one"),
        (["run"], "give --out report.html, the file to write, or --json for the numbers alone"),
        (["run", "--json", "--out", "r.html"], "--json prints the numbers and writes no file: leave out --json, or"),
        (["run", "--out", "r.pdf"], "HTML is written, and its name must end in .html; give {folder}/r.html"),
        ([*(f"run/{number}" for number in range(13)), "--json"], "13 runs are given: a report compares at most 12"),
    ],
)
def test_what_cannot_be_reported_is_refused_with_the_remedy(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    write_run(tmp_path / "run", {1: [make_line()]})
    write_run(tmp_path / "blank", {1: []})
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("no rollouts\n")
    (tmp_path / "profile.jsonl").write_text(json.dumps({"kind": KIND}) + "\n")
    (tmp_path / "pivots.parquet").touch()

    words = [each if each.startswith("--") else str(tmp_path / each) for each in arguments]
    result = CliRunner().invoke(app, ["report", *words])

    assert (result.exit_code, result.stdout) == (1, "")
    assert sentence.format(folder=tmp_path) in result.stderr
    assert not (tmp_path / "r.html").exists()
