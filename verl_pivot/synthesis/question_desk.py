"""QuestionDesk: the one process of a run on a cluster that asks models and programs, with the cache and the budget."""

import asyncio
import fcntl
import os
import pickle
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from verl_pivot.engines.chat import ChatAnswer
from verl_pivot.errors import ConfigError
from verl_pivot.synthesis.asking import GateSettings, opened_gate
from verl_pivot.synthesis.writer import Writer, WriterQuestion
from verl_pivot.workers.command_home import CommandHome

_LOCK: Final = "desk.lock"
_PATIENCE_SECONDS: Final = 60.0
"""Seconds that the desk of a command which was killed gets to end."""
_LOOK_SECONDS: Final = 0.1


class QuestionDesk:
    """Answers the questions of all workers; on the machine of the command, whose files keep answers and the budget."""

    def __init__(self, home: CommandHome, settings: GateSettings, writers: bytes) -> None:
        """Ask nothing yet.

        Args:
            home: Where the command runs.
            settings: What the gate is made from.
            writers: {role: who plays it}, pickled, since programs are found in the home alone.
        """
        home.move_in()
        self._settings = settings
        self._writers: dict[str, Writer] = pickle.loads(writers)
        self._exits = AsyncExitStack()

    async def open(self) -> None:
        """Open the cache and the budget, once the desk of an earlier command has ended, if there is one.

        Raises:
            ConfigError: If it does not end, or the folders cannot be written.
        """
        path = self._settings.folder / _LOCK
        lock = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        self._exits.callback(os.close, lock)
        await _locked(lock, path)
        self._gate = await self._exits.enter_async_context(opened_gate(self._settings, self._writers))

    async def answer(self, role: str, question: WriterQuestion) -> ChatAnswer:
        """The answer of whoever plays a role; raises as `AnswerGate.answer`."""
        return await self._gate.answer(self._writers[role], question)

    async def close(self) -> None:
        """Settle the budget, and close the writers."""
        await self._exits.aclose()


async def _locked(lock: int, path: Path) -> None:
    give_up_at = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > give_up_at:
                raise ConfigError(
                    f"{path} is held by another process that asks for this run: wait for it, or end it"
                ) from error
            await asyncio.sleep(_LOOK_SECONDS)
        else:
            return
