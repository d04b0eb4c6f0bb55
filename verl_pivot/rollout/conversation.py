"""One trajectory of the tool loop, from its prompt to its row: turn by turn, token for token."""

import logging
import time
from collections.abc import Collection, Sequence
from typing import Any

from verl.utils.tokenizer.chat_template import apply_chat_template

from verl_pivot.data.prompts import prompt_id
from verl_pivot.errors import DataError
from verl_pivot.rollout.actions import read_turn
from verl_pivot.rollout.limits import StopReason
from verl_pivot.rollout.observations import cut_to_tokens, without_special_tokens
from verl_pivot.rollout.rendering import action_text
from verl_pivot.rollout.rollout_record import FIELD, TURN_ENDS, VERDICT, RolloutRecord, TagCounts
from verl_pivot.rollout.token_record import TokenRecord
from verl_pivot.rollout.turn_rewards import TurnRewardOutput
from verl_pivot.rollout.turn_sampler import LoopParts, TurnSampler
from verl_pivot.tools.calls import CallOutcome, CallRecord, CallStatus
from verl_pivot.tools.contract import ErrorKind, Observation
from verl_pivot.tools.toolset import TrajectoryTools
from verl_pivot.types import JsonObject, Malformed, Message, Role, ToolCall, Verdict

logger = logging.getLogger(__name__)


class Conversation:
    """One conversation, from its prompt to its end."""

    def __init__(
        self, parts: LoopParts, tools: TrajectoryTools, messages: list[JsonObject], sampling_params: dict[str, Any]
    ) -> None:
        self._parts = parts
        self._loop = parts.loop
        self._settings = parts.settings
        self._limits = parts.settings.limits(parts.loop.rollout_config.response_length)
        self._tools = tools
        self._schemas = tools.toolbox.schemas
        self._messages = messages
        self._sampler = TurnSampler(parts, sampling_params)
        self._tokens = TokenRecord.of_prompt([])
        tag = self._settings.format_tag
        self._record = RolloutRecord(prompt_id=prompt_id(messages), answers=None if tag is None else TagCounts(tag=tag))
        self._turn_text = ""
        self._sampled_ids: list[int] = []
        self._deadline = time.monotonic() + self._limits.max_wall_seconds

    async def begin(self) -> None:
        """Render the prompt.

        Raises:
            DataError: If it does not fit, or is not text alone.
        """
        loop = self._loop
        if any(not isinstance(message.get("content"), str | None) for message in self._messages):
            raise DataError("a prompt holds images or the like, which the tool loop does not read: leave the row out")
        prompt_ids = await loop.loop.run_in_executor(
            None,
            lambda: loop.continuous_token_builder.build_initial_tokens(self._messages, tools=self._schemas or None),
        )
        prompt_ids = [*prompt_ids, *self._encode(self._settings.assistant_prefix)]
        if len(prompt_ids) > loop.rollout_config.prompt_length:
            raise DataError(
                f"a prompt of {len(prompt_ids)} tokens, its tools included, is longer than data.max_prompt_length="
                f"{loop.rollout_config.prompt_length}: raise it, or leave the row out"
            )
        self._tokens = TokenRecord.of_prompt(prompt_ids)
        if self._budget() <= 0:
            raise DataError(
                f"a prompt of {len(prompt_ids)} tokens leaves no room in the {self._parts.max_model_len} that the "
                "engine takes (rollout.max_model_len, or the model's own): leave the row out"
            )

    async def play(self) -> None:
        """Turn after turn, until there is a reason to stop."""
        try:
            while self._record.stop_reason is None:
                self._record.stop_reason = await self._turn()
        finally:
            self._record.response_tokens = len(self._tokens.mask)
            await self._sampler.end(self._record)

    async def _turn(self) -> StopReason | None:
        """One turn of the policy, and what its tools give back."""
        if time.monotonic() > self._deadline:
            return StopReason.MAX_WALL_SECONDS
        stop = await self._generate()
        if stop is not None:
            return stop
        calls = await self._parts.parser.calls(self._turn_text, self._sampled_ids, self._schemas)
        if not calls and self._is_answer():
            return StopReason.ANSWERED
        if len(self._record.turn_tokens) >= self._limits.max_turns:
            return StopReason.MAX_TURNS
        if time.monotonic() > self._deadline:
            return StopReason.MAX_WALL_SECONDS
        if not calls:
            return await self._observe([self._told_to_retry()], calls)
        texts = await self._run_calls(calls)
        if texts is None:
            return StopReason.TOOL_FAILURE
        return await self._observe([self._settings.observation_template.format(text=text) for text in texts], calls)

    async def _generate(self) -> StopReason | None:
        """Sample one turn; why the trajectory ends with it, if it does."""
        budget = self._budget()
        if budget <= 0:
            return StopReason.MAX_RESPONSE_TOKENS
        turn = await self._sampler.sample(self._tokens.token_ids, budget, self._record)
        if turn is None:
            return StopReason.ENGINE_FAILURE
        token_ids, logprobs = turn
        tokens, loop = self._tokens, self._loop
        tokens.turn_starts.append(len(tokens.mask))
        merged, tokens.mask, tokens.logprobs = await loop.ct_merge_assistant_token(
            tokens.token_ids,
            token_ids,
            tokens.mask,
            tokens.logprobs if tokens.logprobs is not None or logprobs is None else [0.0] * len(tokens.mask),
            assistant_logprobs=logprobs,
        )
        tokens.token_ids = merged.token_ids
        self._record.turn_tokens.append(len(token_ids))
        self._sampled_ids = token_ids
        text, ended = action_text(token_ids, loop.tokenizer, self._parts.end_token_ids)
        self._turn_text = self._settings.assistant_prefix + text
        self._messages.append({"role": "assistant", "content": self._turn_text})
        stopped = next((stop for stop in self._parts.parser.stop if stop in text), None)
        if stopped is not None:
            self._turn_text = self._turn_text[: self._turn_text.index(stopped) + len(stopped)]
        if self._record.answers is not None:
            self._record.answers.add(self._turn_text)
        if ended or stopped is not None:
            return None
        is_turn_limit = len(token_ids) == self._limits.max_turn_tokens
        return StopReason.MAX_TURN_TOKENS if is_turn_limit else StopReason.MAX_RESPONSE_TOKENS

    def _budget(self) -> int:
        left = self._parts.max_model_len - len(self._tokens.token_ids) - 1
        return min(left, self._limits.turn_budget(len(self._tokens.mask)))

    def _is_answer(self) -> bool:
        tag = self._settings.answer_tag
        return tag is None or f"</{tag}>" in self._turn_text

    def _told_to_retry(self) -> str:
        message = self._settings.retry_message
        assert message is not None, self._settings
        turn = len(self._record.turn_tokens) - 1
        self._record.calls.append(
            CallRecord(
                turn=turn, name="", arguments=None, status=CallStatus.TOOL_ERROR, error_kind=ErrorKind.NO_ACTION,
                num_tokens=len(self._encode(message)),
            )
        )  # fmt: skip
        return message

    async def _run_calls(self, calls: Sequence[ToolCall | Malformed]) -> list[str] | None:
        """What the policy reads of each; None if the system failed."""
        began = time.monotonic()
        outcomes = await self._tools.toolbox.run(calls)
        self._record.tool_seconds += time.monotonic() - began
        texts = [self._take(outcome) for outcome in outcomes]
        self._record.failure = next((outcome.failure for outcome in outcomes if outcome.failure), "")
        return None if self._record.failure else [text for text in texts if text is not None]

    def _take(self, outcome: CallOutcome) -> str | None:
        """Record one call, and cut what it gave back."""
        call, observation = outcome.call, outcome.observation
        text, num_tokens, truncated = "", 0, False
        if observation is not None:
            harmless = without_special_tokens(observation.text, self._parts.special_tokens)
            limit = self._limits.max_observation_tokens
            text, num_tokens, truncated = cut_to_tokens(harmless, limit, self._loop.tokenizer)
        self._record.calls.append(
            CallRecord(
                turn=len(self._record.turn_tokens) - 1,
                name=call.name if isinstance(call, ToolCall) else "",
                arguments=call.arguments if isinstance(call, ToolCall) else None,
                status=_status(observation),
                error_kind=None if observation is None else observation.error,
                seconds=outcome.seconds,
                num_tokens=num_tokens,
                truncated=truncated,
                detail=outcome.failure,
            )
        )
        return None if observation is None else text

    async def _observe(self, texts: list[str], calls: Sequence[ToolCall | Malformed]) -> StopReason | None:
        """Add what the tools gave back, if a turn still fits behind it; else the trajectory ends with the policy's."""
        if self._settings.parser == "tags":
            return self._observe_inline(texts)
        before = list(self._messages)
        if not calls or self._settings.observation_role == "user":
            added: list[JsonObject] = [{"role": "user", "content": "\n".join(texts)}]
        else:
            known = self._tools.toolbox.tools
            added = [_tool_message(text, call, known) for text, call in zip(texts, calls, strict=True)]
        tokens = self._tokens
        merged, mask, logprobs = await self._loop.ct_merge_context_msg(
            before, [*before, *added], tokens.token_ids, tokens.mask, tokens.logprobs, tools=self._schemas or None
        )
        prefix = self._encode(self._settings.assistant_prefix)
        if len(mask) + len(prefix) >= self._limits.max_response_tokens:
            return StopReason.MAX_RESPONSE_TOKENS
        self._messages += added
        tokens.token_ids, tokens.mask, tokens.logprobs = merged.token_ids, mask, logprobs
        tokens.append_text(prefix)
        return None

    def _observe_inline(self, texts: list[str]) -> StopReason | None:
        ids = self._encode("".join(texts))
        if len(self._tokens.mask) + len(ids) >= self._limits.max_response_tokens:
            return StopReason.MAX_RESPONSE_TOKENS
        self._tokens.append_text(ids)
        return None

    def _encode(self, text: str) -> list[int]:
        return list(self._loop.tokenizer.encode(text, add_special_tokens=False)) if text else []

    async def output(self) -> TurnRewardOutput | list[TurnRewardOutput]:
        """The row of this trajectory; none if nothing was sampled, which only a failure of the system brings about."""
        tokens, record = self._tokens, self._record
        assert record.stop_reason is not None, record
        if record.stop_reason.is_masked:
            logger.error("a trajectory is masked (%s): %s", record.stop_reason.value, record.failure)
        if not tokens.turn_starts:
            return []
        record.text_differs = self._text_differs()
        record.prompt_tokens = len(tokens.prompt_ids)
        extra_fields = {**self._sampler.extra_fields, FIELD: record.as_dict(), TURN_ENDS: tokens.turn_ends}
        if (verdict := await self._outcome(record.stop_reason)) is not None:
            extra_fields[VERDICT] = {"score": verdict.score, "reason": verdict.reason, "detail": verdict.detail}
        return TurnRewardOutput(
            prompt_ids=tokens.prompt_ids,
            response_ids=tokens.response_ids,
            response_mask=tokens.mask,
            response_logprobs=tokens.logprobs,
            turn_ends=tokens.turn_ends,
            num_turns=2 * len(record.turn_tokens),
            routed_experts=self._sampler.routed_experts,
            metrics={"tool_calls": record.tool_seconds, **self._sampler.metrics},
            extra_fields=extra_fields,
        )

    async def _outcome(self, stop: StopReason) -> Verdict | None:
        """What an environment says of the whole; None leaves it to the reward manager."""
        if stop.is_masked:
            return Verdict(score=None, reason=stop.value, detail=self._record.failure)
        turn = read_turn(self._turn_text)
        answer = Message(role=Role.ASSISTANT, content=turn.content, reasoning=turn.reasoning)
        for environment in self._tools.environments:
            verdict = await environment.score(answer if stop is StopReason.ANSWERED else None)
            if verdict is not None:
                return verdict
        return None

    def _text_differs(self) -> bool:
        """Whether the messages, written by the chat template, begin otherwise than the tokens read."""
        if self._settings.parser == "tags":
            return False  # there is one assistant message, and it is what the tokens read
        loop = self._loop
        text = apply_chat_template(
            loop.tokenizer, self._messages, tools=self._schemas or None, tokenize=False,
            **loop.apply_chat_template_kwargs,
        )  # fmt: skip
        return not str(text).startswith(loop.tokenizer.decode(self._tokens.token_ids, skip_special_tokens=False))


def _tool_message(text: str, call: ToolCall | Malformed, known: Collection[str]) -> JsonObject:
    """Only names of tools that there are: what else the policy calls may be no Unicode."""
    message: JsonObject = {"role": "tool", "content": text}
    return {**message, "name": call.name} if isinstance(call, ToolCall) and call.name in known else message


def _status(observation: Observation | None) -> CallStatus:
    if observation is None:
        return CallStatus.SYSTEM_FAILURE
    return CallStatus.OK if observation.error is None else CallStatus.TOOL_ERROR
