"""Turns -> Measured turns, in a worker process on one node of a Ray cluster (`verl-pivot profile --ray`)."""

import asyncio
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from verl_pivot.engines.engine import Engine
from verl_pivot.engines.pool import EnginePool
from verl_pivot.engines.retries import Retries
from verl_pivot.profiling.profiler import Profiler, Totals
from verl_pivot.profiling.profiles import ProfileSettings
from verl_pivot.profiling.servers import OpenAIServer, make_engines
from verl_pivot.profiling.turn_pool import Measured
from verl_pivot.types import Turn
from verl_pivot.verifiers.judge_usage import usage
from verl_pivot.verifiers.registry import load_verifier_modules
from verl_pivot.workers.command_home import CommandHome


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Settings that all workers of a run share."""

    profile: ProfileSettings
    seed: int
    retries: Retries
    endpoints: tuple[str, ...]
    """URLs of SGLang servers that all workers share."""
    openai: OpenAIServer | None
    """OpenAI-compatible server that all workers share, instead of SGLang servers."""
    server_flags: tuple[str, ...]
    """Extra flags of the server that each worker starts if no server is shared."""
    verifier_modules: tuple[str, ...]
    home: CommandHome
    """Working directory and environment of the command that starts the workers."""

    @property
    def has_servers(self) -> bool:
        """Whether the workers share servers, so that no worker starts one."""
        return bool(self.endpoints) or self.openai is not None


class ProfileWorker:
    """A Profiler in its own process, for one event loop."""

    def __init__(self, settings: WorkerSettings, number: int) -> None:
        """Take over the command's working directory, environment variables and module path.

        Args:
            settings: Settings of the run.
            number: Number of the worker, which selects its first endpoint, so that the workers spread over them.
        """
        settings.home.move_in()
        self._settings = settings
        self._number = number
        self._exits = ExitStack()
        self._messages: list[str] = []

    async def start(self) -> None:
        """Load the verifiers and the tokenizer, and start a server if no server is shared.

        Raises:
            ConfigError: If the settings do not fit this node.
            EngineError: If the server does not start.
        """
        from verl_pivot.engines.rendering import PromptRenderer

        settings = self._settings
        load_verifier_modules(settings.verifier_modules)
        renderer = PromptRenderer(settings.profile.model, settings.profile.chat_template_kwargs)
        pool = EnginePool(await self._engines(), self._messages.append)
        self._profiler = Profiler(
            renderer=renderer,
            pool=pool,
            settings=settings.profile,
            seed=settings.seed,
            totals=Totals(),
            say=self._messages.append,
        )

    async def work(self, turn: Turn) -> Measured:
        """Sample and score one turn.

        Raises:
            PivotError: If the turn cannot be sampled.
        """
        profiler = replace(self._profiler, totals=Totals())
        profile = await profiler.measure(turn)
        measured = Measured(
            profile=profile, totals=profiler.totals, judge_usage=dict(usage), messages=tuple(self._messages)
        )
        usage.clear()
        self._messages.clear()
        return measured

    async def stop(self) -> None:
        """End the server that this worker started, if any."""
        await asyncio.to_thread(self._exits.close)

    async def _engines(self) -> list[Engine]:
        settings = self._settings
        if settings.openai is not None:
            return make_engines(settings.openai, (), settings.retries)
        urls = settings.endpoints or (await asyncio.to_thread(self._start_server),)
        return make_engines(None, _rotated(urls, self._number), settings.retries)

    def _start_server(self) -> str:
        """Start this worker's own server; returns its URL."""
        from verl_pivot.engines.server import sglang_server

        settings = self._settings
        log = Path(tempfile.gettempdir()) / f"verl-pivot-profile-{os.getpid()}.server.log"
        server = sglang_server(settings.profile.model, log=log, seed=settings.seed, extra_flags=settings.server_flags)
        return self._exits.enter_context(server)


def _rotated(urls: Sequence[str], number: int) -> list[str]:
    """The same URLs in cyclic order, beginning at a position that depends on the worker's number."""
    first = number % len(urls)
    return [*urls[first:], *urls[:first]]
