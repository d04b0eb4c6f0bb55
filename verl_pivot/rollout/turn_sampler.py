"""One turn from verl's engines: tokens and logprobs, and what verl keeps of an answer beside them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from verl.experimental.agent_loop.agent_loop import AgentLoopBase
from verl.workers.rollout.replica import TokenOutput

from verl_pivot.rollout.rollout_record import RolloutRecord
from verl_pivot.rollout.router_client import end_conversation
from verl_pivot.rollout.settings import RolloutSettings
from verl_pivot.rollout.turn_parsers import TurnParser
from verl_pivot.routing.request_ids import new_request_id

MAX_EMPTY_ANSWERS = 3
"""Of the engine in a row, before the trajectory is masked."""
_ABORTED = ("abort", "aborted")


@dataclass(frozen=True, slots=True)
class LoopParts:
    """What the trajectories of one agent loop share."""

    loop: AgentLoopBase
    """Its tokenizer, its continuous tokens and its way to the engines."""
    settings: RolloutSettings
    parser: TurnParser
    end_token_ids: frozenset[int]
    special_tokens: tuple[str, ...]
    max_model_len: int
    """Tokens of prompt and response that an engine takes."""


class SampledTurn(NamedTuple):
    token_ids: list[int]
    logprobs: list[float] | None
    """[num_tokens]; None where the engine gives none."""


class TurnSampler:
    """Samples the turns of one trajectory; all of its requests carry one id, so that they meet the same engine."""

    def __init__(self, parts: LoopParts, sampling_params: dict[str, Any]) -> None:
        self._parts = parts
        self._params = dict(sampling_params)
        if parts.parser.stop:
            self._params["stop"] = list(parts.parser.stop)
        if parts.parser.stop_token_ids:
            self._params["stop_token_ids"] = list(parts.parser.stop_token_ids)
        self._request_id = new_request_id()
        self._num_preempted: int | None = None
        self._seconds = 0.0
        self.extra_fields: dict[str, Any] = {}
        """verl's own of each answer: the versions of the weights."""
        self.routed_experts: Any = None

    @property
    def metrics(self) -> dict[str, float]:
        """verl's AgentLoopMetrics of the engines."""
        num_preempted = -1 if self._num_preempted is None else self._num_preempted
        return {"generate_sequences": self._seconds, "num_preempted": num_preempted}

    async def sample(self, token_ids: list[int], max_tokens: int, record: RolloutRecord) -> SampledTurn | None:
        """The next turn; None if the engine gave back nothing several times.

        Args:
            token_ids: All so far.
            max_tokens: Of the turn.
            record: Where time and empty answers are written.
        """
        began = time.monotonic()
        completion = await self._ask(token_ids, max_tokens, record)
        self._seconds += time.monotonic() - began
        record.generate_seconds = self._seconds
        if completion is None:
            record.failure = f"the engine gave back nothing {MAX_EMPTY_ANSWERS} times in a row"
            return None
        return _up_to_stop(completion, self._parts.parser.stop, self._parts.loop.tokenizer)

    async def end(self, record: RolloutRecord) -> None:
        """The trajectory is over: the router has its room for others, and what scheduling cost goes into the record."""
        newest = self.extra_fields.get("max_global_steps")
        client = self._parts.loop.server_manager
        record.journey = await end_conversation(client, self._request_id, record.response_tokens, newest)

    async def _ask(self, token_ids: list[int], max_tokens: int, record: RolloutRecord) -> TokenOutput | None:
        for _ in range(MAX_EMPTY_ANSWERS):
            completion: TokenOutput = await self._parts.loop.server_manager.generate(
                request_id=self._request_id,
                prompt_ids=token_ids,
                sampling_params={**self._params, "max_tokens": max_tokens},
            )
            self._remember(completion)
            if completion.token_ids and completion.stop_reason not in _ABORTED:
                return completion
            record.num_empty_answers += 1
        return None

    def _remember(self, completion: TokenOutput) -> None:
        newest = completion.extra_fields.get("max_global_steps")
        if not self.extra_fields:
            self.extra_fields.update(completion.extra_fields)
        elif newest is not None:
            self.extra_fields["max_global_steps"] = newest
        if completion.num_preempted is not None:
            self._num_preempted = (self._num_preempted or 0) + completion.num_preempted
        if completion.routed_experts is not None:
            self.routed_experts = completion.routed_experts


def _up_to_stop(completion: TokenOutput, stops: Sequence[str], tokenizer: Any) -> SampledTurn:
    """Up to the token that completes a stop text: engines may run on behind it."""
    ids, logprobs = list(completion.token_ids), completion.log_probs or None
    if any(stop in tokenizer.decode(ids) for stop in stops):
        while any(stop in tokenizer.decode(ids[:-1]) for stop in stops):
            ids.pop()
    return SampledTurn(ids, None if logprobs is None else list(logprobs[: len(ids)]))
