"""This machine -> seconds that two processes take to wake each other: a lower bound for any answer of a service."""

import os
import subprocess
import sys
import time

from verl_pivot.sandbox.bench.report import median

_NUM_ROUNDS = 500
_ECHO = "import os\nwhile os.read(0, 1): os.write(1, b'.')"


def round_trip_seconds() -> float:
    """Median seconds to write a byte to another process and to read its answer. Blocks for some milliseconds."""
    with subprocess.Popen([sys.executable, "-c", _ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as echo:
        assert echo.stdin is not None
        assert echo.stdout is not None
        there, back = echo.stdin.fileno(), echo.stdout.fileno()
        seconds = []
        for _ in range(_NUM_ROUNDS):
            begin = time.perf_counter()
            os.write(there, b".")
            os.read(back, 1)
            seconds.append(time.perf_counter() - begin)
        echo.stdin.close()
    return median(seconds)
