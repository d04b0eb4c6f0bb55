"""Turns -> TurnProfiles: K samples of the frozen reference policy at each turn, scored as in training."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import groupby
from typing import Protocol

from verl_pivot.all_at_once import all_at_once
from verl_pivot.engines.engine import ActionText, Completion
from verl_pivot.engines.pool import EnginePool
from verl_pivot.errors import QuestionRefusedError, StateRefusedError
from verl_pivot.profiling.early_stopping import count_scores
from verl_pivot.profiling.profiles import ProfileSettings, TurnKey
from verl_pivot.profiling.writer import ProfileWriter
from verl_pivot.types import Sample, Turn, TurnProfile
from verl_pivot.verifiers.scoring import score_completion


class Renderer(Protocol):
    """Interface of `engines.rendering.PromptRenderer`, whose import takes seconds."""

    def prompt_ids(self, turn: Turn) -> list[int]: ...

    def action_text(self, token_ids: Sequence[int]) -> ActionText: ...


class TurnMeasurer(Protocol):
    """Interface of an object that measures turns: a Profiler, or a TurnPool of Profilers on other machines."""

    async def measure(self, turn: Turn) -> TurnProfile: ...

    async def close(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class Totals:
    """Sums over the turns that this run measured; turns of earlier runs in the same file do not count."""

    num_turns: int = 0
    num_tokens: int = 0
    """Sampled tokens."""
    num_prompt_tokens: int = 0
    """Prompt tokens sent; a prompt counts once for each of its samples."""
    num_cached_tokens: int = 0
    """Sent prompt tokens that the engine found in its prefix cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiler:
    """Measures single turns in this process."""

    renderer: Renderer
    pool: EnginePool
    settings: ProfileSettings
    seed: int
    totals: Totals
    """Sums over the measured turns, updated with every turn."""
    say: Callable[[str], object] = lambda message: None
    """Called with a message for the user, once for each reason for which turns get no samples."""
    _said: set[str] = field(default_factory=set)
    """Reasons that the user was told."""
    _rendering: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "rendering"))
    """A single thread that renders prompts, so that the event loop can send requests meanwhile."""

    async def measure(self, turn: Turn) -> TurnProfile:
        """Sample and score one turn.

        There are no samples if the prompt is longer than max_prompt_tokens, if the chat template refuses the state, or
        if each engine fails at this prompt alone; in the last two cases `num_prompt_tokens` is 0.

        Raises:
            PivotError: If the turn cannot be sampled.
        """
        prompt_ids = await self._prompt_ids(turn)
        samples: list[Sample] = []
        if 0 < len(prompt_ids) <= self.settings.max_prompt_tokens:
            try:
                samples = await self._samples(turn, prompt_ids)
            except QuestionRefusedError as error:
                self._say_once(turn, f"no server samples its prompt ({error})")
                prompt_ids = []
        self.totals.num_turns += 1
        return TurnProfile(
            trajectory_id=turn.trajectory_id,
            index=turn.index,
            samples=tuple(samples),
            num_prompt_tokens=len(prompt_ids),
        )

    async def close(self) -> None:
        self._rendering.shutdown(wait=False, cancel_futures=True)
        await self.pool.close()

    async def _prompt_ids(self, turn: Turn) -> list[int]:
        """The turn's prompt; empty if the chat template refuses the state."""
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._rendering, self.renderer.prompt_ids, turn)
        except StateRefusedError as error:
            self._say_once(turn, f"the model's chat template refuses its state ({error.why})")
            return []

    def _say_once(self, turn: Turn, why: str) -> None:
        """Tell the user why a turn gets no samples, unless the same reason was told before."""
        if why not in self._said:
            self._said.add(why)
            self.say(f"Turn {turn.id}, and perhaps others, gets no samples: {why}.")

    async def _samples(self, turn: Turn, prompt_ids: Sequence[int]) -> list[Sample]:
        """All samples of the turn, or those of the stages before the plan of early stopping ends it."""
        samples: list[Sample] = []
        plan = self.settings.early_stop
        for num_samples in self._stages():
            samples += await self._sample(turn, prompt_ids, begin=len(samples), end=num_samples)
            if plan is not None and plan.ends_at(count_scores([sample.verdict.score for sample in samples])):
                break
        return samples

    def _stages(self) -> tuple[int, ...]:
        """[num_stages] total number of samples drawn by the end of each stage."""
        plan = self.settings.early_stop
        return (self.settings.num_samples,) if plan is None else plan.stages

    async def _sample(self, turn: Turn, prompt_ids: Sequence[int], *, begin: int, end: int) -> list[Sample]:
        """Draw and score samples `begin` to `end` - 1 of the turn; the seed of a sample is the same in any plan."""
        sampling = replace(self.settings.sampling, seed=turn_seed(self.seed, turn) + begin)
        completions = await self.pool.generate(turn.trajectory_id, prompt_ids, sampling, end - begin)
        self._count(completions, len(prompt_ids))
        return await all_at_once(self._score(completion, turn) for completion in completions)

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
    turns: Iterable[Turn],
    measurer: TurnMeasurer,
    writer: ProfileWriter,
    *,
    concurrency: int,
    on_turn: Callable[[], None],
) -> None:
    """Measure every turn that the file lacks, and close the measurer.

    Trajectories are measured in order, and the turns of each from the last to the first. The prompt of the last turn,
    which is the longest, is prefilled once, so that the other turns find their prompts in the prefix cache.

    Args:
        turns: Every turn of the input; the turns of a trajectory are adjacent.
        measurer: Samples and scores a turn.
        writer: Writes each profile as soon as it is finished.
        concurrency: Number of turns that are measured at the same time.
        on_turn: Called after each finished turn.

    Raises:
        PivotError: The first failure; finished turns are in the file.
    """
    slots = asyncio.Semaphore(concurrency)

    async def measure(turn: Turn) -> None:
        try:
            writer.append(await measurer.measure(turn))
        finally:
            slots.release()
        on_turn()

    try:
        async with asyncio.TaskGroup() as group:
            for turn in _longest_first(turns):
                if TurnKey(turn.trajectory_id, turn.index) not in writer.done:
                    await slots.acquire()
                    group.create_task(measure(turn))
    except BaseExceptionGroup as failures:  # the first of several failures is the cause of the others
        raise failures.exceptions[0] from None
    finally:
        await measurer.close()


def _longest_first(turns: Iterable[Turn]) -> Iterator[Turn]:
    """Turns of each trajectory from the last to the first."""
    for _, neighbours in groupby(turns, key=lambda turn: turn.trajectory_id):
        yield from reversed(list(neighbours))


def turn_seed(seed: int, turn: Turn) -> int:
    """Seed of a turn's first sample; it depends only on the turn and the seed of the run."""
    digest = sha256(f"{seed}/{turn.trajectory_id}/{turn.index}".encode()).digest()
    return int.from_bytes(digest[:4]) >> 1
