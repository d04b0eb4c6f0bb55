"""Format `nemo-gym`: rows of NeMo Gym's pivot environments, each with the input before one action and that action."""

from collections.abc import Iterable, Sequence

from verl_pivot.data.json_values import BadRowError, as_list, as_object, decode_json, type_in_words
from verl_pivot.data.messages import parse_call, parse_message, text_of
from verl_pivot.formats.columns import decoded_object, first_name, merge_pieces
from verl_pivot.formats.conversation import Conversation
from verl_pivot.formats.published_scores import published_scores
from verl_pivot.formats.registry import register_format
from verl_pivot.types import JsonObject, Message, Role

OWN_COLUMN = "verl_pivot"
"""Column that `exports.nemo_gym_rows` adds to its rows, for fields of a turn that NeMo Gym's form cannot hold."""
REWARDS_COLUMN = "reference_policy_info"
"""Column of the same rows with the rewards of the reference policy's samples at the turn."""

_PARAMS = "responses_create_params"
_ACTIONS = ("expected_action", "expected_answer")
_IDS = ("trajectory_id", "source_trajectory_uid", "uuid", "id")
_TASKS = ("task_id", "instance_id")
_EXPORTED = {OWN_COLUMN, REWARDS_COLUMN, "trajectory_id", "agent_ref", "expected_answer"}
_EXPORTED |= {"pass_rate", "pass_rate_total", "pass_rate_passed"}
"""Columns that are not kept as metadata if a row was written by our own export."""

_BATCH_KEYS = {"analysis", "plan", "state_analysis", "explanation"}
"""Keys of a batch of keystrokes beside its commands, in the formats of Terminus 1 and 2."""
_NOT_MESSAGE_FIELDS = {"position", "call_ids"}


@register_format("nemo-gym", detect=lambda row: _PARAMS in row)
def read_nemo_gym(row: JsonObject) -> Conversation:
    """The one pivot candidate of a row.

    A reward in the row, as in rollout files, belongs to a policy's response; it is not read as the expert's outcome.

    Raises:
        BadRowError: If the row breaks the format of NeMo Gym's pivot environments.
    """
    own = as_object(row.get(OWN_COLUMN) or {}, OWN_COLUMN)
    tools = own.get("tools") or as_object(row.get(_PARAMS), _PARAMS).get("tools")
    used = {_PARAMS, *_ACTIONS, "metadata", "response", "verifier", "verifier_options", *(_EXPORTED if own else ())}
    return Conversation(
        messages=_restored(conversation_of(row), own),
        tools=tools,
        id=first_name(row, _IDS),
        task=first_name(row, _TASKS),
        passed=_passed(own),
        expert_turns="last",
        metadata={
            **{key: value for key, value in row.items() if key not in used},
            **decoded_object(row.get("metadata"), "metadata"),
        },
        verifier="" if own else _verifier_of(row),
        scores=published_scores(row),
        columns=frozenset(row.keys() - {"response"}),
    )


def _verifier_of(row: JsonObject) -> str:
    """The verifier `terminus` for the terminal environments, whose expected answer is a batch of keystrokes in JSON."""
    answer = row.get("expected_answer")
    if row.get("expected_action") is not None or not isinstance(answer, str):
        return ""
    try:
        batch = decode_json(answer)
    except BadRowError:
        return ""
    if not isinstance(batch, dict) or not isinstance(batch.get("commands"), list):
        return ""
    return "terminus" if batch.keys() & _BATCH_KEYS else ""


def _restored(messages: Sequence[Message], own: JsonObject) -> tuple[Message, ...]:
    """The messages with the fields that `exports.nemo_gym_rows` wrote into OWN_COLUMN."""
    whole = list(messages)
    for change in as_list(own.get("state"), f"{OWN_COLUMN}.state"):
        fields = as_object(change, f"a change in {OWN_COLUMN}")
        position = fields.get("position")
        if not isinstance(position, int) or not 0 <= position < len(whole) - 1:
            raise BadRowError(
                "bad_verl_pivot_column",
                f"{OWN_COLUMN}.state: position must be a number from 0 to {len(whole) - 2}, got {position!r}",
            )
        whole[position] = _changed(whole[position], fields)
    whole[-1] = _changed(whole[-1], as_object(own.get("expert") or {}, f"{OWN_COLUMN}.expert"))
    return tuple(whole)


def _changed(message: Message, fields: JsonObject) -> Message:
    plain = {**message.as_dict(), **{key: value for key, value in fields.items() if key not in _NOT_MESSAGE_FIELDS}}
    if "call_ids" in fields:
        calls, ids = message.tool_calls, as_list(fields["call_ids"], "call_ids")
        if len(calls) != len(ids):
            raise BadRowError(
                "bad_verl_pivot_column",
                f"{OWN_COLUMN}: call_ids must hold {len(calls)} ids, one for each call, got {len(ids)}",
            )
        plain["tool_calls"] = [{**call.as_dict(), "id": call_id} for call, call_id in zip(calls, ids, strict=True)]
    return parse_message(plain)


def _passed(own: JsonObject) -> bool | None:
    passed = own.get("passed")
    if not isinstance(passed, bool | None):
        raise BadRowError(
            "bad_verl_pivot_column",
            f"{OWN_COLUMN}.passed must be true, false or null, got {type_in_words(passed)}",
        )
    return passed


def conversation_of(row: JsonObject) -> tuple[Message, ...]:
    """Messages of a row: the state, and last the expected action. Items of one response are one assistant message.

    Raises:
        BadRowError: If the row breaks the format.
    """
    params = as_object(row.get(_PARAMS), _PARAMS)
    if params.get("previous_response_id") is not None:
        raise BadRowError(
            "state_elsewhere", "previous_response_id is set, so the state is not in the row; write it into input"
        )
    state = merge_pieces(_state_pieces(params))
    thinking = None
    if state and state[-1].role is Role.ASSISTANT:
        if state[-1].content or state[-1].tool_calls:
            raise BadRowError(
                "state_ends_in_assistant",
                "input must end before the assistant's turn, but ends with text or a call of it",
            )
        thinking = state.pop()
    action = merge_pieces([*([thinking] if thinking else []), *_action_pieces(row)])
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
    """One item of the Responses form as a message of its own."""
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
                f"unknown item type {kind!r}; known: message, reasoning, function_call, function_call_output",
            )


def _thinking(item: JsonObject) -> str:
    parts = as_list(item.get("content"), "reasoning.content") or as_list(item.get("summary"), "reasoning.summary")
    if not parts and item.get("encrypted_content"):
        raise BadRowError("encrypted_reasoning", "the reasoning is encrypted and cannot be read; remove that item")
    texts = [as_object(part, "a part of the reasoning").get("text") for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise BadRowError("not_text", "a part of the reasoning has no text")
    return "\n".join(str(text) for text in texts)


def _action_pieces(row: JsonObject) -> Iterable[Message]:
    action, answer = (row.get(key) for key in _ACTIONS)
    if action is None and isinstance(answer, str) and answer:
        return [Message(role=Role.ASSISTANT, content=answer)]
    if action is None:
        raise BadRowError("no_expected_action", "the row has neither expected_action nor a text in expected_answer")
    action = as_object(action, "expected_action")
    match action.get("type"):
        case "function_call":
            return [_piece(action)]
        case "message":
            return [_piece({**action, "role": "assistant"})]
        case "function_call_batch":
            calls = as_list(action.get("calls"), "expected_action.calls")
            if not calls:
                raise BadRowError("no_expected_action", "expected_action is a batch without a call")
            return [_piece({**as_object(call, "a call of the batch"), "type": "function_call"}) for call in calls]
        case kind:
            raise BadRowError(
                "unknown_action",
                f"unknown type {kind!r} of expected_action; known: function_call, message, function_call_batch",
            )
