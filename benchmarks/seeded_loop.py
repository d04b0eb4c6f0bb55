"""Agent loop for the stock trainer that plays the conversation of its row, so that each router gets the same load."""

from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from benchmarks.conversations import from_json, play, prompt_of


class SeededLoop(AgentLoopBase):  # type: ignore[misc]  # verl is untyped here
    """Loop whose responses have the lengths that the conversation in `extra_info` prescribes; the reward is 0.

    Args:
        reports_end: Whether the loop tells the router when a conversation ends, which verl's own loops do not.
    """

    def __init__(self, *args: Any, reports_end: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reports_end = reports_end

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        conversation = from_json(row["extra_info"]["conversation"])
        response: list[int] = []
        mask: list[int] = []
        log_probs: list[float] = []
        params = {**sampling_params, "ignore_eos": True}
        async for turn in play(self.server_manager, conversation, params, reports_end=self._reports_end):
            response += turn.output.token_ids + turn.observed
            mask += [1] * len(turn.output.token_ids) + [0] * len(turn.observed)
            extra_fields = turn.output.extra_fields
            log_probs += turn.output.log_probs + [0.0] * len(turn.observed)
        return AgentLoopOutput(
            prompt_ids=prompt_of(conversation), response_ids=response, response_mask=mask, response_logprobs=log_probs,
            reward_score=0.0, num_turns=2 * len(conversation.turns), metrics=AgentLoopMetrics(),
            extra_fields=extra_fields,
        )  # fmt: skip
