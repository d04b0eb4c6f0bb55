"""A Python program, run in the background during other checks -> its last line, or why there is none."""

import subprocess
import sys
import tempfile
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
        # Files, since a program would wait in a pipe that nobody reads yet until its time is up.
        self._output, self._errors = (tempfile.TemporaryFile("w+", errors="replace") for _ in range(2))  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], env=dict(environment), stdout=self._output, stderr=self._errors
        )

    def answer(self, timeout_seconds: float = TIMEOUT_SECONDS) -> Answer:
        """Outcome of the program, which is ended if it takes too long."""
        try:
            left = max(0.0, self._started + timeout_seconds - time.monotonic())
            succeeded = self._process.wait(left) == 0
        except subprocess.TimeoutExpired:
            self.stop()
            return Answer(succeeded=False, line=f"no answer within {timeout_seconds:.0f} s")
        told = self._output if succeeded else self._errors
        told.seek(0)
        lines = told.read().strip().splitlines()
        self.stop()
        return Answer(succeeded=succeeded, line=lines[-1] if lines else f"exit code {self._process.returncode}")

    def stop(self) -> None:
        """End the program if it still runs."""
        self._process.kill()
        self._process.wait()
        self._output.close()
        self._errors.close()
