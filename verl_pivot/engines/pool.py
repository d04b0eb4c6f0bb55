"""EnginePool: sends all turns of a trajectory to the same engine of several, and stops using engines that fail."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cachetools import LRUCache

from verl_pivot.engines.engine import Completion, Engine, Sampling
from verl_pivot.engines.retries import may_concern_one_question
from verl_pivot.errors import ConfigError, EngineError, QuestionRefusedError

RETURN_SECONDS = 300.0
"""Seconds until an engine that failed for the first time is tried again."""
_NUM_ASSIGNMENTS = 10_000
"""Number of trajectories whose engine is remembered."""
_NUM_ALLOWED_BEHIND = 8
"""Number of requests by which an engine's queue may exceed twice the shortest queue.

Beyond it, the engine's trajectories are moved to another engine.
"""
_NUM_UNSHARED_TOKENS = 16
"""Tokens at the end of a prompt that need no prefill, because chat templates may change them once a turn is added."""


@dataclass(slots=True)
class _Assignment:
    """Engine that samples the turns of one trajectory."""

    engine: Engine
    prefilled: Sequence[int] = ()
    """Token ids of the trajectory's longest prompt that this engine has prefilled."""
    prefilling: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a prompt is prefilled."""


class EnginePool:
    """Several engines of the same model. All turns of a trajectory go to one engine, to make use of its prefix cache.

    An engine that gets several requests with the same new prompt at once computes the prompt for each of them. The
    pool therefore has the engine prefill a prompt once (a request for one token) before it asks for samples, unless
    the prompt is the beginning of another prompt that the engine has prefilled.
    """

    def __init__(
        self, engines: Sequence[Engine], on_loss: Callable[[str], None], *, return_seconds: float = RETURN_SECONDS
    ) -> None:
        """Start with every engine in use.

        Args:
            engines: Engines of the same model.
            on_loss: Called with a message for the user when an engine is lost.
            return_seconds: Seconds until a lost engine is tried again; twice as long after each further loss.
        """
        self._engines = tuple(engines)
        self._alive = list(engines)
        self._on_loss = on_loss
        self._return_seconds = return_seconds
        self._assignments: LRUCache[str, _Assignment] = LRUCache(_NUM_ASSIGNMENTS)
        """{trajectory id: its engine}"""
        self._num_in_flight: Counter[str] = Counter()
        self._num_losses: Counter[str] = Counter()
        self._return_timers: set[asyncio.TimerHandle] = set()
        self._last_error: EngineError | None = None

    async def generate(
        self, trajectory_id: str, prompt_ids: Sequence[int], sampling: Sampling, n: int
    ) -> tuple[Completion, ...]:
        """Draw [n] samples of one prompt, with another engine if the trajectory's engine fails.

        Raises:
            QuestionRefusedError: If each engine that is left fails at this prompt, and samples another one.
            EngineError: If no engine is left.
        """
        failed: dict[str, EngineError] = {}  # errors at this prompt of engines that sample others, by URL
        while True:
            assignment = self._assignment(trajectory_id, failed)
            engine = assignment.engine
            self._num_in_flight[engine.url] += 1
            try:
                num_cached = await self._prefill(assignment, prompt_ids, sampling)
                if engine in self._alive:
                    return _with_prefill(await engine.generate(prompt_ids, sampling, n), num_cached)
            except EngineError as error:
                if may_concern_one_question(error) and await _samples_another(engine, prompt_ids, sampling):
                    failed[engine.url] = error
                else:
                    self._lose(engine, error)
            finally:
                self._num_in_flight[engine.url] -= 1

    async def close(self) -> None:
        for timer in self._return_timers:
            timer.cancel()
        for engine in self._engines:
            await engine.close()

    def _assignment(self, trajectory_id: str, failed: Mapping[str, EngineError]) -> _Assignment:
        """Engine of the trajectory; the idlest one for a new trajectory, or if its engine failed or fell behind."""
        usable = [engine for engine in self._alive if engine.url not in failed]
        if not usable and failed:
            *_, error = failed.values()
            raise QuestionRefusedError(f"each endpoint fails at it, and samples other prompts: {error}") from error
        if not usable:
            raise EngineError(f"no endpoint is left: {self._last_error}") from self._last_error
        assignment = self._assignments.get(trajectory_id)
        idlest = min(usable, key=lambda engine: self._num_in_flight[engine.url])
        if assignment is None or assignment.engine not in usable or self._is_behind(assignment.engine, idlest):
            assignment = self._assignments[trajectory_id] = _Assignment(idlest)
        return assignment

    def _is_behind(self, engine: Engine, idlest: Engine) -> bool:
        """Whether an engine has far more requests in flight than the idlest one, so that it is slow or hangs."""
        return self._num_in_flight[engine.url] > 2 * self._num_in_flight[idlest.url] + _NUM_ALLOWED_BEHIND

    def _lose(self, engine: Engine, error: EngineError) -> None:
        """Stop using an engine for a while; of many requests that fail at once, only the first reports it."""
        if engine not in self._alive:
            return
        self._alive.remove(engine)
        self._last_error = error
        self._on_loss(f"{error} (endpoints left: {len(self._alive)})")
        seconds = self._return_seconds * 2 ** self._num_losses[engine.url]
        self._num_losses[engine.url] += 1
        self._return_timers.add(asyncio.get_running_loop().call_later(seconds, self._alive.append, engine))

    async def _prefill(self, assignment: _Assignment, prompt_ids: Sequence[int], sampling: Sampling) -> int | None:
        """Have the engine prefill a prompt; returns how many prompt tokens were cached, None if it is not needed."""
        async with assignment.prefilling:
            shared = max(len(prompt_ids) - _NUM_UNSHARED_TOKENS, 0)
            if prompt_ids[:shared] == assignment.prefilled[:shared] or assignment.engine not in self._alive:
                return None
            (completion,) = await assignment.engine.generate(prompt_ids, replace(sampling, max_new_tokens=1), 1)
            assignment.prefilled = max(assignment.prefilled, prompt_ids, key=len)
            return completion.num_cached_tokens


async def _samples_another(engine: Engine, prompt_ids: Sequence[int], sampling: Sampling) -> bool:
    """Whether an engine samples one token after the first token of a prompt at which it failed."""
    try:
        await engine.generate(prompt_ids[:1], replace(sampling, max_new_tokens=1), 1)
    except (ConfigError, EngineError):
        return False
    return True


def _with_prefill(completions: tuple[Completion, ...], num_cached: int | None) -> tuple[Completion, ...]:
    """Replace the first sample's number of cached tokens by that of the prefill, which computed the prompt."""
    if num_cached is None:
        return completions
    return (replace(completions[0], num_cached_tokens=num_cached), *completions[1:])
