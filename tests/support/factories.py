"""Factories of trajectories, turns and profiles with defaults, so that a test names only the fields it is about."""

from collections.abc import Sequence

from verl_pivot.types import JsonObject, Message, Role, Sample, ToolCall, Trajectory, Turn, TurnProfile, Verdict

SYSTEM = Message(role=Role.SYSTEM, content="You work in a shop.")
USER = Message(role=Role.USER, content="Where is order 17?")
LOOKUP = ToolCall(id="call_0", name="find_order", arguments={"order_id": 17})
CALL = Message(role=Role.ASSISTANT, tool_calls=(LOOKUP,))
RESULT = Message(role=Role.TOOL, content='{"status": "sent"}', tool_call_id="call_0", name="find_order")
ANSWER = Message(role=Role.ASSISTANT, content="It is on its way.")
FIND_ORDER: JsonObject = {
    "type": "function",
    "function": {
        "name": "find_order",
        "description": "Look one order up.",
        "parameters": {"type": "object", "properties": {"order_id": {"type": "integer"}}, "required": ["order_id"]},
    },
}


def make_trajectory(
    *,
    id: str = "shop-1",
    messages: Sequence[Message] = (SYSTEM, USER, CALL, RESULT, ANSWER),
    tools: Sequence[JsonObject] = (FIND_ORDER,),
    passed: bool | None = True,
    verifier: str = "tool_call",
    metadata: JsonObject | None = None,
) -> Trajectory:
    return Trajectory(
        id=id,
        messages=tuple(messages),
        tools=tuple(tools),
        passed=passed,
        verifier=verifier,
        metadata=metadata or {},
    )


def make_turn(
    *,
    trajectory_id: str = "shop-1",
    index: int = 0,
    state: Sequence[Message] = (SYSTEM, USER),
    expert: Message = CALL,
    tools: Sequence[JsonObject] = (FIND_ORDER,),
    verifier: str = "tool_call",
    verifier_options: JsonObject | None = None,
    metadata: JsonObject | None = None,
) -> Turn:
    return Turn(
        trajectory_id=trajectory_id,
        index=index,
        state=tuple(state),
        expert=expert,
        tools=tuple(tools),
        verifier=verifier,
        verifier_options=verifier_options or {},
        metadata=metadata or {},
    )


def make_profile(
    scores: Sequence[float | None] = (0.0, 1.0),
    *,
    trajectory_id: str = "shop-1",
    index: int = 0,
    num_prompt_tokens: int | None = 100,
) -> TurnProfile:
    return TurnProfile(
        trajectory_id=trajectory_id,
        index=index,
        samples=tuple(
            Sample(text="", verdict=Verdict(score=score, reason="made_up"), num_tokens=5) for score in scores
        ),
        num_prompt_tokens=num_prompt_tokens,
    )
