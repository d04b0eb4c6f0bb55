"""Prompt -> PlayedRollout: the loop in which the policy and its tools take turns, token for token."""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from verl_pivot.data.prompts import prompt_id
from verl_pivot.data.rollout_records import CallRecord, CallStatus, StopReason
from verl_pivot.engines.rendering import action_text
from verl_pivot.errors import DataError
from verl_pivot.rollout.observed_turn import ObservationForm, ObservedTurn, observe
from verl_pivot.rollout.played_rollout import PlayedRollout, PolicyTurn
from verl_pivot.rollout.token_record import TokenRecord
from verl_pivot.rollout.tracing import in_span
from verl_pivot.rollout.turn_sampler import EngineReport, LoopParts, SampledTurn, TurnSampler
from verl_pivot.tools.toolset import RolloutTools
from verl_pivot.types import ErrorKind, JsonObject, Malformed, ToolCall


class _Context(NamedTuple):
    """Tokens and messages that the next turn of the policy follows."""

    tokens: TokenRecord
    messages: list[JsonObject]


class ToolRollout:
    """One rollout with tools. Its attributes never change; its state is in the local variables of `play`."""

    def __init__(self, parts: LoopParts, tools: RolloutTools, sampling_params: Mapping[str, Any]) -> None:
        self._parts = parts
        self._loop = parts.loop
        self._settings = parts.settings
        self._limits = parts.settings.limits(parts.loop.rollout_config.response_length)
        self._tools = tools
        self._schemas = tools.toolbox.schemas
        self._form = ObservationForm(
            max_tokens=self._limits.max_observation_tokens,
            tokenizer=parts.loop.tokenizer,
            special_tokens=parts.special_tokens,
            template=parts.settings.observation_template,
        )
        self._sampler = TurnSampler(parts, sampling_params)

    async def play(self, prompt: Sequence[JsonObject]) -> PlayedRollout:
        """Let the policy and its tools take turns until there is a reason to stop.

        The rollout ends with a turn of the policy, so that its outcome lies on a sampled token: observations that no
        turn follows are in the record, and not among the tokens.

        Raises:
            DataError: If the prompt is too long, or holds anything but text.
        """
        context = _Context(await self._render(prompt), list(prompt))
        tokens, messages = context
        turns: list[PolicyTurn] = []
        observed: list[ObservedTurn] = []
        engine = EngineReport()
        deadline = math.inf
        stop: StopReason | None
        try:
            while True:
                sampled = await self._sample(context.tokens, len(turns))
                deadline = self._deadline(deadline, engine, sampled.report)
                engine = engine.plus(sampled.report)
                if not sampled.token_ids:
                    stop = StopReason.ENGINE_FAILURE
                    break
                tokens = await self._append_turn(context.tokens, sampled)
                turns.append(await self._read_turn(sampled, len(turns), deadline))
                messages = [*context.messages, turns[-1].message]
                if (stop := turns[-1].stop_reason) is not None:
                    break
                observed.append(await self._observe(turns[-1]))
                if observed[-1].failure:
                    stop = StopReason.TOOL_FAILURE
                    break
                context = await self._append_observations(tokens, messages, turns[-1], observed[-1].texts)
                if (stop := self._limit_reached(context.tokens, deadline)) is not None:
                    break
        finally:
            journey = await self._sampler.end(len(tokens.mask), engine.newest_step)
        return PlayedRollout(
            prompt_id=prompt_id(prompt), stop_reason=stop, tokens=tokens, messages=messages, turns=turns,
            observed=observed, engine=engine, journey=journey,
        )  # fmt: skip

    async def _render(self, prompt: Sequence[JsonObject]) -> TokenRecord:
        """Tokens of the prompt, followed by the prefix of the first turn."""
        loop = self._loop
        if any(not isinstance(message.get("content"), str | None) for message in prompt):
            raise DataError(
                "a prompt has content that is not text, such as images, which the agent loop pivot_tools cannot read: "
                "remove the row"
            )
        prompt_ids = await loop.loop.run_in_executor(
            None,
            lambda: loop.continuous_token_builder.build_initial_tokens(list(prompt), tools=self._schemas or None),
        )
        tokens = TokenRecord.of_prompt([*prompt_ids, *self._encode(self._parts.added_prefix)])
        if tokens.num_prompt_tokens > loop.rollout_config.prompt_length:
            raise DataError(
                f"a prompt of {tokens.num_prompt_tokens} tokens, its tools included, is longer than "
                f"data.max_prompt_length={loop.rollout_config.prompt_length}: raise that limit, or remove the row"
            )
        if self._budget(tokens) <= 0:
            raise DataError(
                f"a prompt of {tokens.num_prompt_tokens} tokens leaves no room for a response in the engine's "
                f"context of {self._parts.max_model_len} tokens (actor_rollout_ref.rollout.max_model_len, or else the "
                "model's own): raise it, or remove the row"
            )
        return tokens

    def _deadline(self, before: float, engine: EngineReport, report: EngineReport) -> float:
        """Time of `time.monotonic` at which `max_wall_seconds` are used up, after a turn has been sampled.

        Args:
            before: The deadline before that turn; infinite before the first one.
            engine: Report of the turns before it.
            report: Report of the turn.
        """
        if before == math.inf:
            return time.monotonic() + self._limits.max_wall_seconds
        return before + engine.seconds_of_new_weights(report)

    def _limit_reached(self, tokens: TokenRecord, deadline: float) -> StopReason | None:
        """The limit that forbids another turn; None if another turn may begin."""
        if time.monotonic() > deadline:
            return StopReason.MAX_WALL_SECONDS
        return StopReason.MAX_RESPONSE_TOKENS if self._budget(tokens) <= 0 else None

    def _budget(self, tokens: TokenRecord) -> int:
        """Most tokens that the next turn may have."""
        left = self._parts.max_model_len - len(tokens.token_ids) - 1
        return min(left, self._limits.turn_budget(len(tokens.mask)))

    async def _sample(self, tokens: TokenRecord, index: int) -> SampledTurn:
        """The next turn of the policy from the engines.

        Args:
            tokens: All tokens of the rollout so far.
            index: Index of the turn, from 0.
        """
        sampling = self._sampler.sample(tokens.token_ids, self._budget(tokens))
        return await in_span(
            "turn", {"index": index}, sampling, lambda sampled: self._loop.tokenizer.decode(sampled.token_ids)
        )

    async def _append_turn(self, tokens: TokenRecord, sampled: SampledTurn) -> TokenRecord:
        is_first_with_logprobs = tokens.logprobs is None and sampled.logprobs is not None
        merged, mask, logprobs = await self._loop.ct_merge_assistant_token(
            tokens.token_ids,
            sampled.token_ids,
            tokens.mask,
            [0.0] * len(tokens.mask) if is_first_with_logprobs else tokens.logprobs,
            assistant_logprobs=sampled.logprobs,
        )
        return tokens.with_turn(merged.token_ids, mask, logprobs)

    async def _read_turn(self, sampled: SampledTurn, index: int, deadline: float) -> PolicyTurn:
        """Find the calls of a turn and decide whether the rollout ends with it.

        Args:
            sampled: The turn's tokens from the engine.
            index: Index of the turn, from 0.
            deadline: Time of `time.monotonic` after which no call begins.
        """
        text, ended = action_text(sampled.token_ids, self._loop.tokenizer, self._parts.end_token_ids)
        full_text = self._settings.assistant_prefix + text
        stop = next((stop for stop in self._parts.parser.stop if stop in text), None)
        text = full_text if stop is None else full_text[: full_text.index(stop) + len(stop)]
        calls: tuple[ToolCall | Malformed, ...] = ()
        ended = ended or stop is not None
        if ended:
            calls = await self._parts.parser.calls(text, sampled.token_ids, self._schemas)
            reason = self._stop_after(text, calls, index + 1, is_late=time.monotonic() > deadline)
        else:
            reason = self._limits.stop_after_cut(len(sampled.token_ids))
        return PolicyTurn(
            index=index, text=text, message={"role": "assistant", "content": full_text},
            num_tokens=len(sampled.token_ids), calls=calls, ended=ended, stop_reason=reason,
        )  # fmt: skip

    def _stop_after(
        self, text: str, calls: Sequence[ToolCall | Malformed], num_turns: int, *, is_late: bool
    ) -> StopReason | None:
        """Why the rollout ends with a turn that the policy ended by itself; None if the turn's calls are run."""
        tag = self._settings.answer_tag
        is_answer = not calls and (tag is None or f"</{tag}>" in text)
        return self._limits.stop_after(num_turns, is_answer=is_answer, is_late=is_late)

    async def _observe(self, turn: PolicyTurn) -> ObservedTurn:
        """Run the calls of a turn; a turn without calls gets the retry message."""
        if not turn.calls:
            return self._retry(turn)
        return await observe(turn.calls, self._tools.toolbox, turn.index, self._form)

    def _retry(self, turn: PolicyTurn) -> ObservedTurn:
        """The retry message, for a turn with neither a call nor an answer; recorded as a call that failed."""
        message = self._settings.retry_message
        assert message is not None, self._settings
        call = CallRecord(
            turn=turn.index, name="", arguments=None, status=CallStatus.TOOL_ERROR, error_kind=ErrorKind.NO_ACTION,
            num_tokens=len(self._encode(message)),
        )  # fmt: skip
        return ObservedTurn(texts=[message], calls=[call])

    async def _append_observations(
        self, tokens: TokenRecord, messages: list[JsonObject], turn: PolicyTurn, texts: Sequence[str]
    ) -> _Context:
        """Tokens and messages with the observations added."""
        if self._settings.parser == "tags":  # the policy goes on in the same message
            return _Context(tokens.with_text(self._encode("".join(texts))), messages)
        added = self._messages_of(turn, texts)
        merged, mask, logprobs = await self._loop.ct_merge_context_msg(
            messages, [*messages, *added], tokens.token_ids, tokens.mask, tokens.logprobs, tools=self._schemas or None
        )
        prefix = self._encode(self._parts.added_prefix)
        return _Context(tokens.with_merged(merged.token_ids, mask, logprobs).with_text(prefix), [*messages, *added])

    def _messages_of(self, turn: PolicyTurn, texts: Sequence[str]) -> list[JsonObject]:
        if not turn.calls or self._settings.observation_role == "user":
            return [{"role": "user", "content": "\n".join(texts)}]
        known = self._tools.toolbox.tools
        return [_tool_message(text, call, known) for text, call in zip(texts, turn.calls, strict=True)]

    def _encode(self, text: str) -> list[int]:
        return list(self._loop.tokenizer.encode(text, add_special_tokens=False)) if text else []


def _tool_message(text: str, call: ToolCall | Malformed, known: Collection[str]) -> JsonObject:
    """Message of role "tool"; its name is left out if no such tool exists, since it may hold lone surrogates."""
    message: JsonObject = {"role": "tool", "content": text}
    return {**message, "name": call.name} if isinstance(call, ToolCall) and call.name in known else message
