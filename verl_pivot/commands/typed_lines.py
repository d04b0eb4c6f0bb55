"""Lines that a person types while the event loop runs, from a terminal whose settings are restored afterwards."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from verl_pivot.errors import ConfigError
from verl_pivot.tools.functions import in_thread

_SECONDS_UNTIL_EDITING = 1.0
"""Longest wait, in seconds, until a thread that is about to read has changed the terminal's settings."""


class TypedLines:
    """Reader of lines, one at a time, with editing and a history."""

    def __init__(self) -> None:
        self._lock, self._is_open, self._is_reading = threading.Lock(), True, False

    async def read(self, prompt: str) -> str | None:
        """The line that a person types; None at the end of the input.

        Raises:
            ConfigError: If what was typed is not UTF-8.
        """
        import readline  # noqa: F401  lets input() edit lines and remember them

        try:
            return str(await in_thread(self._input, {"prompt": prompt}))
        except EOFError:
            return None
        except UnicodeDecodeError as error:
            raise ConfigError(f"the typed line is not UTF-8: {error}") from error

    def _input(self, prompt: str) -> str:
        with self._lock:
            if not self._is_open:
                raise EOFError
            self._is_reading = True
        try:
            return input(prompt)
        finally:
            self._is_reading = False

    @contextmanager
    def terminal_restored(self) -> Iterator[None]:
        """Restore the terminal's settings at the end: an interrupted thread in input() leaves those of line editing."""
        import termios

        if not sys.stdin.isatty():
            yield
            return
        settings = termios.tcgetattr(sys.stdin)
        try:
            yield
        finally:
            with self._lock:
                self._is_open = False
            deadline = time.monotonic() + _SECONDS_UNTIL_EDITING
            while self._is_reading and termios.tcgetattr(sys.stdin)[3] & termios.ICANON and time.monotonic() < deadline:
                time.sleep(0.01)
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, settings)
