"""Processes that the kernel ends when memory runs out: programs, and neither lanes nor a trainer beside the service.

A control group with a limit on memory stands for a machine: the kernel chooses among the group's processes as it would
among all processes, by memory and `oom_score_adj`.
"""

import contextlib
import errno
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.support.sandbox_services import IS_ROOT, Kind, parts, start_service
from verl_pivot.errors import SandboxError
from verl_pivot.sandbox.bubblewrap.group_tree import own_groups
from verl_pivot.sandbox.execution import MIB, Limits

GROUPS = own_groups() if IS_ROOT else None
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(
        GROUPS is None or GROUPS.version != 1 or not os.access(GROUPS.memory, os.W_OK),
        reason="only root can make a control group that stands for a machine, here in version 1",
    ),
]
MACHINE_BYTES = 1000 * MIB
TRAINER_BYTES = 600 * MIB
"""More than half of MACHINE_BYTES."""
LIMITS = Limits(wall_seconds=60.0, cpu_seconds=60, memory_bytes=2000 * MIB, tmp_bytes=MIB)
GROWS = "held = []\nwhile True: held.append(b'x' * (1 << 20))"
GROWS_IN_PARTS = """
import os, time
for _ in range(15):
    if os.fork() == 0:
        held = [b'x' * (1 << 20) for _ in range(60)]
        break
time.sleep(4)
"""


@contextlib.contextmanager
def small_machine() -> Iterator[None]:
    """Put this process, and what it starts, into a control group whose limit is MACHINE_BYTES."""
    assert GROUPS is not None
    group = Path(GROUPS.memory, f"small-machine-{os.getpid()}")
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(MACHINE_BYTES))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (GROUPS.memory / "cgroup.procs").write_text(str(os.getpid()))
        _remove(group)


def _remove(group: Path) -> None:
    """Remove a control group whose last processes the kernel is still ending."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return group.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


@contextlib.contextmanager
def trainer() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that holds TRAINER_BYTES of memory and takes no more."""
    code = f"held = b'x' * {TRAINER_BYTES}\nprint('ready', flush=True)\ninput()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield process
        finally:
            process.kill()


def run_until_memory_is_out(kind: Kind, code: str) -> None:
    """Run a program that takes all memory of a small machine; the trainer and the lanes must outlive it."""
    with small_machine():
        running = start_service(kind, lanes=1)
        try:
            before = parts(running)
            with trainer() as process:
                with contextlib.suppress(SandboxError):  # "the machine ran out of memory", after further attempts
                    running.run(code, limits=LIMITS)
                assert process.poll() is None
            assert running.output("print('well')") == "well\n"
            assert (parts(running).supervisors, parts(running).zygotes) == (before.supervisors, before.zygotes)
        finally:
            running.stop()


@pytest.mark.parametrize("kind", [Kind.ZYGOTE, Kind.BWRAP_EXEC, Kind.BY_ROOT])
@pytest.mark.parametrize("code", [GROWS, GROWS_IN_PARTS], ids=["one process", "many processes"])
def test_h45_programs_go_before_lanes_and_a_trainer_of_half_the_machine_when_memory_runs_out(
    kind: Kind, code: str
) -> None:
    # In a fresh process: pytest's own may be the largest of the small machine, and the kernel would end it.
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as executor:
        executor.submit(run_until_memory_is_out, kind, code).result()
