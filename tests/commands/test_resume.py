"""Import and select killed with SIGKILL: run again, they write the same bytes as an uninterrupted run."""

import hashlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

NUM_ROWS = 5000
KILLING_FORMAT = """
import os, signal
from verl_pivot.data.messages import parse_message
from verl_pivot.formats.conversation import Conversation
from verl_pivot.formats.registry import register_format

@register_format("killing", detect=lambda row: "turns" in row)
def read_killing(row):
    if str(row["id"]) == os.environ.get("KILL_AT"):
        os.kill(os.getpid(), signal.SIGKILL)
    return Conversation(messages=tuple(map(parse_message, row["turns"])), id=str(row["id"]), columns=frozenset(row))
"""
KILLING_VERIFIER = """
import os, signal
from verl_pivot.types import Verdict
from verl_pivot.verifiers.registry import register

@register("killing")
async def killing(action, turn):
    if turn.trajectory_id == os.environ.get("KILL_AT"):
        os.kill(os.getpid(), signal.SIGKILL)
    return Verdict(score=1.0, reason="accepted")
"""


def test_ctrl_c_gives_one_line_that_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("{}\n")
    (tmp_path / "stop.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    command = ["import", "in.jsonl", "--out", "out.jsonl", "--format-module", "stop.py"]

    done = subprocess.run(
        [sys.executable, "-m", "verl_pivot.cli", *command], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip

    said = "Stopped. The same command continues where it stopped when it is run again.\n"
    assert (done.returncode, done.stderr) == (130, said)


def write_rows(path: Path) -> None:
    with path.open("w") as file:
        for number in range(NUM_ROWS):
            turns = [{"role": "user", "content": f"What is {number}?"}, {"role": "assistant", "content": "A number."}]
            row = {"id": number, "turns": turns if number % 10 else []}
            file.write(json.dumps(row) + "\n")


def run(folder: Path, *command: object, kill_at: object = "") -> int:
    """Run a command; returns its exit code, or the negative number of the signal that killed it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "KILL_AT": str(kill_at)}
    done = subprocess.run(
        [sys.executable, "-m", "verl_pivot.cli", *map(str, command)],
        capture_output=True, text=True, env=environment, cwd=folder, check=False,
    )  # fmt: skip
    return done.returncode


def digests(folder: Path, *names: str) -> dict[str, str]:
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


def import_rows(folder: Path, kill_at: object = "", workers: int = 1) -> int:
    if not (folder / "killing.py").exists():  # writing the module again would restart the import
        (folder / "killing.py").write_text(KILLING_FORMAT)
        (folder / "verifier.py").write_text(KILLING_VERIFIER)
    verifier = ("--verifier", "killing", "--verifier-module", "verifier.py")
    options = ("--format-module", "killing.py", *verifier, "--workers", workers)
    return run(folder, "import", "in.jsonl", "--out", "out.jsonl", *options, kill_at=kill_at)


@pytest.mark.heavy
def test_a_killed_import_continues_and_writes_the_same_bytes(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl")
    outputs = ("out.jsonl", "out.jsonl.rejected.jsonl")
    assert import_rows(tmp_path, workers=2) == 0
    expected = digests(tmp_path, *outputs)
    (tmp_path / "out.jsonl").unlink()

    assert import_rows(tmp_path, kill_at=10) == -signal.SIGKILL
    assert import_rows(tmp_path, kill_at=4999) == -signal.SIGKILL
    with sqlite3.connect(tmp_path / "out.jsonl.unfinished" / "journal.sqlite") as database:
        (state,) = database.execute("select value from state where name = 'state'").fetchone()
    database.close()
    assert not (tmp_path / "out.jsonl").exists()
    assert import_rows(tmp_path) == 0

    assert json.loads(state)["num_rows"] == 4096
    assert digests(tmp_path, *outputs) == expected
    assert not (tmp_path / "out.jsonl.unfinished").exists()


def test_an_interrupted_import_starts_again_if_the_rows_have_changed(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl")
    assert import_rows(tmp_path, kill_at=4999) == -signal.SIGKILL
    lines = (tmp_path / "in.jsonl").read_text().splitlines()
    (tmp_path / "in.jsonl").write_text("\n".join(lines[1:4]))

    assert import_rows(tmp_path) == 0

    ids = [json.loads(line)["id"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert ids == ["1", "2", "3"]


def test_an_interrupted_import_starts_again_if_a_module_on_the_path_has_changed(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl")
    (tmp_path / "own_formats.py").write_text(KILLING_FORMAT)
    command = ("import", "in.jsonl", "--out", "out.jsonl", "--format-module", "own_formats", "--workers", 1)
    assert run(tmp_path, *command, kill_at=4999) == -signal.SIGKILL
    (tmp_path / "own_formats.py").write_text(KILLING_FORMAT.replace('id=str(row["id"])', "id=f\"row {row['id']}\""))

    assert run(tmp_path, *command) == 0

    first = (tmp_path / "out.jsonl").read_text().splitlines()[0]
    assert json.loads(first)["id"] == "row 1"


def select(folder: Path, kill_at: object = "", workers: int = 1) -> int:
    options = ("--keep", "all", "--max-prompt-tokens", 0, "--verifier-module", "verifier.py", "--workers", workers)
    return run(folder, "select", "out.jsonl", "--out", "pivots.parquet", *options, kill_at=kill_at)


@pytest.fixture(scope="module")
def selected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the outputs of an uninterrupted selection."""
    folder = tmp_path_factory.mktemp("selected")
    write_rows(folder / "in.jsonl")
    (folder / "verifier.py").write_text(KILLING_VERIFIER)
    assert import_rows(folder, workers=2) == 0
    assert select(folder, workers=2) == 0
    return folder


@pytest.mark.heavy
@pytest.mark.parametrize("kill_at", [7, 4999])
def test_a_killed_selection_continues_and_writes_the_same_bytes(selected: Path, tmp_path: Path, kill_at: int) -> None:
    outputs = ("pivots.parquet", "pivots.validation.parquet", "pivots.report.json")
    expected = digests(selected, *outputs)
    shutil.copytree(selected, tmp_path, dirs_exist_ok=True)
    (tmp_path / "pivots.parquet").unlink()

    assert select(tmp_path, kill_at=kill_at) == -signal.SIGKILL
    with duckdb.connect(str(tmp_path / "pivots.parquet.unfinished" / "tables.duckdb")) as database:
        (num_done,) = database.execute("select count(*) from candidates").fetchall()[0]
    assert not (tmp_path / "pivots.parquet").exists()
    assert select(tmp_path) == 0

    assert num_done == (0 if kill_at == 7 else 4352)
    assert digests(tmp_path, *outputs) == expected
    assert not (tmp_path / "pivots.parquet.unfinished").exists()
