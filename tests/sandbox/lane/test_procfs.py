"""Memory of a pod, read from /proc of real processes."""

import subprocess
import sys

import pytest

from verl_pivot.sandbox.execution import MIB
from verl_pivot.sandbox.lane.procfs import ProcessSnapshot

NUM_CHILDREN = 12
FORKED = f"""
import os
held = b"x" * (60 << 20)
for _ in range({NUM_CHILDREN}):
    if os.fork() == 0:
        os.read(0, 1)
        os._exit(0)
print(flush=True)
os.read(0, 1)
"""
"""Process whose children share all that they hold with it, as forks of a zygote do."""
EXECUTED = f"""
import subprocess, sys
code = "import os; held = b'x' * (20 << 20); print(flush=True); os.read(0, 1)"
for _ in range({NUM_CHILDREN}):
    child = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE)
    child.stdout.readline()
print(flush=True)
sys.stdin.read(1)
"""
"""Process whose children hold 20 MiB each in an interpreter of their own."""


@pytest.mark.parametrize(("code", "least_mib", "most_mib"), [(FORKED, 0, 99), (EXECUTED, 240, 600)])
def test_children_have_the_zygotes_memory_for_free_as_long_as_they_share_it(
    code: str, least_mib: int, most_mib: int
) -> None:
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        sample = ProcessSnapshot().sample(parent.pid, None, shared_bytes=64 * MIB, limit_bytes=100 * MIB)
        parent.communicate(b"." * (NUM_CHILDREN + 1))

    assert len(sample.pids) == NUM_CHILDREN
    assert least_mib * MIB <= sample.memory_bytes <= most_mib * MIB
