"""QuestionDesk: the only process of a cluster run that asks models and programs; it has the cache and the budget."""

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
"""Timeout in seconds until the desk of an earlier, killed command must have ended."""
_LOOK_SECONDS: Final = 0.1
"""Seconds between two attempts to get the lock."""


class QuestionDesk:
    """Answers the questions of all workers; runs on the command's machine, which has the cache and the budget."""

    def __init__(self, home: CommandHome, settings: GateSettings, writers: bytes) -> None:
        """Keep settings and writers; nothing is asked yet.

        Args:
            home: Working directory and environment of the command.
            settings: Settings of the gate.
            writers: {role: the role's writer}, pickled, because programs can be imported only after `home.move_in()`.
        """
        home.move_in()
        self._settings = settings
        self._writers: dict[str, Writer] = pickle.loads(writers)
        self._exits = AsyncExitStack()

    async def open(self) -> None:
        """Open the cache and the budget; waits until the desk of an earlier command has ended.

        Raises:
            ConfigError: If the earlier desk does not end in time, or the folders cannot be written.
        """
        path = self._settings.folder / _LOCK
        lock = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        self._exits.callback(os.close, lock)
        await _locked(lock, path)
        self._gate = await self._exits.enter_async_context(opened_gate(self._settings, self._writers))

    async def answer(self, role: str, question: WriterQuestion) -> ChatAnswer:
        """The answer of a role's writer; raises the errors of `AnswerGate.answer`."""
        return await self._gate.answer(self._writers[role], question)

    async def close(self) -> None:
        """Close the budget and the writers."""
        await self._exits.aclose()


async def _locked(lock: int, path: Path) -> None:
    give_up_at = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > give_up_at:
                raise ConfigError(
                    f"{path} is locked by another process of this run: wait until it ends, or end it"
                ) from error
            await asyncio.sleep(_LOOK_SECONDS)
        else:
            return
