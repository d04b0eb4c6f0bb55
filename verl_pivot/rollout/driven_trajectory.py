"""DrivenTrajectory: conversations that a foreign program has with the policy -> rows, with the tokens as sampled."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from verl_pivot.data.actions import read_turn
from verl_pivot.data.json_values import is_too_deep
from verl_pivot.data.rollout_dumps import DumpedTurn
from verl_pivot.data.rollout_records import RoutingCost, StopReason
from verl_pivot.engines.rendering import action_text
from verl_pivot.rollout.chat_requests import (
    CONTEXT_FULL,
    ChatRefusedError,
    ChatRequest,
    ChatTurn,
    for_template,
    turn_message,
)
from verl_pivot.rollout.conversation_tokens import prompt_problem, rendered, with_messages, with_sampled_turn
from verl_pivot.rollout.observations import without_special_tokens
from verl_pivot.rollout.played_rollout import ToolLoopParts
from verl_pivot.rollout.token_record import TokenRecord
from verl_pivot.rollout.turn_sampler import NO_TOKENS, EngineReport, SampledTurn, TurnSampler
from verl_pivot.types import JsonObject, ToolCall
from verl_pivot.user_code import named

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrivenConversation:
    """One conversation so far, which a further request may continue."""

    tokens: TokenRecord
    seen: list[JsonObject]
    """Messages as the program saw them, the last of which is the policy's."""
    written: list[JsonObject]
    """The same messages in the form for the chat template; those of the policy are exactly as it wrote them."""
    tools: list[JsonObject]
    num_prompt_messages: int
    """Messages before the policy's first turn."""
    first_turn: int
    """Index within the trajectory of its first turn, from 0."""
    may_go_on: bool
    """Whether a further message may follow; none follows a turn that was cut off."""
    turns: tuple[DumpedTurn, ...] = ()
    """[num_turns] texts of the policy, each with the texts that it read afterwards."""
    routed_experts: Any = None
    """Experts of all tokens up to the last turn's, as the engine gave them with it; None if it returns none."""

    @property
    def prompt(self) -> list[JsonObject]:
        """Messages that the policy's first turn follows."""
        return self.written[: self.num_prompt_messages]

    def is_continued_by(self, request: ChatRequest) -> bool:
        begun, added = request.messages[: len(self.seen)], request.messages[len(self.seen) :]
        can_be_added = bool(added) and added[-1]["role"] != "assistant"  # after which verl begins no turn
        return self.may_go_on and request.tools == self.tools and begun == self.seen and can_be_added


class DrivenTrajectory:
    """One trajectory, whose requests are answered one after the other.

    A request whose messages continue those of an earlier request extends the row of that request, with the tokens as
    they were sampled. Any other request begins a new row. A turn that the program does not wait for is in no row.
    """

    def __init__(self, parts: ToolLoopParts, sampling_params: Mapping[str, Any]) -> None:
        self._parts = parts
        self._limits = parts.settings.limits(parts.loop.rollout_config.response_length)
        self._sampler = TurnSampler(parts, sampling_params)
        self._one_at_a_time = asyncio.Lock()
        self.conversations: list[DrivenConversation] = []
        """The conversations so far, in the order of their first turns."""
        self._deadline = math.inf
        self._is_over = False
        self._last_answer = time.monotonic()
        self.turn_tokens: list[int] = []
        """[num_turns] tokens sampled in each turn of the policy."""
        self.engine = EngineReport()
        self.stop_reason = StopReason.ANSWERED
        """Limit or failure for which a request was refused; ANSWERED if none was."""
        self.failure = ""
        """Description of a failure of the engine, or of the chat template; "" if there was none."""
        self.prompt_problem = ""
        """Why the last prompt that was too long was refused, with the remedy; "" if none was."""
        self.refusal = ""
        """Why the last request that was refused was; "" if none was."""

    @property
    def is_limited(self) -> bool:
        """Whether a request was refused for a limit of the rollout, or for a failure of the engine."""
        return self.stop_reason is not StopReason.ANSWERED

    @property
    def idle_seconds(self) -> float:
        """Seconds since the policy's last answer, or since the beginning; 0 while it writes one."""
        return 0.0 if self._one_at_a_time.locked() else time.monotonic() - self._last_answer

    async def answer(self, request: ChatRequest, is_given_up: Callable[[], bool] = lambda: False) -> ChatTurn:
        """The policy's turn that follows the messages of a request.

        Args:
            request: The request.
            is_given_up: Whether the program waits for the answer no more.

        Raises:
            ChatRefusedError: If a limit of the rollout is reached, the engine fails, the trajectory is over, or the
                request is given up before its turn is finished.
        """
        async with self._one_at_a_time:
            if self._is_over:
                raise ChatRefusedError("the trajectory is over", status=401, code="invalid_api_key")
            if self.failure:  # the rollout is masked, and a limit that it reaches later must not make it a mistake
                raise self._failed(self.failure)
            if is_given_up():
                raise _given_up()
            try:
                return await self._answer(request, is_given_up)
            except ChatRefusedError:
                raise
            except Exception as error:  # of the engine or the chat template: a program may go on and give a reward
                logger.exception("a request to the policy failed")
                raise self._failed(named(error)) from error

    async def _answer(self, request: ChatRequest, is_given_up: Callable[[], bool]) -> ChatTurn:
        self._check_limits()
        begun = await self._begun(request)
        most = self._most_tokens(begun, request)
        sampled = await self._sampler.sample(begun.tokens.token_ids, most, len(self.turn_tokens))
        self._deadline = self.engine.deadline(self._deadline, sampled.report, self._limits.max_wall_seconds)
        self.engine = self.engine.plus(sampled.report)
        if is_given_up():  # nobody reads the turn, so that the outcome does not depend on it
            self._last_answer = time.monotonic()
            raise _given_up()
        if not sampled.token_ids:
            raise self._failed(NO_TOKENS)
        turn, text = await self._read(sampled, request, len(begun.tokens.token_ids))
        self.conversations = [each for each in self.conversations if each.first_turn != begun.first_turn]
        self.conversations.append(
            DrivenConversation(
                tokens=await with_sampled_turn(self._parts, begun.tokens, sampled),
                seen=[*request.messages, _as_sent_back(turn.message)],
                written=[*begun.written, {"role": "assistant", "content": text}],
                tools=request.tools,
                num_prompt_messages=begun.num_prompt_messages,
                first_turn=begun.first_turn,
                may_go_on=turn.ended,
                turns=(*begun.turns, _dumped_turn(text, turn, sampled.report.seconds)),
                routed_experts=sampled.report.routed_experts,
            )
        )
        self.conversations.sort(key=lambda each: each.first_turn)
        self.turn_tokens.append(len(sampled.token_ids))
        self._last_answer = time.monotonic()
        return turn

    def _check_limits(self) -> None:
        """Raises ChatRefusedError if the rollout may have no further turn."""
        if len(self.turn_tokens) >= self._limits.max_turns:
            text = f"the rollout has used up its {self._limits.max_turns} turns (pivot.rollout.max_turns)"
            raise self._refused(StopReason.MAX_TURNS, text)
        if time.monotonic() > self._deadline:
            text = f"the rollout has used up its {self._limits.max_wall_seconds:g} s (pivot.rollout.max_wall_seconds)"
            raise self._refused(StopReason.MAX_WALL_SECONDS, text)

    async def _begun(self, request: ChatRequest) -> DrivenConversation:
        """The conversation up to where the policy begins to write."""
        told = [self._harmless(message) for message in for_template(request.messages)]
        before = next((each for each in self.conversations if each.is_continued_by(request)), None)
        if before is None:
            tokens = await rendered(self._parts, told, request.tools, self._parts.added_prefix)
            if problem := prompt_problem(self._parts, tokens.num_prompt_tokens):
                self.prompt_problem = problem
                text = (
                    f"a prompt of {tokens.num_prompt_tokens} tokens exceeds the context length "
                    "(data.max_prompt_length, or the engine's limit)"
                )
                raise self._refused(StopReason.MAX_RESPONSE_TOKENS, text, code=CONTEXT_FULL)
            first = len(self.turn_tokens)
            return DrivenConversation(
                tokens=tokens, seen=[], written=told, tools=request.tools, num_prompt_messages=len(told),
                first_turn=first, may_go_on=True,
            )  # fmt: skip
        added = told[len(before.seen) :]
        read = tuple(str(message["content"]) for message in added)
        grown = await with_messages(self._parts, before.tokens, before.written, added, request.tools)
        return DrivenConversation(
            tokens=grown.with_text(self._parts.encode(self._parts.added_prefix)),
            seen=[],
            written=[*before.written, *added],
            tools=request.tools,
            num_prompt_messages=before.num_prompt_messages,
            first_turn=before.first_turn,
            may_go_on=True,
            turns=(*before.turns[:-1], msgspec.structs.replace(before.turns[-1], observations=read)),
        )

    def _harmless(self, message: JsonObject) -> JsonObject:
        """A user's message or a tool's without special tokens in its text, by which the text could forge turns."""
        content = message.get("content")
        if message["role"] not in ("user", "tool") or not isinstance(content, str):
            return message
        return {**message, "content": without_special_tokens(content, self._parts.special_tokens)}

    def _most_tokens(self, begun: DrivenConversation, request: ChatRequest) -> int:
        left = self._parts.max_model_len - len(begun.tokens.token_ids) - 1
        most = min(left, self._limits.turn_budget(len(begun.tokens.mask)))
        if most <= 0:
            text = "the conversation fills the context length (data.max_response_length, or the engine's limit)"
            raise self._refused(StopReason.MAX_RESPONSE_TOKENS, text, code=CONTEXT_FULL)
        return most if request.max_tokens is None else min(most, request.max_tokens)

    def _refused(self, reason: StopReason, text: str, *, code: str = "rollout_limit") -> ChatRefusedError:
        self.stop_reason = reason
        return ChatRefusedError(text, status=400, code=code)

    def _failed(self, failure: str) -> ChatRefusedError:
        """Error for a request that failed through no fault of the policy, which masks the rollout."""
        self.stop_reason, self.failure = StopReason.ENGINE_FAILURE, failure
        return ChatRefusedError(failure, status=500, code="engine_failure")

    async def _read(self, sampled: SampledTurn, request: ChatRequest, num_read: int) -> tuple[ChatTurn, str]:
        """A turn, and its whole text."""
        text, ended = action_text(sampled.token_ids, self._parts.loop.tokenizer, self._parts.end_token_ids)
        text = self._parts.settings.assistant_prefix + text
        calls = (
            await self._parts.parser.calls(text, sampled.token_ids, request.tools) if request.tools and ended else ()
        )
        read = read_turn(text)
        is_action = bool(calls) and all(
            isinstance(call, ToolCall) and not is_too_deep(call.arguments) for call in calls
        )
        message = turn_message(
            content=read.content if is_action else text.rpartition("</think>")[2].strip(),
            reasoning=read.reasoning,
            calls=[call for call in calls if isinstance(call, ToolCall)] if is_action else [],
        )
        num_sampled = len(sampled.token_ids)
        return ChatTurn(message=message, ended=ended, num_read=num_read, num_sampled=num_sampled), text

    async def end(self) -> RoutingCost | None:
        """Refuse further requests, and tell the router that the trajectory is over."""
        self._is_over = True
        async with self._one_at_a_time:
            num_response = sum(len(each.tokens.mask) for each in self.conversations)
            return await self._sampler.end(num_response, self.engine.newest_step)


def _given_up() -> ChatRefusedError:
    return ChatRefusedError("the program gave the request up", status=499, code="given_up")


def _dumped_turn(text: str, turn: ChatTurn, seconds: float) -> DumpedTurn:
    return DumpedTurn(text=text, num_tokens=turn.num_sampled, ended=turn.ended, seconds=round(seconds, 6))


def _as_sent_back(message: JsonObject) -> JsonObject:
    """A message of the policy as a program sends it back: without its reasoning, which many leave out."""
    sent: JsonObject = {"role": "assistant", "content": message["content"] or ""}
    if "tool_calls" in message:
        sent["tool_calls"] = message["tool_calls"]
    return sent
