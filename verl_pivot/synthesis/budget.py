"""Budget: limits on tokens, calls and seconds of a run; calls are reserved and then settled, even across kill -9."""

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
"""Interval in seconds at which the spent time is written to the ledger."""


class BudgetLimits(Options):
    """Limits of what a run may spend; None sets no limit."""

    tokens: int | None = Field(default=None, ge=0)
    """Maximum number of tokens of all questions and answers, including failed attempts; None sets no limit."""
    calls: int | None = Field(default=None, ge=0)
    """Maximum number of requests to models and calls of programs, including failed attempts; None sets no limit."""
    seconds: float | None = Field(default=None, ge=0.0)
    """Maximum number of seconds of the run, including the time before an interruption; None sets no limit."""


class Reservation(NamedTuple):
    """Budget that is reserved for one call."""

    number: int
    """Number of the call in the ledger."""
    tokens: int
    """Maximum number of tokens of the call."""


@dataclass(slots=True)
class _Spent:
    """Sums over all lines of a ledger."""

    calls: int = 0
    tokens: int = 0
    seconds: float = 0.0


class Budget:
    """Remaining budget of a run. A call that was running when the process died counts with its whole reservation.

    Each line of the ledger is one of "call NUMBER TOKENS", "paid NUMBER TOKENS" and "time SECONDS".
    """

    def __init__(self, limits: BudgetLimits, ledger: Path) -> None:
        """Read from the ledger what earlier processes of the run have spent.

        Raises:
            ConfigError: If the ledger cannot be read or written.
        """
        self._limits = limits
        self._ledger = ledger
        self._spent = _read(ledger)
        self._set_aside = 0
        """Reserved tokens of the running calls."""
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
        """Number of paid and reserved tokens together."""
        return self._spent.tokens + self._set_aside

    @property
    def seconds(self) -> float:
        return self._spent.seconds + time.monotonic() - self._began

    @property
    def seconds_left(self) -> float | None:
        """Seconds that are left; None if there is no limit."""
        return None if self._limits.seconds is None else self._limits.seconds - self.seconds

    async def reserve(self, tokens: int) -> Reservation:
        """Reserve the budget of one call; waits if running calls may free enough tokens.

        Args:
            tokens: Maximum number of tokens of the call.

        Raises:
            OutOfBudgetError: If the limits do not cover the call, even if the running calls need no tokens.
            ConfigError: If the ledger cannot be written.
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
        """Pay the tokens that a call used; the rest of its reservation is free again.

        Raises:
            ConfigError: If the ledger cannot be written.
        """
        self._set_aside -= reservation.tokens
        self._spent.tokens += tokens
        self._changed.set()
        self._write(f"paid {reservation.number} {tokens}")
        if time.monotonic() - self._noted_at > _SECONDS_NOTED:
            self._note_time()

    def _covers(self, tokens: int) -> bool:
        """Whether the limits cover a call now; raises OutOfBudgetError if they cannot cover it later either."""
        limits = self._limits
        if limits.calls is not None and self._spent.calls >= limits.calls:
            raise OutOfBudgetError(f"the budget of {limits.calls} calls is used up")
        if (left := self.seconds_left) is not None and left <= 0.0:
            raise OutOfBudgetError(f"the budget of {limits.seconds:g} seconds is used up")
        if limits.tokens is None or self.num_tokens + tokens <= limits.tokens:
            return True
        if self._spent.tokens + tokens > limits.tokens:
            left_tokens = max(0, limits.tokens - self._spent.tokens)
            raise OutOfBudgetError(f"{left_tokens} of {limits.tokens} tokens are left, but a call may take {tokens}")
        return False

    def _note_time(self) -> None:
        self._write(f"time {self.seconds:.3f}")
        self._noted_at = time.monotonic()

    def _write(self, line: str) -> None:
        """Add a line; on a full disk no part of it stays, which would read as other numbers."""
        rest = f"{line}\n".encode()
        num_written = 0
        try:
            while rest:
                num_new = os.write(self._file, rest)
                rest, num_written = rest[num_new:], num_written + num_new
        except OSError as error:
            os.ftruncate(self._file, os.fstat(self._file).st_size - num_written)
            raise unwritable(self._ledger, error) from error

    def close(self) -> None:
        """Note the time and close the ledger.

        Raises:
            ConfigError: If the ledger cannot be written.
        """
        try:
            self._note_time()
        finally:
            os.close(self._file)


def _read(ledger: Path) -> _Spent:
    """The sums of a ledger, whose last line may be incomplete; an unpaid call counts with its reserved tokens."""
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
                    unpaid.pop(int(number), None)  # its own line may have been cut off
                    spent.tokens += int(tokens)
                case ["time", seconds] if line.endswith("\n"):
                    spent.seconds = float(seconds)
    spent.tokens += sum(unpaid.values())
    return spent
