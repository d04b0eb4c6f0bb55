"""Program and modules -> seconds of a bare fork of a warm interpreter: a lower bound for a zygote.

As a child process, this file imports the given modules and warms up as lane/zygote.py does. Then it reads lines with a
number of forks, and answers each line with the times of its forks. A fork has no namespaces, limits or pipes: fork, run
the code with its output to /dev/null, exit, wait.
"""

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from verl_pivot.sandbox.lane import syscalls
from verl_pivot.sandbox.lane.zygote import _FIRST_PRINT, reseed

_STOP_SECONDS = 10.0


class ForkServer:
    """A child process that has imported `modules` and forks on request.

    Example:
        with ForkServer(["json"], "print(1)") as forks:
            seconds = forks.measure(100)
    """

    def __init__(self, modules: Sequence[str], code: str, environment: dict[str, str]) -> None:
        paths = [str(Path(__file__).parents[3]), *(path for path in sys.path if path)]
        main = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
        main += "from verl_pivot.sandbox.bench.fork import main; main(json.loads(sys.argv[2]), sys.argv[3])"
        options = ["-P", "-s", "-S", "-B", "-c", main, json.dumps(paths), json.dumps(list(modules)), code]
        self._process = subprocess.Popen(
            [sys.executable, *options], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def measure(self, num_forks: int) -> list[float]:
        """Fork one child after the other; returns the seconds of each. Blocks."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{num_forks}\n")
        self._process.stdin.flush()
        seconds: list[float] = json.loads(self._process.stdout.readline())
        return seconds


def main(modules: Sequence[str], code: str) -> None:
    """Serve requests until stdin ends."""
    for name in modules:
        __import__(name)
    reseed()
    exec(compile(_FIRST_PRINT, "warm", "exec"), {"__name__": "warm"})
    null = os.open(os.devnull, os.O_WRONLY)
    gc.collect()
    gc.freeze()
    syscalls.collapse_memory()
    for line in sys.stdin:
        print(json.dumps([_time_fork(code, null) for _ in range(int(line))]), flush=True)


def _time_fork(code: str, null: int) -> float:
    begin = time.perf_counter()
    pid = syscalls.fork()
    if pid == 0:
        os.dup2(null, 1)
        exec(compile(code, "main.py", "exec"), {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    seconds = time.perf_counter() - begin
    if status != 0:
        raise RuntimeError(f"the forked program ended with status {status}")
    return seconds
