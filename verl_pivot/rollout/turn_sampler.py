"""TurnSampler: tokens of a rollout so far -> the policy's next turn from verl's engines, with logprobs."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from verl.experimental.agent_loop.agent_loop import AgentLoopBase
from verl.workers.rollout.replica import TokenOutput

from verl_pivot.data.rollout_records import RoutingCost
from verl_pivot.rollout.loop_parts import LoopParts
from verl_pivot.rollout.tracing import in_span
from verl_pivot.routing.client import end_conversation, new_request_id

MAX_EMPTY_ANSWERS = 3
"""Empty completions in a row after which the engine has failed and the rollout is masked."""
NO_TOKENS = f"the engine returned no token {MAX_EMPTY_ANSWERS} times in a row"
"""Description of that failure."""
_ABORTED = ("abort", "aborted")
OLDEST_STEP, NEWEST_STEP = "min_global_steps", "max_global_steps"
"""verl's extra fields of a completion: the training steps of the oldest and the newest weights that sampled it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """Figures that engines report besides the tokens, for one completion or for several together."""

    seconds: float = 0.0
    """Seconds spent waiting for completions."""
    num_empty_answers: int = 0
    """Completions without tokens."""
    num_preempted: int | None = None
    """Number of times that engines preempted the requests; None if they do not report it."""
    extra_fields: Mapping[str, Any] = field(default_factory=dict)
    """verl's extra fields of a completion, such as the training steps of the weights."""
    routed_experts: Any = None
    """Experts that a mixture-of-experts model routed the tokens so far to; None if the engine does not return them."""

    @property
    def oldest_step(self) -> int | None:
        """Training step of the oldest weights that sampled any token; None if the engine does not report one."""
        return self.extra_fields.get(OLDEST_STEP)

    @property
    def newest_step(self) -> int | None:
        """Training step of the newest weights that sampled any token; None if the engine does not report one."""
        return self.extra_fields.get(NEWEST_STEP)

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the engines under the names of verl's AgentLoopMetrics."""
        num_preempted = -1 if self.num_preempted is None else self.num_preempted
        return {"generate_sequences": self.seconds, "num_preempted": num_preempted}

    def seconds_of_new_weights(self, later: "EngineReport") -> float:
        """Seconds of a later completion if it was sampled with newer weights than all before; otherwise 0."""
        if self.newest_step is None or later.newest_step is None or later.newest_step <= self.newest_step:
            return 0.0
        return later.seconds

    def deadline(self, before: float, later: "EngineReport", max_wall_seconds: float) -> float:
        """Time of `time.monotonic` at which a rollout's seconds are used up, after a turn has been sampled.

        Seconds count from the end of the first turn, and not while a turn waits for new weights.

        Args:
            before: The deadline before that turn; infinite before the first one.
            later: Report of the turn; this report is that of the turns before it.
            max_wall_seconds: Seconds that the rollout may take.
        """
        if before == math.inf:
            return time.monotonic() + max_wall_seconds
        return before + self.seconds_of_new_weights(later)

    def plus(self, later: "EngineReport") -> "EngineReport":
        """This report and a later one of the same rollout together."""
        counts = [each.num_preempted for each in (self, later) if each.num_preempted is not None]
        newest = {} if later.newest_step is None else {NEWEST_STEP: later.newest_step}
        return EngineReport(
            seconds=self.seconds + later.seconds,
            num_empty_answers=self.num_empty_answers + later.num_empty_answers,
            num_preempted=sum(counts) if counts else None,
            extra_fields={**(self.extra_fields or later.extra_fields), **newest},
            routed_experts=self.routed_experts if later.routed_experts is None else later.routed_experts,
        )


class SampledTurn(NamedTuple):
    """One turn as the engine sampled it."""

    token_ids: list[int]
    """[num_tokens] with the end-of-turn token; empty after MAX_EMPTY_ANSWERS completions without tokens in a row."""
    logprobs: list[float] | None
    """[num_tokens]; None if the engine gives no logprobs."""
    report: EngineReport


class TurnSampler:
    """Samples the turns of one rollout; all its requests carry one id, so that the router sends them to one engine."""

    def __init__(self, parts: LoopParts, sampling_params: Mapping[str, Any]) -> None:
        self._loop = parts.loop
        self._stop = parts.stop
        self._params = dict(sampling_params)
        if parts.stop:
            self._params["stop"] = list(parts.stop)
        if parts.stop_token_ids:
            self._params["stop_token_ids"] = list(parts.stop_token_ids)
        self._request_id = new_request_id()

    async def sample(self, token_ids: list[int], max_tokens: int, index: int) -> SampledTurn:
        """Sample the next turn, in a span of its own if the rollout is traced.

        Args:
            token_ids: All tokens of the rollout so far.
            max_tokens: Most tokens that the turn may have.
            index: Index of the turn, from 0.
        """
        params = {**self._params, "max_tokens": max_tokens}
        sampling = sample_turn(self._loop, self._request_id, token_ids, params, self._stop)
        return await in_span(
            "turn", {"index": index}, sampling, lambda sampled: self._loop.tokenizer.decode(sampled.token_ids)
        )

    async def end(self, num_response_tokens: int, newest_step: int | None) -> RoutingCost | None:
        """Tell the router that the rollout is over, so that its KV cache is free; returns what scheduling it cost."""
        return await end_conversation(self._loop.server_manager, self._request_id, num_response_tokens, newest_step)


async def sample_turn(
    loop: AgentLoopBase,
    request_id: str,
    token_ids: list[int],
    sampling_params: Mapping[str, Any],
    stop: Sequence[str] = (),
) -> SampledTurn:
    """Sample one turn; an empty or aborted completion is thrown away and sampled again, up to MAX_EMPTY_ANSWERS times.

    Args:
        loop: The agent loop.
        request_id: Id of the conversation, from `new_request_id`.
        token_ids: All tokens of the rollout so far.
        sampling_params: verl's sampling parameters.
        stop: Texts that end the turn, besides the end-of-turn token.
    """
    report = EngineReport()
    for _ in range(MAX_EMPTY_ANSWERS):
        began = time.monotonic()
        completion: TokenOutput = await loop.server_manager.generate(
            request_id=request_id, prompt_ids=token_ids, sampling_params=dict(sampling_params)
        )
        report = report.plus(_report_of(completion, time.monotonic() - began))
        if not _is_empty(completion):
            num_tokens = _num_up_to_stop(completion.token_ids, stop, loop.tokenizer)
            logprobs = list(completion.log_probs[:num_tokens]) if completion.log_probs else None
            return SampledTurn(list(completion.token_ids[:num_tokens]), logprobs, report)
    return SampledTurn([], None, report)


def _is_empty(completion: TokenOutput) -> bool:
    return not completion.token_ids or completion.stop_reason in _ABORTED


def _report_of(completion: TokenOutput, seconds: float) -> EngineReport:
    return EngineReport(
        seconds=seconds,
        num_empty_answers=int(_is_empty(completion)),
        num_preempted=completion.num_preempted,
        extra_fields=completion.extra_fields,
        routed_experts=completion.routed_experts,
    )


def _num_up_to_stop(token_ids: Sequence[int], stops: Sequence[str], tokenizer: Any) -> int:
    """Number of tokens up to the one that completes a stop text; engines may return some more."""
    ids = list(token_ids)
    if any(stop in tokenizer.decode(ids) for stop in stops):
        while any(stop in tokenizer.decode(ids[:-1]) for stop in stops):
            ids.pop()
    return len(ids)
