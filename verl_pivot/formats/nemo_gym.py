"""Format `nemo-gym`: NeMo Gym's Responses rows, the input before one action and the expert's action."""

from collections.abc import Iterable, Sequence

from verl_pivot.data.json_values import BadRowError, as_list, as_object
from verl_pivot.data.messages import parse_call, parse_message, text_of
from verl_pivot.formats.columns import decoded_object, first_name, folded
from verl_pivot.formats.conversation import Conversation
from verl_pivot.formats.published_scores import published_scores
from verl_pivot.formats.registry import register_format
from verl_pivot.types import JsonObject, Message, Role

BESIDE = "verl_pivot"
"""Column of the rows that `nemo_gym_rows` writes: what their form cannot hold."""
REFERENCE = "reference_policy_info"
"""Column of those rows: rewards of the samples at the turn."""

_PARAMS = "responses_create_params"
_ACTIONS = ("expected_action", "expected_answer")
_IDS = ("trajectory_id", "source_trajectory_uid", "uuid", "id")
_TASKS = ("task_id", "instance_id")
_OURS = {BESIDE, REFERENCE, "trajectory_id", "agent_ref", "expected_answer"}
_OURS |= {"pass_rate", "pass_rate_total", "pass_rate_passed"}

_NO_FIELDS = {"position", "call_ids"}


@register_format("nemo-gym", detect=lambda row: _PARAMS in row)
def read_nemo_gym(row: JsonObject) -> Conversation:
    """A row is one candidate; the reward that a rollout file adds is the policy's, not the expert's.

    Raises:
        BadRowError: If the row breaks the format of NeMo Gym's pivot environments.
    """
    beside = as_object(row.get(BESIDE) or {}, BESIDE)
    tools = beside.get("tools") or as_object(row.get(_PARAMS), _PARAMS).get("tools")
    used = {_PARAMS, *_ACTIONS, "metadata", "response", "verifier", "verifier_options", *(_OURS if beside else ())}
    return Conversation(
        messages=restored(conversation_of(row), beside),
        tools=tools,
        id=first_name(row, _IDS),
        task=first_name(row, _TASKS),
        passed=_passed(beside),
        expert_turns="last",
        metadata={
            **{key: value for key, value in row.items() if key not in used},
            **decoded_object(row.get("metadata"), "metadata"),
        },
        scores=published_scores(row),
        columns=frozenset(row.keys() - {"response"}),
    )


def restored(messages: Sequence[Message], beside: JsonObject) -> tuple[Message, ...]:
    """The messages with what their items could not hold; `nemo_gym_rows` wrote it beside them.

    Raises:
        BadRowError: If that does not fit them.
    """
    whole = list(messages)
    for change in as_list(beside.get("state"), f"{BESIDE}.state"):
        fields = as_object(change, f"a change in {BESIDE}")
        position = fields.get("position")
        if not isinstance(position, int) or not 0 <= position < len(whole) - 1:
            raise BadRowError("bad_beside", f"{BESIDE}.state: {position!r} is no position in the state")
        whole[position] = _changed(whole[position], fields)
    whole[-1] = _changed(whole[-1], as_object(beside.get("expert") or {}, f"{BESIDE}.expert"))
    return tuple(whole)


def _changed(message: Message, fields: JsonObject) -> Message:
    plain = {**message.as_dict(), **{key: value for key, value in fields.items() if key not in _NO_FIELDS}}
    if "call_ids" in fields:
        calls, ids = message.tool_calls, as_list(fields["call_ids"], "call_ids")
        if len(calls) != len(ids):
            raise BadRowError("bad_beside", f"{BESIDE}: {len(ids)} ids of {len(calls)} calls")
        plain["tool_calls"] = [{**call.as_dict(), "id": call_id} for call, call_id in zip(calls, ids, strict=True)]
    return parse_message(plain)


def _passed(beside: JsonObject) -> bool | None:
    passed = beside.get("passed")
    if not isinstance(passed, bool | None):
        raise BadRowError("bad_beside", f"{BESIDE}.passed must be true, false or null")
    return passed


def conversation_of(row: JsonObject) -> tuple[Message, ...]:
    """The state and, as the last message, the expected action; one response's items are one assistant message.

    Raises:
        BadRowError: If the row breaks the format.
    """
    params = as_object(row.get(_PARAMS), _PARAMS)
    if params.get("previous_response_id") is not None:
        raise BadRowError("state_elsewhere", "previous_response_id is set: the state is not in the row")
    state = folded(_state_pieces(params))
    thinking = None
    if state and state[-1].role is Role.ASSISTANT:
        if state[-1].content or state[-1].tool_calls:
            raise BadRowError("state_ends_in_assistant", "the input ends with the assistant's own message or call")
        thinking = state.pop()
    action = folded([*([thinking] if thinking else []), *_action_pieces(row)])
    return (*state, *action)


def _state_pieces(params: JsonObject) -> Iterable[Message]:
    instructions, items = params.get("instructions"), params.get("input")
    if isinstance(instructions, str):
        yield Message(role=Role.SYSTEM, content=instructions)
    if isinstance(items, str):
        yield Message(role=Role.USER, content=items)
        return
    for item in as_list(items, "input"):
        yield _piece(as_object(item, "an input item"))


def _piece(item: JsonObject) -> Message:
    """One item as a message of its own."""
    kind = item.get("type") or "message"
    match kind:
        case "message":
            return parse_message(item)
        case "reasoning":
            return Message(role=Role.ASSISTANT, reasoning=_thinking(item))
        case "function_call":
            call_id = item.get("call_id")
            call = parse_call(item.get("name"), item.get("arguments"), call_id if isinstance(call_id, str) else None)
            return Message(role=Role.ASSISTANT, tool_calls=(call,))
        case "function_call_output":
            call_id, output = item.get("call_id"), text_of(item.get("output"), may_be_none=True)
            answered = call_id if isinstance(call_id, str) else None
            return Message(role=Role.TOOL, content=output, tool_call_id=answered)
        case _:
            raise BadRowError(
                "unknown_item",
                f"an item of type {kind!r}; known: message, reasoning, function_call, function_call_output",
            )


def _thinking(item: JsonObject) -> str:
    parts = as_list(item.get("content"), "reasoning.content") or as_list(item.get("summary"), "reasoning.summary")
    if not parts and item.get("encrypted_content"):
        raise BadRowError("encrypted_reasoning", "its reasoning is encrypted and cannot be read; remove that item")
    texts = [as_object(part, "a part of the reasoning").get("text") for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise BadRowError("not_text", "a part of the reasoning has no text")
    return "\n".join(str(text) for text in texts)


def _action_pieces(row: JsonObject) -> Iterable[Message]:
    action, answer = (row.get(key) for key in _ACTIONS)
    if action is None and isinstance(answer, str) and answer:
        return [Message(role=Role.ASSISTANT, content=answer)]
    if action is None:
        raise BadRowError("no_expected_action", "neither expected_action nor the text of expected_answer is there")
    action = as_object(action, "expected_action")
    match action.get("type"):
        case "function_call":
            return [_piece(action)]
        case "message":
            return [_piece({**action, "role": "assistant"})]
        case "function_call_batch":
            calls = as_list(action.get("calls"), "expected_action.calls")
            return [_piece({**as_object(call, "a call of the batch"), "type": "function_call"}) for call in calls]
        case kind:
            raise BadRowError(
                "unknown_action",
                f"expected_action of type {kind!r}; known: function_call, message, function_call_batch",
            )
