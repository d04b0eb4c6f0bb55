"""Turns -> TurnProfiles: K samples of the frozen reference policy at each turn, scored as in training."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Protocol

from verl_pivot.errors import EngineError
from verl_pivot.profiling.profiles import ProfileSettings, TurnKey
from verl_pivot.profiling.writer import ProfileWriter
from verl_pivot.rollout.engine import Completion, Engine, Sampling
from verl_pivot.types import Sample, Turn, TurnProfile
from verl_pivot.verifiers.scoring import score_completion


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


class EnginePool:
    """Engines that are alive. A trajectory keeps to one of them, for the sake of its prefix cache."""

    def __init__(self, engines: Sequence[Engine], on_loss: Callable[[str], None]) -> None:
        self._alive = list(engines)
        self._on_loss = on_loss
        self._homes: dict[str, Engine] = {}
        self._num_in_flight: Counter[str] = Counter()
        self._last_error: EngineError | None = None

    async def generate(
        self, trajectory_id: str, prompt_ids: Sequence[int], sampling: Sampling, n: int
    ) -> tuple[Completion, ...]:
        """[n] samples, by another engine if the first one fails.

        Raises:
            EngineError: If no engine is left.
        """
        while True:
            engine = self._home(trajectory_id)
            self._num_in_flight[engine.url] += 1
            try:
                return await engine.generate(prompt_ids, sampling, n)
            except EngineError as error:
                self._lose(engine, error)
            finally:
                self._num_in_flight[engine.url] -= 1

    async def close(self) -> None:
        for engine in self._alive:
            await engine.close()

    def _home(self, trajectory_id: str) -> Engine:
        home = self._homes.get(trajectory_id)
        if home not in self._alive:
            if not self._alive:
                raise EngineError(f"no endpoint is left: {self._last_error}") from self._last_error
            home = min(self._alive, key=lambda engine: self._num_in_flight[engine.url])
            self._homes[trajectory_id] = home
        assert home is not None, trajectory_id
        return home

    def _lose(self, engine: Engine, error: EngineError) -> None:
        """Many requests may fail at once; the first reports."""
        if engine in self._alive:
            self._alive.remove(engine)
            self._last_error = error
            self._on_loss(f"{error} ({len(self._alive)} endpoints are left)")


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
            sampling = replace(self.settings.sampling, seed=turn_seed(self.seed, turn))
            n = self.settings.num_samples
            completions = await self.pool.generate(turn.trajectory_id, prompt_ids, sampling, n)
            samples += await asyncio.gather(*(self._score(completion, turn) for completion in completions))
            self._count(completions, len(prompt_ids))
        self.totals.num_turns += 1
        return TurnProfile(
            trajectory_id=turn.trajectory_id,
            index=turn.index,
            samples=tuple(samples),
            num_prompt_tokens=len(prompt_ids),
        )

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
    turns: Iterable[Turn], profiler: Profiler, writer: ProfileWriter, *, concurrency: int, on_turn: Callable[[], None]
) -> None:
    """Measure every turn that the file lacks; turns are sent in order, `concurrency` of them at a time.

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
            for turn in turns:
                if TurnKey(turn.trajectory_id, turn.index) not in writer.done:
                    await slots.acquire()
                    group.create_task(measure(turn))
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None  # the others are its echoes
    finally:
        await profiler.pool.close()


def turn_seed(seed: int, turn: Turn) -> int:
    """The same for a turn whatever the order, the file's other turns or the number of endpoints."""
    digest = sha256(f"{seed}/{turn.trajectory_id}/{turn.index}".encode()).digest()
    return int.from_bytes(digest[:4]) >> 1
