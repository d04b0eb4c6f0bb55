"""`verl-pivot inspect`: what it refuses, and that Ctrl-C ends it at once, even while a browser listens."""

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from tests.support.dumped_runs import make_line, write_run
from tests.support.paths import ROOT
from verl_pivot.cli import app


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["none"], "{folder}/none does not exist: give the folder of a run, or a dump of rollouts"),
        (["empty"], "{folder}/empty holds neither Hydra's configuration nor metrics nor dumps of rollouts: give the"),
        (["run", "run"], "a RUN is given twice: each must be a different one"),
        (["run", "run/../run"], "a RUN is given twice: each must be a different one"),
    ],
)
def test_what_is_no_run_is_refused_with_the_remedy(tmp_path: Path, names: list[str], sentence: str) -> None:
    write_run(tmp_path / "run", {1: [make_line()]})
    (tmp_path / "empty").mkdir()

    result = CliRunner().invoke(app, ["inspect", *(str(tmp_path / name) for name in names)])

    assert result.exit_code == 1
    assert f"error: {sentence.format(folder=tmp_path)}" in result.stderr


def test_a_port_that_is_taken_is_named_with_the_remedy(tmp_path: Path) -> None:
    folder = write_run(tmp_path, {1: [make_line()]})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["inspect", str(folder), "--port", str(port)])

    assert (result.exit_code, result.stdout) == (1, "")
    assert f"error: cannot listen on 127.0.0.1:{port}: " in result.stderr
    assert "give another --host or --port" in result.stderr


def test_it_ends_at_once_while_a_browser_listens(tmp_path: Path) -> None:
    folder = write_run(tmp_path, {1: [make_line()]})
    command = [sys.executable, "-m", "verl_pivot.cli", "inspect", str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        base, token = address.split("/?token=")
        with httpx.stream("GET", f"{base}/api/events", params={"token": token}, timeout=30.0) as events:
            assert next(events.iter_lines()).startswith("data: ")
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=50) == 0

    assert time.monotonic() - began < 30.0  # aiohttp by itself would wait for 60 s
