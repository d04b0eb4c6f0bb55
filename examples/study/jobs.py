"""Commands -> processes that run side by side, at most a given number at once."""

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from verl_pivot.data.files import make_folder

_POLL_SECONDS = 0.5
_TERMINATE_SECONDS = 20.0
"""Seconds that a terminated process has to end its own child processes before it is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One command."""

    name: str
    command: Sequence[str]
    log: Path
    """File for the output of the command."""


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def run_jobs(jobs: Sequence[Job], num_jobs: int, console: Console) -> None:
    """Run all jobs in their order, at most `num_jobs` at once.

    After a job fails, no further job begins. Running jobs are waited for, since their work is kept.

    Raises:
        SystemExit: If a job fails, with the end of what it printed.
    """
    waiting, running = list(jobs), dict[str, tuple[Job, subprocess.Popen[bytes]]]()
    failed: list[Job] = []
    try:
        while running or (waiting and not failed):
            while waiting and not failed and len(running) < num_jobs:
                job = waiting.pop(0)
                console.print(f"{job.name} begins; it prints into {job.log}", highlight=False, markup=False)
                running[job.name] = (job, _begin(job))
            time.sleep(_POLL_SECONDS)
            for name, (job, process) in list(running.items()):
                if process.poll() is not None:
                    del running[name]
                    console.print(f"{name} ended with exit code {process.returncode}", highlight=False, markup=False)
                    failed += [job] if process.returncode else []
    finally:
        _end([process for _, process in running.values()])
    if failed:
        raise SystemExit("\n".join(f"{job.name} failed; the end of {job.log}:\n{_tail(job.log)}" for job in failed))


def _begin(job: Job) -> "subprocess.Popen[bytes]":
    make_folder(job.log.parent)
    with job.log.open("wb") as log:
        return subprocess.Popen(job.command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


def _end(processes: "Sequence[subprocess.Popen[bytes]]") -> None:
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _TERMINATE_SECONDS
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])
