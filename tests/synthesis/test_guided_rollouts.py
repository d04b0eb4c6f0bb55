"""Rollouts with given first turns: these turns cost nothing, and the policy's limits count its own turns alone."""

from tests.support.workshops import done, workshop
from verl_pivot.data.rollout_records import StopReason
from verl_pivot.playing.running import open_toolset
from verl_pivot.synthesis.guided_rollouts import play_guided
from verl_pivot.synthesis.rollouts import RolloutOptions
from verl_pivot.synthesis.workshop import Inputs
from verl_pivot.types import JsonObject, Message, Role, ToolCall

TASK: JsonObject = {
    "prompt": [{"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Reach 3."}],
    "metadata": '{"wanted": 3}',
}
TELLS_3 = Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name="tell", arguments={"number": 3}, id="same"),))
INPUTS = Inputs(toolset=open_toolset("tests.support.tallies:Tally"))


def test_the_policy_goes_on_behind_the_given_turns_and_pays_for_its_own_alone() -> None:
    asked: list[int] = []
    work = workshop(lambda question: asked.append(len(question.messages)) or "It is 3.", inputs=INPUTS)  # type: ignore[func-returns-value]

    played = done(play_guided(TASK, [TELLS_3, TELLS_3], work, RolloutOptions(), name="t"))

    assert asked == [2 + 2 * 2]
    assert (work.spending.num_calls, work.spending.num_prompt_tokens) == (1, 3)
    assert played.played.num_response_tokens == 2
    assert [message.content for message in played.played.messages[2:]] == ["", "3", "", "6", "It is 3."]
    assert [call.id for turn in played.played.turns for call in turn.message.tool_calls] == ["call_0_0", "call_1_0"]
    assert played.outcome.reward == 0.0


def test_given_turns_that_do_not_end_a_conversation_alone_are_masked() -> None:
    played = done(
        play_guided(TASK, [TELLS_3], workshop(inputs=INPUTS), RolloutOptions(), name="t", policy_goes_on=False)
    )

    assert played.played.stop_reason is StopReason.ENGINE_FAILURE
    assert played.outcome.is_masked
    assert played.outcome.detail == "the conversation does not end after the last given turn"
