"""Files that commands write: inputs are never overwritten, and names that no file can have are refused."""

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
