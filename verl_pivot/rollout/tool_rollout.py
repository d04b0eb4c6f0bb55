"""Prompt -> PlayedRollout: the loop in which the policy and its tools take turns, token for token, and its steps."""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from verl_pivot.all_at_once import all_at_once
from verl_pivot.data.rollout_records import CallRecord, CallStatus, RoutingCost, StopReason
from verl_pivot.engines.rendering import action_text
from verl_pivot.rollout.best_of import TurnChoice
from verl_pivot.rollout.conversation_tokens import prompt_tokens, with_messages, with_sampled_turn
from verl_pivot.rollout.observations import with_opening
from verl_pivot.rollout.observed_turn import ObservationForm, ObservedTurn, observe
from verl_pivot.rollout.played_rollout import PlayedRollout, PolicyTurn, ToolLoopParts
from verl_pivot.rollout.rollout_so_far import RolloutSoFar, TurnContext
from verl_pivot.rollout.token_record import TokenRecord
from verl_pivot.rollout.turn_sampler import SampledTurn, TurnSampler
from verl_pivot.rollout.workflow_prompt import ShownWorkflows, shown_workflows, with_workflows
from verl_pivot.rollout.workflows import RankedWorkflows
from verl_pivot.tools.calls import Toolbox
from verl_pivot.tools.rollout_tools import RolloutTools
from verl_pivot.types import ErrorKind, JsonObject, Malformed, ToolCall

_MESSAGE_TOKENS = 32
"""Most tokens that chat templates write around a system message."""
_NO_TOOL = "unknown_tool"
"""Name in the message about a call of no tool; verl's builders for gpt-oss and Gemma 4 need one."""


class ToolRollout:
    """One rollout with tools. Its attributes never change; its state is a RolloutSoFar."""

    def __init__(
        self,
        parts: ToolLoopParts,
        tools: RolloutTools,
        sampling_params: Mapping[str, Any],
        workflows: RankedWorkflows | None = None,
    ) -> None:
        """Prepare the rollout; `begun` starts it.

        Args:
            parts: The agent loop.
            tools: The rollout's tools.
            sampling_params: verl's sampling parameters.
            workflows: Workflows for the row, of which the prompt shows those that fit; None if workflows are off.
        """
        self._workflows = workflows
        self._parts = parts
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

    async def play(self, prompt: Sequence[JsonObject], choice: TurnChoice | None = None) -> PlayedRollout:
        """Let the policy and its tools take turns until there is a reason to stop.

        The tokens end with a turn of the policy, so that the outcome is on a sampled token. Observations that no turn
        follows are in the record, but not among the tokens.

        Args:
            prompt: The row's prompt.
            choice: Chooses each turn among several draws; None to take the first draw.

        Raises:
            DataError: If the prompt is too long, or holds anything but text.
        """
        rollout = await self.begun(prompt)
        try:
            while rollout.stop is None:
                rollout = await self._with_chosen_turn(rollout, choice)
                if rollout.stop is None:
                    rollout = await self.with_observations(rollout, self._tools.toolbox)
        finally:
            journey = await self.end(rollout)
        return rollout.played(prompt, journey, None if choice is None else choice.record)

    async def _with_chosen_turn(self, rollout: RolloutSoFar, choice: TurnChoice | None) -> RolloutSoFar:
        if choice is None:
            return await self.with_turn(rollout)
        return await choice.chosen(await all_at_once(self.with_turn(rollout) for _ in range(choice.num_candidates)))

    async def begun(self, prompt: Sequence[JsonObject]) -> RolloutSoFar:
        """The rollout before its first turn.

        Raises:
            DataError: If the prompt is too long, or holds anything but text.
        """
        messages = with_opening(prompt, self._form.cut_text(self._tools.opening).text)
        tokens = await self._render(messages)
        shown = self._shown_workflows(tokens.num_prompt_tokens)
        if shown is not None and shown.text:
            messages = with_workflows(messages, shown.text)
            tokens = await self._render(messages)
        return RolloutSoFar(context=TurnContext(tokens, messages), tokens=tokens, messages=messages, workflows=shown)

    def _shown_workflows(self, num_prompt_tokens: int) -> ShownWorkflows | None:
        """The workflows that fit into a prompt without making it too long; None if workflows are off.

        Args:
            num_prompt_tokens: Tokens of the prompt without workflows.
        """
        if self._workflows is None:
            return None
        room = self._parts.loop.rollout_config.prompt_length - num_prompt_tokens - _MESSAGE_TOKENS
        return shown_workflows(
            self._workflows,
            self._tools.toolbox.tools,
            min(self._settings.workflows.max_tokens, room),
            self._parts.loop.tokenizer,
            self._parts.special_tokens,
        )

    async def with_turn(self, rollout: RolloutSoFar) -> RolloutSoFar:
        """A rollout that goes on, with one more turn of the policy."""
        context, index = rollout.context, len(rollout.turns)
        sampled = await self._sampler.sample(context.tokens.token_ids, self._budget(context.tokens), index)
        deadline = rollout.engine.deadline(rollout.deadline, sampled.report, self._limits.max_wall_seconds)
        engine = rollout.engine.plus(sampled.report)
        if not sampled.token_ids:
            return replace(rollout, engine=engine, deadline=deadline, stop=StopReason.ENGINE_FAILURE)
        tokens = await with_sampled_turn(self._parts, context.tokens, sampled)
        turn = await self._read_turn(sampled, index, deadline)
        return replace(
            rollout, tokens=tokens, messages=[*context.messages, turn.message], turns=(*rollout.turns, turn),
            engine=engine, deadline=deadline, stop=turn.stop_reason,
        )  # fmt: skip

    async def with_observations(self, rollout: RolloutSoFar, toolbox: Toolbox) -> RolloutSoFar:
        """A rollout that goes on after a turn, with what the tools answer to the turn.

        Args:
            rollout: The rollout, which ends with the turn.
            toolbox: Tools in the state after the earlier turns.
        """
        turn = rollout.turns[-1]
        found = await self.observe(turn, toolbox, rollout.deadline)
        rollout = replace(rollout, observed=(*rollout.observed, found))
        stop = StopReason.TOOL_FAILURE if found.failure else found.end
        if stop is not None:
            return replace(rollout, stop=stop)
        context = await self._append_observations(rollout.tokens, rollout.messages, turn, found.texts)
        return replace(rollout, context=context, stop=self._limit_reached(context.tokens, rollout.deadline))

    async def end(self, rollout: RolloutSoFar) -> RoutingCost | None:
        """Tell the router that the rollout is over; returns what scheduling it cost."""
        return await self._sampler.end(len(rollout.tokens.mask), rollout.engine.newest_step)

    async def _render(self, prompt: Sequence[JsonObject]) -> TokenRecord:
        """Tokens of the prompt, followed by the prefix of the first turn."""
        return await prompt_tokens(self._parts, prompt, self._schemas, self._parts.added_prefix)

    def _limit_reached(self, tokens: TokenRecord, deadline: float) -> StopReason | None:
        """The limit that forbids another turn; None if another turn may begin."""
        if time.monotonic() > deadline:
            return StopReason.MAX_WALL_SECONDS
        return StopReason.MAX_RESPONSE_TOKENS if self._budget(tokens) <= 0 else None

    def _budget(self, tokens: TokenRecord) -> int:
        """Most tokens that the next turn may have."""
        left = self._parts.max_model_len - len(tokens.token_ids) - 1
        return min(left, self._limits.turn_budget(len(tokens.mask)))

    async def _read_turn(self, sampled: SampledTurn, index: int, deadline: float) -> PolicyTurn:
        """Find the calls of a turn and decide whether the rollout ends with it.

        Args:
            sampled: The turn's tokens from the engine.
            index: Index of the turn, from 0.
            deadline: Time of `time.monotonic` after which no call begins.
        """
        text, ended = action_text(sampled.token_ids, self._parts.loop.tokenizer, self._parts.end_token_ids)
        full_text = self._settings.assistant_prefix + text
        stop = next((stop for stop in self._parts.parser.stop if stop in text), None)
        text = full_text if stop is None else full_text[: full_text.index(stop) + len(stop)]
        calls: tuple[ToolCall | Malformed, ...] = ()
        ended = ended or stop is not None
        if ended:
            calls = await self._parts.parser.calls(text, sampled.token_ids, self._schemas)
            reason = self._stop_after(text, calls, index + 1, is_late=time.monotonic() > deadline)
        else:
            is_late = time.monotonic() > deadline
            reason = self._limits.stop_after_cut(len(sampled.token_ids), index + 1, is_late=is_late)
        return PolicyTurn(
            index=index, text=text, message={"role": "assistant", "content": full_text},
            num_tokens=len(sampled.token_ids), seconds=sampled.report.seconds, calls=calls, ended=ended,
            stop_reason=reason,
        )  # fmt: skip

    def _stop_after(
        self, text: str, calls: Sequence[ToolCall | Malformed], num_turns: int, *, is_late: bool
    ) -> StopReason | None:
        """Why the rollout ends with a turn that the policy ended by itself; None if the turn's calls are run."""
        tag = self._settings.answer_tag
        is_answer = not calls and (tag is None or f"</{tag}>" in text)
        return self._limits.stop_after(num_turns, is_answer=is_answer, is_late=is_late)

    async def observe(self, turn: PolicyTurn, toolbox: Toolbox, deadline: float = math.inf) -> ObservedTurn:
        """Run the calls of a turn that begin before a deadline; a turn without calls gets the retry message."""
        if not turn.calls:
            return self._retry(turn)
        return await observe(turn.calls, toolbox, turn.index, self._form, deadline)

    def _retry(self, turn: PolicyTurn) -> ObservedTurn:
        """The retry message, for a turn with neither a call nor an answer; recorded as a call that failed."""
        message = self._settings.retry_message
        assert message is not None, self._settings
        call = CallRecord(
            turn=turn.index, name="", arguments=None, status=CallStatus.TOOL_ERROR, error_kind=ErrorKind.NO_ACTION,
            num_tokens=len(self._parts.encode(message)),
        )  # fmt: skip
        return ObservedTurn(texts=[message], calls=[call])

    async def _append_observations(
        self, tokens: TokenRecord, messages: list[JsonObject], turn: PolicyTurn, texts: Sequence[str]
    ) -> TurnContext:
        """Tokens and messages with the observations added."""
        if self._settings.parser == "tags":  # the policy goes on in the same message
            return TurnContext(tokens.with_text(self._parts.encode("".join(texts))), messages)
        added = self._messages_of(turn, texts)
        merged = await with_messages(self._parts, tokens, messages, added, self._schemas)
        prefix = self._parts.encode(self._parts.added_prefix)
        return TurnContext(merged.with_text(prefix), [*messages, *added])

    def _messages_of(self, turn: PolicyTurn, texts: Sequence[str]) -> list[JsonObject]:
        if not turn.calls or self._settings.observation_role == "user":
            return [{"role": "user", "content": "\n".join(texts)}]
        known = self._tools.toolbox.tools
        return [_tool_message(text, call, known) for text, call in zip(texts, turn.calls, strict=True)]


def _tool_message(text: str, call: ToolCall | Malformed, known: Collection[str]) -> JsonObject:
    """Message of role "tool"; its name is never that of a tool that does not exist, which may hold anything."""
    name = call.name if isinstance(call, ToolCall) and call.name in known else _NO_TOOL
    return {"role": "tool", "content": text, "name": name}
