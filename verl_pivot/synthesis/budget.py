"""Budget: tokens, calls and seconds of a run, set aside before each call and settled after it, also over kill -9."""

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import Field

from verl_pivot.data.files import unwritable
from verl_pivot.errors import OutOfBudgetError
from verl_pivot.validation import Options

_SECONDS_NOTED: Final = 1.0
"""Seconds after which the time spent is written down again."""


class BudgetLimits(Options):
    """What a run may spend; None sets no limit."""

    tokens: int | None = Field(default=None, ge=0)
    """Tokens of all questions and answers, those of failed attempts included."""
    calls: int | None = Field(default=None, ge=0)
    """Requests to models and calls of programs, failed attempts included."""
    seconds: float | None = Field(default=None, ge=0.0)
    """Seconds that the run takes, those before an interruption included."""


class Reservation(NamedTuple):
    """One call that is set aside."""

    number: int
    tokens: int


@dataclass(slots=True)
class _Spent:
    """Sums over all lines of a ledger."""

    calls: int = 0
    tokens: int = 0
    seconds: float = 0.0


class Budget:
    """What is left of a run's limits. A call that was under way when the process died counts in full.

    Each line of the ledger is one of "call NUMBER TOKENS", "paid NUMBER TOKENS" and "time SECONDS".
    """

    def __init__(self, limits: BudgetLimits, ledger: Path) -> None:
        """Read what earlier processes of the run spent.

        Raises:
            ConfigError: If the ledger cannot be read or written.
        """
        self._limits = limits
        self._spent = _read(ledger)
        self._set_aside = 0
        """Tokens of the calls that are under way."""
        self._next = self._spent.calls
        self._began = self._noted_at = time.monotonic()
        self._changed = asyncio.Event()
        try:
            self._file = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise unwritable(ledger, error) from error
        self._write("")  # ends a line that a full disk cut off

    @property
    def num_calls(self) -> int:
        return self._spent.calls

    @property
    def num_tokens(self) -> int:
        """Tokens that are paid, and those that are set aside."""
        return self._spent.tokens + self._set_aside

    @property
    def seconds(self) -> float:
        return self._spent.seconds + time.monotonic() - self._began

    @property
    def seconds_left(self) -> float | None:
        """None: there is no limit."""
        return None if self._limits.seconds is None else self._limits.seconds - self.seconds

    async def reserve(self, tokens: int) -> Reservation:
        """Set one call aside; waits while calls under way may leave enough.

        Args:
            tokens: Most tokens of the call.

        Raises:
            OutOfBudgetError: If the limits do not cover it, whatever the calls under way leave.
        """
        while not self._covers(tokens):
            self._changed.clear()
            await self._changed.wait()
        reservation = Reservation(self._next, tokens)
        self._next += 1
        self._spent.calls += 1
        self._set_aside += tokens
        self._write(f"call {reservation.number} {tokens}")
        return reservation

    def settle(self, reservation: Reservation, tokens: int) -> None:
        """Pay for a call what it took; what was set aside beyond that is free again."""
        self._set_aside -= reservation.tokens
        self._spent.tokens += tokens
        self._write(f"paid {reservation.number} {tokens}")
        if time.monotonic() - self._noted_at > _SECONDS_NOTED:
            self._note_time()
        self._changed.set()

    def _covers(self, tokens: int) -> bool:
        """Whether the limits cover a call now; raises OutOfBudgetError if they never will."""
        limits = self._limits
        if limits.calls is not None and self._spent.calls >= limits.calls:
            raise OutOfBudgetError(f"all {limits.calls} calls are spent")
        if (left := self.seconds_left) is not None and left <= 0.0:
            raise OutOfBudgetError(f"all {limits.seconds:g} seconds are spent")
        if limits.tokens is None or self.num_tokens + tokens <= limits.tokens:
            return True
        if self._spent.tokens + tokens > limits.tokens:
            left_tokens = max(0, limits.tokens - self._spent.tokens)
            raise OutOfBudgetError(f"{left_tokens} of {limits.tokens} tokens are left, and a call may take {tokens}")
        return False

    def _note_time(self) -> None:
        self._write(f"time {self.seconds:.3f}")
        self._noted_at = time.monotonic()

    def _write(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())

    def close(self) -> None:
        self._note_time()
        os.close(self._file)


def _read(ledger: Path) -> _Spent:
    """The sums of a ledger, whose last line may be torn; a call that was not paid counts as it was set aside."""
    spent = _Spent()
    if not ledger.exists():
        return spent
    unpaid: dict[int, int] = {}
    with ledger.open(encoding="ascii", errors="replace") as file:
        for line in file:
            match line.split():
                case ["call", number, tokens] if line.endswith("\n"):
                    spent.calls += 1
                    unpaid[int(number)] = int(tokens)
                case ["paid", number, tokens] if line.endswith("\n"):
                    unpaid.pop(int(number))
                    spent.tokens += int(tokens)
                case ["time", seconds] if line.endswith("\n"):
                    spent.seconds = float(seconds)
    spent.tokens += sum(unpaid.values())
    return spent
