"""Turns -> TurnProfiles: K samples of the frozen reference policy at each turn, scored as in training."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import groupby
from typing import Protocol

from cachetools import LRUCache

from verl_pivot.errors import EngineError
from verl_pivot.profiling.early_stopping import count_scores
from verl_pivot.profiling.profiles import ProfileSettings, TurnKey
from verl_pivot.profiling.writer import ProfileWriter
from verl_pivot.rollout.engine import Completion, Engine, Sampling
from verl_pivot.types import Sample, Turn, TurnProfile
from verl_pivot.verifiers.scoring import score_completion

RETURN_SECONDS = 300.0
_NUM_HOMES = 10_000
_NUM_ALLOWED_BEHIND = 8
_NUM_SHORT = 16
"""Tokens that need no prefill; templates end a state with some that differ from those of the turn that follows."""


class ActionText(Protocol):
    """`rollout.rendering.ActionText`, without its import."""

    @property
    def text(self) -> str: ...
    @property
    def ended(self) -> bool: ...


class Renderer(Protocol):
    """`rollout.rendering.PromptRenderer`: the tokens of training."""

    def prompt_ids(self, turn: Turn) -> list[int]: ...

    def action_text(self, token_ids: Sequence[int]) -> ActionText: ...


class Measurer(Protocol):
    """A Profiler, or several on other machines."""

    async def measure(self, turn: Turn) -> TurnProfile: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class _Home:
    """Where the turns of one trajectory go."""

    engine: Engine
    prefilled: Sequence[int] = ()
    """Its longest prompt that the engine has seen."""
    prefilling: asyncio.Lock = field(default_factory=asyncio.Lock)


class EnginePool:
    """Engines that are alive. A trajectory keeps to one of them, whose prefix cache has the state before its turn.

    An engine batches what comes together, and computes a prompt that it has not cached for each request of the batch:
    so a prompt goes ahead of its samples, unless it is the beginning of one that did.
    """

    def __init__(
        self, engines: Sequence[Engine], on_loss: Callable[[str], None], *, return_seconds: float = RETURN_SECONDS
    ) -> None:
        """Take them all for alive.

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
        """Many requests may fail at once; the first reports."""
        if engine not in self._alive:
            return
        self._alive.remove(engine)
        self._last_error = error
        self._on_loss(f"{error} ({len(self._alive)} endpoints are left)")
        seconds = self._return_seconds * 2 ** self._num_losses[engine.url]
        self._num_losses[engine.url] += 1
        self._returns.add(asyncio.get_running_loop().call_later(seconds, self._alive.append, engine))

    async def _prefill(self, home: _Home, prompt_ids: Sequence[int], sampling: Sampling) -> int | None:
        """Returns how many tokens of the prompt were cached; None if nothing was to do."""
        async with home.prefilling:
            begin = max(len(prompt_ids) - _NUM_SHORT, 0)
            if prompt_ids[:begin] == home.prefilled[:begin] or home.engine not in self._alive:
                return None
            (completion,) = await home.engine.generate(prompt_ids, replace(sampling, max_new_tokens=1), 1)
            home.prefilled = max(home.prefilled, prompt_ids, key=len)
            return completion.num_cached_tokens


def _with_prefill(completions: tuple[Completion, ...], num_cached: int | None) -> tuple[Completion, ...]:
    """The first sample tells what the prefill found in the cache, since that computed its prompt."""
    if num_cached is None:
        return completions
    return (replace(completions[0], num_cached_tokens=num_cached), *completions[1:])


@dataclass(slots=True, kw_only=True)
class Totals:
    """Of this run, not of the whole file."""

    num_turns: int = 0
    num_tokens: int = 0
    """Sampled."""
    num_prompt_tokens: int = 0
    """Sent: the prompt of each sample."""
    num_cached_tokens: int = 0
    """Of those, how many the engine's prefix cache had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiler:
    """Everything that measuring one turn takes."""

    renderer: Renderer
    pool: EnginePool
    settings: ProfileSettings
    seed: int
    totals: Totals

    async def measure(self, turn: Turn) -> TurnProfile:
        """Sample and score one turn; an overlong prompt gets no samples."""
        prompt_ids = self.renderer.prompt_ids(turn)
        samples: list[Sample] = []
        if len(prompt_ids) <= self.settings.max_prompt_tokens:
            for num_samples in self._stages():
                samples += await self._sample(turn, prompt_ids, begin=len(samples), end=num_samples)
                plan = self.settings.early_stop
                if plan is not None and plan.ends_at(count_scores([sample.verdict.score for sample in samples])):
                    break
        self.totals.num_turns += 1
        return TurnProfile(
            trajectory_id=turn.trajectory_id,
            index=turn.index,
            samples=tuple(samples),
            num_prompt_tokens=len(prompt_ids),
        )

    async def close(self) -> None:
        await self.pool.close()

    def _stages(self) -> tuple[int, ...]:
        """Samples drawn by the end of each."""
        plan = self.settings.early_stop
        return (self.settings.num_samples,) if plan is None else plan.stages

    async def _sample(self, turn: Turn, prompt_ids: Sequence[int], *, begin: int, end: int) -> list[Sample]:
        """Samples `begin` to `end` - 1, the same whatever the stages."""
        sampling = replace(self.settings.sampling, seed=turn_seed(self.seed, turn) + begin)
        completions = await self.pool.generate(turn.trajectory_id, prompt_ids, sampling, end - begin)
        self._count(completions, len(prompt_ids))
        return await asyncio.gather(*(self._score(completion, turn) for completion in completions))

    async def _score(self, completion: Completion, turn: Turn) -> Sample:
        text, ended = completion.text, completion.ended
        if completion.token_ids:
            action = self.renderer.action_text(completion.token_ids)
            text, ended = action.text, action.ended
        verdict = await score_completion(text, ended, turn)
        return Sample(text=text, verdict=verdict, num_tokens=completion.num_tokens)

    def _count(self, completions: Sequence[Completion], num_prompt_tokens: int) -> None:
        self.totals.num_tokens += sum(completion.num_tokens for completion in completions)
        self.totals.num_cached_tokens += sum(completion.num_cached_tokens for completion in completions)
        self.totals.num_prompt_tokens += num_prompt_tokens * len(completions)


async def profile_turns(
    turns: Iterable[Turn], profiler: Measurer, writer: ProfileWriter, *, concurrency: int, on_turn: Callable[[], None]
) -> None:
    """Measure every turn that the file lacks, `concurrency` of them at a time.

    Trajectories go in order, and the turns of each from the last one back: the first prefill serves them all.

    Raises:
        PivotError: The first failure; finished turns are in the file.
    """
    slots = asyncio.Semaphore(concurrency)

    async def measure(turn: Turn) -> None:
        try:
            writer.append(await profiler.measure(turn))
        finally:
            slots.release()
        on_turn()

    try:
        async with asyncio.TaskGroup() as group:
            for turn in _longest_first(turns):
                if TurnKey(turn.trajectory_id, turn.index) not in writer.done:
                    await slots.acquire()
                    group.create_task(measure(turn))
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None  # the others are its echoes
    finally:
        await profiler.close()


def _longest_first(turns: Iterable[Turn]) -> Iterator[Turn]:
    for _, neighbours in groupby(turns, key=lambda turn: turn.trajectory_id):
        yield from reversed(list(neighbours))


def turn_seed(seed: int, turn: Turn) -> int:
    """The same for a turn whatever the order, the file's other turns or the number of endpoints."""
    digest = sha256(f"{seed}/{turn.trajectory_id}/{turn.index}".encode()).digest()
    return int.from_bytes(digest[:4]) >> 1
