"""A Python program, run in the background during other checks -> its last line, or why there is none."""

import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

TIMEOUT_SECONDS = 180.0
"""Time that a program may take, from its start: 15 s on an idle machine, a minute and more on a busy one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How a program ended."""

    succeeded: bool
    line: str
    """Last line of its output, or of its errors if it failed."""


class BackgroundProgram:
    """A program that starts at once; `answer` waits for its end, `stop` ends it early."""

    def __init__(self, code: str, environment: Mapping[str, str]) -> None:
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def answer(self, timeout_seconds: float = TIMEOUT_SECONDS) -> Answer:
        """Outcome of the program, which is ended if it takes too long."""
        try:
            left = max(0.0, self._started + timeout_seconds - time.monotonic())
            output, errors = self._process.communicate(timeout=left)
        except subprocess.TimeoutExpired:
            self.stop()
            return Answer(succeeded=False, line=f"no answer within {timeout_seconds:.0f} s")
        succeeded = self._process.returncode == 0
        lines = (output if succeeded else errors).strip().splitlines()
        return Answer(succeeded=succeeded, line=lines[-1] if lines else f"exit code {self._process.returncode}")

    def stop(self) -> None:
        """End the program if it still runs."""
        self._process.kill()
        self._process.communicate()
