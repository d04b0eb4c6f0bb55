"""PlayedRollout: a finished rollout with tools -> its record, its outcome and the row that verl stores."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from verl_pivot.data.actions import read_turn
from verl_pivot.data.rollout_dumps import DumpedTurn
from verl_pivot.data.rollout_records import (
    OPENING_FIELD,
    RECORD_FIELD,
    TURN_ENDS_FIELD,
    VERDICT_FIELD,
    WORKFLOW_TASK_FIELD,
    RolloutRecord,
    RoutingCost,
    SearchRecord,
    StopReason,
)
from verl_pivot.rewards.principles import ShownTurn
from verl_pivot.rewards.turn_rewards import TurnRewardOutput
from verl_pivot.rollout.citations import CitableTurn, cited_ids
from verl_pivot.rollout.dumped_output import add_transcript
from verl_pivot.rollout.loop_parts import LoopParts
from verl_pivot.rollout.observations import with_opening
from verl_pivot.rollout.observed_turn import ObservedTurn, retry_message_in, unread_mistake
from verl_pivot.rollout.outcome import decided_outcome
from verl_pivot.rollout.settings import RolloutSettings, is_dumped
from verl_pivot.rollout.text_difference import text_differs
from verl_pivot.rollout.token_record import TokenRecord
from verl_pivot.rollout.turn_parsers import TurnParser, num_tag_pairs
from verl_pivot.rollout.turn_sampler import NO_TOKENS, EngineReport
from verl_pivot.rollout.workflow_prompt import ShownWorkflows, with_workflows
from verl_pivot.tools.rollout_tools import RolloutTools
from verl_pivot.types import EnvironmentReturn, ErrorKind, JsonObject, Malformed, Message, Role, ToolCall, Verdict

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLoopParts(LoopParts):
    """Parts of the agent loop with tools that all its rollouts share."""

    settings: RolloutSettings
    parser: TurnParser
    added_prefix: str = ""
    """Text added before every turn; empty if the chat template writes the prefix of turns itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTurn:
    """One turn of the policy, after its text was parsed."""

    index: int
    """Index among the policy's turns, from 0."""
    text: str
    """Text from the beginning of the assistant message through the stop text, if there is one; no end-of-turn token."""
    message: JsonObject
    """The turn as a chat message."""
    num_tokens: int
    """Number of sampled tokens."""
    seconds: float
    """Seconds of waiting for the engine."""
    calls: tuple[ToolCall | Malformed, ...]
    ended: bool
    """Whether the policy ended the turn by itself; False if it was cut off."""
    stop_reason: StopReason | None
    """Why the rollout ends with this turn; None if it goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRollout:
    """One rollout, from its prompt to its end."""

    prompt_id: str
    stop_reason: StopReason
    tokens: TokenRecord
    messages: list[JsonObject]
    """All messages, those of the prompt first."""
    turns: list[PolicyTurn]
    observed: list[ObservedTurn]
    """[num_turns or num_turns - 1] observations after each turn; the last turn may have none."""
    engine: EngineReport
    journey: RoutingCost | None
    """Waiting and moves between engines that the router counted; None if it counts nothing."""
    searched: SearchRecord | None = None
    """Figures of the search that chose the rollout; None if it is the policy's own draw."""
    workflows: ShownWorkflows | None = None
    """Workflows that the prompt shows; None where `pivot.rollout.workflows` is off."""

    @property
    def failure(self) -> str:
        """Description of the failure that masks the rollout; "" if it is not masked."""
        if self.stop_reason is StopReason.ENGINE_FAILURE:
            return NO_TOKENS
        return self.observed[-1].failure if self.observed else ""

    async def row(
        self, parts: ToolLoopParts, tools: RolloutTools, columns: Mapping[str, Any]
    ) -> TurnRewardOutput | list[TurnRewardOutput]:
        """The row that verl stores; an empty list if the system failed before the policy sampled a token.

        Args:
            parts: The agent loop that played the rollout.
            columns: Columns of the dataset's row.
            tools: The rollout's tools, whose environments may score the outcome.
        """
        if self.stop_reason.is_masked:
            logger.error("a rollout is masked (%s): %s", self.stop_reason.value, self.failure)
        if not self.turns:
            return []
        tokens, record = self.tokens, self._record(parts, tools.toolbox.schemas)
        extra_fields = {
            **self.engine.extra_fields,
            RECORD_FIELD: record.as_dict(),
            TURN_ENDS_FIELD: tokens.turn_ends,
        }
        if "process" in parts.loop.config.pivot and tools.opening:
            extra_fields[OPENING_FIELD] = tools.opening
        if self.workflows is not None:
            extra_fields[WORKFLOW_TASK_FIELD] = msgspec.to_builtins(self.workflows.task)
        if (verdict := await self.outcome(tools)) is not None:
            extra_fields[VERDICT_FIELD] = asdict(verdict)
        output = TurnRewardOutput(
            prompt_ids=tokens.prompt_ids,
            response_ids=tokens.response_ids,
            response_mask=tokens.mask,
            response_logprobs=tokens.logprobs,
            turn_ends=tokens.turn_ends,
            num_turns=2 * len(self.turns),
            routed_experts=self.engine.routed_experts,
            metrics={"tool_calls": record.tool_seconds, **self.engine.metrics},
            extra_fields=extra_fields,
        )
        if isinstance(verdict, EnvironmentReturn) and verdict.paid_tool:
            output.call_rewards = self._call_rewards(verdict.paid_tool)
            output.call_rewards[-1] += verdict.beyond_calls
        if is_dumped(parts.loop.config):
            shown = "" if self.workflows is None else self.workflows.text
            prompt = with_workflows(with_opening(columns["raw_prompt"], tools.opening), shown)
            prompt = self.messages[: len(prompt)]
            add_transcript(output, parts.loop.config, columns, record, self._dumped_turns(), prompt)
        return output

    def _call_rewards(self, tool: str) -> list[float]:
        """[num_turns] sums of the rewards that an environment gave for the calls of its tool in a turn."""
        rewards = [sum(call.reward or 0.0 for call in each.calls if call.name == tool) for each in self.observed]
        return [*rewards, 0.0][: len(self.turns)]  # the last turn may have no observations

    @property
    def shown_turns(self) -> list[ShownTurn]:
        """The policy's turns as a judge sees them."""
        return [ShownTurn(text=turn.text, observation="\n".join(texts)) for turn, texts in self._observed_turns()]

    def _observed_turns(self) -> Iterator[tuple[PolicyTurn, tuple[str, ...]]]:
        """The policy's turns, each with the texts that the policy read after it; the last turn may have none."""
        observations: list[tuple[str, ...]] = [*(tuple(each.texts) for each in self.observed), ()]
        return zip(self.turns, observations, strict=False)

    def _dumped_turns(self) -> list[DumpedTurn]:
        tool_seconds = [*(round(each.seconds, 6) for each in self.observed), None]
        return [
            DumpedTurn(
                text=turn.text, num_tokens=turn.num_tokens, ended=turn.ended, observations=texts,
                seconds=round(turn.seconds, 6), tool_seconds=seconds,
            )
            for (turn, texts), seconds in zip(self._observed_turns(), tool_seconds, strict=False)
        ]  # fmt: skip

    @property
    def _unread(self) -> ErrorKind | None:
        """Mistake of a last turn that nothing was run after; None if there is none, or the turn was cut off."""
        last = self.turns[-1]
        if not last.ended or len(self.observed) == len(self.turns):
            return None
        return unread_mistake(last.calls, is_answer=self.stop_reason is StopReason.ANSWERED)

    def _record(self, parts: ToolLoopParts, schemas: list[JsonObject]) -> RolloutRecord:
        tag = parts.settings.format_tag
        before = [CitableTurn(each.calls, each.results) for each in self.observed[: len(self.turns) - 1]]
        cited = cited_ids(self.turns[-1].text, before)
        return RolloutRecord(
            prompt_id=self.prompt_id,
            stop_reason=self.stop_reason,
            calls=tuple(call for each in self.observed for call in each.calls),
            turn_tokens=tuple(turn.num_tokens for turn in self.turns),
            prompt_tokens=len(self.tokens.prompt_ids),
            response_tokens=len(self.tokens.mask),
            generate_seconds=self.engine.seconds,
            tool_seconds=sum(each.seconds for each in self.observed),
            num_empty_answers=self.engine.num_empty_answers,
            is_cut_off=not self.turns[-1].ended,
            unread=self._unread,
            num_answers=None if tag is None else num_tag_pairs(tag, [turn.text for turn in self.turns]),
            # With tags the whole response is one assistant message, which is the decoded tokens by definition.
            text_differs=parts.settings.parser != "tags"
            and text_differs(parts.loop, self.messages, self.tokens.token_ids, schemas),
            num_citations=cited.num_cited,
            num_shown_citations=cited.num_shown,
            journey=self.journey,
            oldest_weights=self.engine.oldest_step,
            newest_weights=self.engine.newest_step,
            failure=self.failure,
            search=self.searched,
            workflow_version=None if self.workflows is None else self.workflows.version,
            num_workflows=0 if self.workflows is None else self.workflows.num_workflows,
            retry_message=retry_message_in(self.observed),
        )

    async def outcome(self, tools: RolloutTools) -> Verdict | None:
        """Verdict of a failure or of an environment; None leaves the outcome to the reward manager."""
        turn = read_turn(self.turns[-1].text)
        answer = Message(role=Role.ASSISTANT, content=turn.content, reasoning=turn.reasoning)
        is_bug = bool(self.observed) and self.observed[-1].is_bug
        return await decided_outcome(tools, self.stop_reason, answer, self.failure, is_bug=is_bug)
