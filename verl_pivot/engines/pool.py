"""The engines that answer -> the one that samples the turns of a trajectory, whose prefix cache has their state."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from cachetools import LRUCache

from verl_pivot.engines.engine import Completion, Engine, Sampling
from verl_pivot.errors import EngineError

RETURN_SECONDS = 300.0


_NUM_HOMES = 10_000


_NUM_ALLOWED_BEHIND = 8


_NUM_SHORT = 16
"""Tokens that need no prefill; templates end a state with some that differ from those of the turn that follows."""


@dataclass(slots=True)
class _Home:
    """Where the turns of one trajectory go."""

    engine: Engine
    prefilled: Sequence[int] = ()
    """Tokens of the trajectory's longest prompt that this engine has prefilled."""
    prefilling: asyncio.Lock = field(default_factory=asyncio.Lock)


class EnginePool:
    """Engines that are alive. A trajectory keeps to one of them, whose prefix cache has the state before its turn.

    An engine batches what comes together, and computes a prompt that it has not cached for each request of the batch:
    so a prompt goes ahead of its samples, unless it is the beginning of one that did.
    """

    def __init__(
        self, engines: Sequence[Engine], on_loss: Callable[[str], None], *, return_seconds: float = RETURN_SECONDS
    ) -> None:
        """Start with every engine in use.

        Args:
            on_loss: Takes a sentence for people when one is lost.
            return_seconds: After which a lost one is tried again; twice as long after each loss.
        """
        self._engines = tuple(engines)
        self._alive = list(engines)
        self._on_loss = on_loss
        self._return_seconds = return_seconds
        self._homes: LRUCache[str, _Home] = LRUCache(_NUM_HOMES)
        self._num_in_flight: Counter[str] = Counter()
        self._num_losses: Counter[str] = Counter()
        self._returns: set[asyncio.TimerHandle] = set()
        self._last_error: EngineError | None = None

    async def generate(
        self, trajectory_id: str, prompt_ids: Sequence[int], sampling: Sampling, n: int
    ) -> tuple[Completion, ...]:
        """[n] samples, by another engine if the first one fails.

        Raises:
            EngineError: If no engine is left.
        """
        while True:
            home = self._home(trajectory_id)
            self._num_in_flight[home.engine.url] += 1
            try:
                num_cached = await self._prefill(home, prompt_ids, sampling)
                if home.engine in self._alive:
                    return _with_prefill(await home.engine.generate(prompt_ids, sampling, n), num_cached)
            except EngineError as error:
                self._lose(home.engine, error)
            finally:
                self._num_in_flight[home.engine.url] -= 1

    async def close(self) -> None:
        for timer in self._returns:
            timer.cancel()
        for engine in self._engines:
            await engine.close()

    def _home(self, trajectory_id: str) -> _Home:
        if not self._alive:
            raise EngineError(f"no endpoint is left: {self._last_error}") from self._last_error
        home = self._homes.get(trajectory_id)
        idlest = min(self._alive, key=lambda engine: self._num_in_flight[engine.url])
        if home is None or home.engine not in self._alive or self._is_behind(home.engine, idlest):
            home = self._homes[trajectory_id] = _Home(idlest)
        return home

    def _is_behind(self, engine: Engine, idlest: Engine) -> bool:
        """Whether its queue grows at the expense of the others': it is slow, or hangs."""
        return self._num_in_flight[engine.url] > 2 * self._num_in_flight[idlest.url] + _NUM_ALLOWED_BEHIND

    def _lose(self, engine: Engine, error: EngineError) -> None:
        """Stop using an engine; of many requests that fail at once, the first reports it."""
        if engine not in self._alive:
            return
        self._alive.remove(engine)
        self._last_error = error
        self._on_loss(f"{error} ({len(self._alive)} endpoints are left)")
        seconds = self._return_seconds * 2 ** self._num_losses[engine.url]
        self._num_losses[engine.url] += 1
        self._returns.add(asyncio.get_running_loop().call_later(seconds, self._alive.append, engine))

    async def _prefill(self, home: _Home, prompt_ids: Sequence[int], sampling: Sampling) -> int | None:
        """Compute a prompt ahead of its samples. Returns its cached tokens; None if nothing was to do."""
        async with home.prefilling:
            begin = max(len(prompt_ids) - _NUM_SHORT, 0)
            if prompt_ids[:begin] == home.prefilled[:begin] or home.engine not in self._alive:
                return None
            (completion,) = await home.engine.generate(prompt_ids, replace(sampling, max_new_tokens=1), 1)
            home.prefilled = max(home.prefilled, prompt_ids, key=len)
            return completion.num_cached_tokens


def _with_prefill(completions: tuple[Completion, ...], num_cached: int | None) -> tuple[Completion, ...]:
    """Count the prefill's cache hits at the first sample, whose prompt the prefill computed."""
    if num_cached is None:
        return completions
    return (replace(completions[0], num_cached_tokens=num_cached), *completions[1:])
