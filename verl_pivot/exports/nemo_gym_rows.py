"""Turn -> a row of NeMo Gym's pivot environments; fields that its form cannot hold go into a column of our own."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance

from verl_pivot.data.json_values import BadRowError, as_list, as_object, encode_json
from verl_pivot.data.messages import is_result_of
from verl_pivot.data.tool_schemas import parse_tools
from verl_pivot.formats.nemo_gym import OWN_COLUMN, REWARDS_COLUMN, conversation_of
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall, Turn

DEFAULT_AGENT = "single_step_tool_use_with_argument_comparison_agent"
_AGENTS = {"terminus": "terminus_judge_simple_agent", "edit": "swe_pivot_tool_simulation_agent"}
"""{verifier: agent of the environment in NeMo Gym that compares actions in the most similar way}."""
_JUDGE_PREFIX = "terminus_judge"
"""Start of the names of agents whose environment reads the expert's text from `expected_answer`."""
_LOST_STATE_FIELDS = {
    "name": "tool name of a result",
    "call_ids": "missing id of a call",
    "tool_call_id": "missing id of a result",
}
"""{field of a message: name of its loss in the report}. That an id is missing is lost too: NeMo Gym needs an id."""
_LOST_EXPERT_FIELDS = {
    "call_ids": "id of the expert's call",
    "content": "the expert's text before a call",
    "reasoning_content": "the expert's reasoning",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceScores:
    """Scores of a reference policy's samples at a turn, or only its pass rate.

    Example:
        ReferenceScores(scores=(0.0, 1.0, 1.0, 0.0))
    """

    scores: tuple[float, ...] = ()
    """[num_samples] scores of the decided samples; empty if they are not known."""
    pass_rate: float | None = None
    """Share of samples with full score, used if the scores are not known; None if it is not known either."""


def turn_to_nemo_gym(
    turn: Turn,
    *,
    agent: str | None = None,
    reference: ReferenceScores = ReferenceScores(),
    passed: bool | None = None,
) -> JsonObject:
    """A row that NeMo Gym reads, and from which `read_nemo_gym` makes an equal turn.

    The input ends before the expert's turn, so that the policy does not see the expert's reasoning.

    Args:
        turn: Turn of a conversation that the import accepts.
        agent: Name in `agent_ref`; None takes the one that the row was imported with, else the one in `_AGENTS`.
        reference: Scores of a reference policy at the turn.
        passed: Whether the outcome of the whole trajectory was right; None if it is not known.

    Raises:
        BadRowError: If no conversation can hold the turn as it is, or a value has no JSON form.
    """
    if turn.index != (num_before := sum(message.role is Role.ASSISTANT for message in turn.state)):
        raise BadRowError(
            "bad_turn_index",
            f"turn {turn.id} must have index {num_before}, the number of assistant turns before it",
        )
    bare = _bare_row(turn)
    agent_ref: JsonObject = _own_agent(turn) if agent is None else _agent_ref(agent)
    row: JsonObject = {
        "trajectory_id": turn.trajectory_id,
        **bare,
        "agent_ref": agent_ref,
        **_reference_columns(reference),
        "verifier": turn.verifier,
        "verifier_options": turn.verifier_options,
        "metadata": turn.metadata,
        OWN_COLUMN: {"version": 1, **({} if passed is None else {"passed": passed}), **_unheld_fields(turn, bare)},
    }
    if str(agent_ref["name"]).startswith(_JUDGE_PREFIX) and not turn.expert.tool_calls:
        row["expected_answer"] = turn.expert.content
    return row


def lost_fields(row: JsonObject) -> frozenset[str]:
    """Names, for people, of the fields that a row of `turn_to_nemo_gym` holds only in our own column.

    NeMo Gym does not read that column, so these fields are lost for it.
    """
    own = as_object(row[OWN_COLUMN], OWN_COLUMN)
    state = {
        _LOST_STATE_FIELDS.get(field, f"{field} of a message")
        for change in as_list(own.get("state"), "state")
        for field in as_object(change, "a change").keys() - {"position"}
    }
    expert = as_object(own.get("expert") or {}, "expert")
    names = state | {_LOST_EXPERT_FIELDS.get(field, f"{field} of the expert") for field in expert}
    return frozenset(names | ({"details of a tool's schema"} if "tools" in own else set()))


def _bare_row(turn: Turn) -> JsonObject:
    is_batch = len(turn.expert.tool_calls) > 1
    return {
        "responses_create_params": {
            "input": list(_items(turn.state)),
            "tools": [_flat_tool(tool) for tool in turn.tools],
            "parallel_tool_calls": is_batch,
            "tool_choice": "auto",
        },
        "expected_action": _action(turn.expert),
    }


def _items(messages: Sequence[Message]) -> Iterator[JsonObject]:
    """Items of a conversation in the Responses form; calls without an id get one, since an item needs it."""
    open_calls: list[tuple[str, ToolCall]] = []
    for position, message in enumerate(messages):
        match message.role:
            case Role.TOOL:
                call_id = _answered(open_calls, message, position)
                yield {"type": "function_call_output", "call_id": call_id, "output": message.content}
            case Role.ASSISTANT:
                ids = [call.id or f"call_{position}_{number}" for number, call in enumerate(message.tool_calls)]
                open_calls = list(zip(ids, message.tool_calls, strict=True))
                yield from _assistant_items(message, position, open_calls)
            case _:
                open_calls = []
                yield {"type": "message", "role": message.role.value, "content": message.content}


def _assistant_items(message: Message, position: int, calls: Sequence[tuple[str, ToolCall]]) -> Iterator[JsonObject]:
    if message.reasoning is not None:
        summary: list[Json] = [{"type": "summary_text", "text": message.reasoning}]
        yield {"type": "reasoning", "id": f"rs_{position}", "summary": summary}
    if message.content:
        parts: list[Json] = [{"type": "output_text", "text": message.content, "annotations": []}]
        status = {"id": f"msg_{position}", "status": "completed"}
        yield {"type": "message", "role": "assistant", **status, "content": parts}
    for call_id, call in calls:
        yield {**_call_item(call), "call_id": call_id}


def _answered(open_calls: list[tuple[str, ToolCall]], message: Message, position: int) -> str:
    """Id of the open call that a tool's result answers; the call is removed from the list."""
    for number, (call_id, call) in enumerate(open_calls):
        if is_result_of(message, call):
            del open_calls[number]
            return call_id
    raise BadRowError("tool_result_without_call", f"message {position} is a result, and no open call belongs to it")


def _call_item(call: ToolCall) -> JsonObject:
    return {"type": "function_call", "name": call.name, "arguments": encode_json(call.arguments)}


def _action(expert: Message) -> JsonObject:
    match expert.tool_calls:
        case ():
            return {"type": "message", "content": expert.content}
        case (call,):
            return _call_item(call)
        case calls:
            return {"type": "function_call_batch", "calls": [_call_item(call) for call in calls]}


def _flat_tool(tool: JsonObject) -> JsonObject:
    """A schema in the flat Responses form, which needs the keys `parameters` and `strict` even if they are null."""
    function = tool["function"]
    assert isinstance(function, dict), tool
    return {"parameters": None, "strict": None, **function, "type": "function"}


def _agent_ref(name: str) -> JsonObject:
    return {"type": "responses_api_agents", "name": name}


def _own_agent(turn: Turn) -> JsonObject:
    match turn.metadata.get("agent_ref"):
        case {"type": "responses_api_agents", "name": str(name)} if name:
            return _agent_ref(name)
    return _agent_ref(_AGENTS.get(turn.verifier, DEFAULT_AGENT))


def _reference_columns(reference: ReferenceScores) -> JsonObject:
    scores = reference.scores
    if not scores:
        return {} if reference.pass_rate is None else {"pass_rate": reference.pass_rate}
    passed, variance = scores.count(1.0), pvariance(scores)
    return {
        "pass_rate": passed / len(scores),
        "pass_rate_total": len(scores),
        "pass_rate_passed": passed,
        REWARDS_COLUMN: {
            "rewards": list(scores),
            "reward_mean": fmean(scores),
            "reward_std": math.sqrt(variance),
            "reward_var": variance,
        },
    }


def _unheld_fields(turn: Turn, bare: JsonObject) -> JsonObject:
    """Fields of the turn that would differ if the row were read back without our own column."""
    *state, expert = conversation_of(bare)
    changes: list[Json] = [
        {"position": position, **fields}
        for position, (original, read) in enumerate(zip(turn.state, state, strict=True))
        if (fields := _differing(original, read))
    ]
    params = as_object(bare["responses_create_params"], "params")
    unheld: JsonObject = {"state": changes, "expert": _differing(turn.expert, expert)}
    if _read_tools(params["tools"]) != turn.tools:
        unheld["tools"] = list(turn.tools)
    return {key: value for key, value in unheld.items() if value}


def _differing(original: Message, read: Message) -> JsonObject:
    """Fields of the original message, in OpenAI's form, that differ in the one read back; for calls only their ids."""
    plain, other = original.as_dict(), read.as_dict()
    names = sorted((plain.keys() | other.keys()) - {"tool_calls"})
    fields: JsonObject = {name: plain.get(name) for name in names if plain.get(name) != other.get(name)}
    call_ids: list[Json] = [call.id for call in original.tool_calls]
    return fields if call_ids == [call.id for call in read.tool_calls] else {**fields, "call_ids": call_ids}


def _read_tools(flat: Json) -> tuple[JsonObject, ...] | None:
    try:
        return parse_tools(flat)
    except BadRowError:  # a key of the schema has the name of a key of the flat form, such as `type`
        return None
