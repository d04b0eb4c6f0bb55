"""Agent loop `pivot_turn`: the state of one pivot -> one sampled assistant turn, token for token."""

import json
import logging
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

from verl_pivot.data.prompts import prompt_id
from verl_pivot.data.rollout_dumps import DumpedTurn
from verl_pivot.data.rollout_records import RolloutRecord, RoutingCost, StopReason
from verl_pivot.engines.rendering import action_text, end_token_ids
from verl_pivot.errors import DataError
from verl_pivot.rewards.turn_rewards import TurnRewardOutput
from verl_pivot.rollout.dumped_output import add_transcript
from verl_pivot.rollout.fault_reporting import masked_output
from verl_pivot.rollout.settings import is_dumped, max_turn_tokens
from verl_pivot.rollout.tracing import in_span, traced_rollout
from verl_pivot.rollout.turn_sampler import NO_TOKENS, EngineReport, SampledTurn, sample_turn
from verl_pivot.routing.client import end_conversation, new_request_id
from verl_pivot.types import Verdict

logger = logging.getLogger(__name__)


class PivotTurnLoop(AgentLoopBase):  # type: ignore[misc]  # verl is untyped here
    """Samples one assistant turn from the state and the tools of the row; the reward manager scores it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Raises ConfigError if `pivot.max_turn_tokens` is wrong."""
        super().__init__(*args, **kwargs)
        self._max_tokens = max_turn_tokens(self.config)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Sample one action at one pivot; a masked row if the engine returns no token several times in a row.

        Raises:
            DataError: If the state exceeds `data.max_prompt_length`; verl would cut off its beginning.
        """
        prompt_ids = await self._prompt_ids(row)
        request_id = new_request_id(is_only_turn=True)
        num_tokens = newest = None
        try:
            sampling = sample_turn(self, request_id, prompt_ids, {**sampling_params, "max_tokens": self._max_tokens})
            turn = in_span("turn", {"index": 0}, sampling, self._shown)
            sampled = await traced_rollout(row, turn, self._shown)
            num_tokens, newest = len(sampled.token_ids), sampled.report.newest_step
        finally:
            journey = await end_conversation(self.server_manager, request_id, num_tokens, newest)
        if not sampled.token_ids:
            logger.error("a rollout is masked (%s): %s", StopReason.ENGINE_FAILURE.value, NO_TOKENS)
            return masked_output(Verdict.undecided(StopReason.ENGINE_FAILURE.value, NO_TOKENS))
        return await self._output(row, prompt_ids, sampled, journey)

    async def _output(
        self, row: dict[str, Any], prompt_ids: list[int], sampled: SampledTurn, journey: RoutingCost | None
    ) -> TurnRewardOutput:
        merged, mask, logprobs = await self.ct_merge_assistant_token(
            prompt_ids,
            sampled.token_ids,
            [],
            [] if sampled.logprobs else None,
            assistant_logprobs=sampled.logprobs,
        )
        num_response_tokens = min(len(mask), self._max_tokens)
        num_prompt_tokens = len(merged.token_ids) - len(mask)
        output = TurnRewardOutput(
            prompt_ids=merged.token_ids[:num_prompt_tokens],
            response_ids=merged.token_ids[num_prompt_tokens:][:num_response_tokens],
            response_mask=mask[:num_response_tokens],
            response_logprobs=logprobs[:num_response_tokens] if logprobs else None,
            turn_ends=[num_response_tokens],
            routed_experts=sampled.report.routed_experts,
            num_turns=2,
            metrics=sampled.report.metrics,
            extra_fields=dict(sampled.report.extra_fields),
        )
        if is_dumped(self.config):
            self._add_transcript(row, output, sampled.report, journey)
        return output

    def _shown(self, sampled: SampledTurn) -> str:
        return str(self.tokenizer.decode(sampled.token_ids))

    def _add_transcript(
        self, row: dict[str, Any], output: TurnRewardOutput, report: EngineReport, journey: RoutingCost | None
    ) -> None:
        """Give the row its part of the dump's line; its text is the one that the reward manager scores."""
        end_ids = end_token_ids(self.config.actor_rollout_ref.model.path, self.tokenizer)
        text, ended = action_text(output.response_ids, self.tokenizer, end_ids)
        num_tokens, seconds = len(output.response_ids), report.seconds
        is_turn_limit = self._max_tokens < self.rollout_config.response_length
        cut = StopReason.MAX_TURN_TOKENS if is_turn_limit else StopReason.MAX_RESPONSE_TOKENS
        record = RolloutRecord(
            prompt_id=prompt_id(row["raw_prompt"]),
            stop_reason=StopReason.SINGLE_TURN if ended else cut,
            calls=(),
            turn_tokens=(num_tokens,),
            prompt_tokens=len(output.prompt_ids),
            response_tokens=num_tokens,
            generate_seconds=seconds,
            tool_seconds=0.0,
            num_empty_answers=report.num_empty_answers,
            is_cut_off=not ended,
            journey=journey,
            oldest_weights=report.oldest_step,
            newest_weights=report.newest_step,
        )
        turn = DumpedTurn(text=text, num_tokens=num_tokens, ended=ended, seconds=round(seconds, 6))
        add_transcript(output, self.config, row, record, [turn], row["raw_prompt"])

    async def _prompt_ids(self, row: dict[str, Any]) -> list[int]:
        tools = json.loads(row["tools"]) or None
        prompt_ids: list[int] = await self.loop.run_in_executor(
            None, lambda: self.continuous_token_builder.build_initial_tokens(list(row["raw_prompt"]), tools=tools)
        )
        if len(prompt_ids) > self.rollout_config.prompt_length:
            raise DataError(
                f"turn {row['trajectory_id']}:{row['turn_index']} has {len(prompt_ids)} prompt tokens, more than "
                f"data.max_prompt_length={self.rollout_config.prompt_length}: raise that limit, or run "
                "`verl-pivot select` again with this --max-prompt-tokens"
            )
        return prompt_ids
