"""Turns that come from another machine -> Measured turns: what runs in each process of `verl-pivot profile --ray`."""

import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from verl_pivot.cluster.worker_pool import Measured
from verl_pivot.profiling.profiler import EnginePool, Profiler, Totals
from verl_pivot.profiling.profiles import ProfileSettings
from verl_pivot.rollout.engine import Engine
from verl_pivot.rollout.http import Retries
from verl_pivot.types import Turn
from verl_pivot.verifiers.judge_usage import usage
from verl_pivot.verifiers.registry import load_verifier_modules

_PASSED_BEGINNINGS = ("VERL_PIVOT_", "HF_")
_PASSED_END = "_API_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIServer:
    """One for all workers, and what it calls the model."""

    url: str
    model: str
    api_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The same for all workers."""

    profile: ProfileSettings
    seed: int
    retries: Retries
    endpoints: tuple[str, ...]
    """SGLang servers that all workers share."""
    openai: OpenAIServer | None
    server_flags: tuple[str, ...]
    """Of the server that each worker starts where none is shared."""
    verifier_modules: tuple[str, ...]
    folder: str
    """The command's working directory."""
    python_path: tuple[str, ...]
    variables: Mapping[str, str]
    """Of the environment."""

    @property
    def has_servers(self) -> bool:
        """Whether servers are shared, so that no worker starts its own."""
        return bool(self.endpoints) or self.openai is not None


def passed_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What says where sandboxes and models are, and the keys of judges; the rest is each node's own."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_PASSED_BEGINNINGS) or name.endswith(_PASSED_END)
    }


class ProfileWorker:
    """A Profiler in a process of its own; for one event loop."""

    def __init__(self, settings: WorkerSettings, number: int) -> None:
        """Enter the command's place.

        Args:
            number: Differs among the workers, so that they do not all begin with the same endpoint.
        """
        if os.path.isdir(settings.folder):  # else relative paths say by themselves that they are not there
            os.chdir(settings.folder)
        os.environ.update(settings.variables)
        sys.path += [folder for folder in settings.python_path if folder not in sys.path]
        self._settings = settings
        self._number = number
        self._exits = ExitStack()
        self._messages: list[str] = []

    async def start(self) -> None:
        """Load verifiers and tokenizer, and start a server where none is shared.

        Raises:
            ConfigError: If the settings do not fit this node.
            EngineError: If the server does not start.
        """
        from verl_pivot.rollout.rendering import PromptRenderer

        settings = self._settings
        load_verifier_modules(settings.verifier_modules)
        renderer = PromptRenderer(settings.profile.model, settings.profile.chat_template_kwargs)
        pool = EnginePool(await self._engines(), self._messages.append)
        self._profiler = Profiler(
            renderer=renderer, pool=pool, settings=settings.profile, seed=settings.seed, totals=Totals()
        )

    async def measure(self, turn: Turn) -> Measured:
        """Raises as `Profiler.measure` does."""
        profiler = replace(self._profiler, totals=Totals())
        profile = await profiler.measure(turn)
        measured = Measured(
            profile=profile, totals=profiler.totals, judge_usage=dict(usage), messages=tuple(self._messages)
        )
        usage.clear()
        self._messages.clear()
        return measured

    async def stop(self) -> None:
        """End the server, if it is this worker's."""
        await asyncio.to_thread(self._exits.close)

    async def _engines(self) -> list[Engine]:
        from verl_pivot.rollout.openai_engine import OpenAIEngine
        from verl_pivot.rollout.sglang_engine import SGLangEngine

        settings, openai = self._settings, self._settings.openai
        if openai is not None:
            return [OpenAIEngine(openai.url, openai.model, openai.api_key, settings.retries)]
        urls = settings.endpoints or (await asyncio.to_thread(self._start_server),)
        return [SGLangEngine(url, settings.retries) for url in _rotated(urls, self._number)]

    def _start_server(self) -> str:
        """Returns its URL."""
        from verl_pivot.local.server import sglang_server

        settings = self._settings
        log = Path(tempfile.gettempdir()) / f"verl-pivot-profile-{os.getpid()}.server.log"
        server = sglang_server(settings.profile.model, log=log, seed=settings.seed, extra_flags=settings.server_flags)
        return self._exits.enter_context(server)


def _rotated(urls: Sequence[str], number: int) -> list[str]:
    first = number % len(urls)
    return [*urls[first:], *urls[:first]]
