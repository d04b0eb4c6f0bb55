"""Turn -> a row of NeMo Gym's pivot environments, with what its form cannot hold in a column beside it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance

from verl_pivot.data.json_values import BadRowError, as_list, as_object, encode_json
from verl_pivot.data.messages import is_result_of
from verl_pivot.data.tool_schemas import parse_tools
from verl_pivot.formats.nemo_gym import BESIDE, REFERENCE, conversation_of
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall, Turn

DEFAULT_AGENT = "single_step_tool_use_with_argument_comparison_agent"
_AGENTS = {"terminus": "terminus_judge_simple_agent", "edit": "swe_pivot_tool_simulation_agent"}
"""[verifier] the agent of the environment whose verifier is nearest to it."""
_JUDGED_TEXT = "terminus_judge"
"""Environments of this name read the expert's text from `expected_answer`."""
_STATE_LOSSES = {
    "name": "name of the tool that a result is of",
    "call_ids": "that a call had no id",
    "tool_call_id": "that a tool's result had no id",
}
_EXPERT_LOSSES = {
    "call_ids": "id of the expert's call",
    "content": "the expert's text before a call",
    "reasoning_content": "the expert's reasoning",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """How a reference policy does at a turn, as far as it is known.

    Example:
        Reference(scores=(0.0, 1.0, 1.0, 0.0))
    """

    scores: tuple[float, ...] = ()
    """[num_samples] of those that the verifier decided."""
    pass_rate: float | None = None
    """Where the scores themselves are not known."""


def turn_to_nemo_gym(
    turn: Turn,
    *,
    agent: str | None = None,
    reference: Reference = Reference(),
    passed: bool | None = None,
) -> JsonObject:
    """A row that NeMo Gym reads, and that `read_nemo_gym` turns into an equal turn again.

    The input ends before the expert's turn, so that the policy does not see the expert's reasoning.

    Args:
        turn: Of a conversation that the import accepts.
        agent: Name in `agent_ref`; None: the one that the row came with, else the one nearest to the verifier.
        reference: Its samples at the turn.
        passed: Whether the outcome of the whole trajectory was right.

    Raises:
        BadRowError: If the turn cannot be in a conversation as it is, or a value has no JSON form.
    """
    if turn.index != (before := sum(message.role is Role.ASSISTANT for message in turn.state)):
        raise BadRowError("bad_turn_index", f"turn {turn.id} has {before} turns of the assistant's before it")
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
        BESIDE: {"version": 1, **({} if passed is None else {"passed": passed}), **_beside(turn, bare)},
    }
    if str(agent_ref["name"]).startswith(_JUDGED_TEXT) and not turn.expert.tool_calls:
        row["expected_answer"] = turn.expert.content
    return row


def losses(row: JsonObject) -> frozenset[str]:
    """What a row of `turn_to_nemo_gym` says in our own column only, which NeMo Gym does not read."""
    beside = as_object(row[BESIDE], BESIDE)
    state = {
        _STATE_LOSSES.get(field, f"{field} of a message")
        for change in as_list(beside.get("state"), "state")
        for field in as_object(change, "a change").keys() - {"position"}
    }
    expert = as_object(beside.get("expert") or {}, "expert")
    names = state | {_EXPERT_LOSSES.get(field, f"{field} of the expert") for field in expert}
    return frozenset(names | ({"details of a tool's schema"} if "tools" in beside else set()))


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
    """The Responses items of a conversation; calls without an id get one, as an item needs it."""
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
    """Id of the call that a tool's result answers, which is taken off the list."""
    for number, (call_id, call) in enumerate(open_calls):
        if is_result_of(message, call):
            del open_calls[number]
            return call_id
    raise BadRowError("tool_result_without_call", f"message {position} answers no call that is open")


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
    """The Responses form, which asks for `parameters` and `strict` even where they are null."""
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


def _reference_columns(reference: Reference) -> JsonObject:
    scores = reference.scores
    if not scores:
        return {} if reference.pass_rate is None else {"pass_rate": reference.pass_rate}
    passed, variance = scores.count(1.0), pvariance(scores)
    return {
        "pass_rate": passed / len(scores),
        "pass_rate_total": len(scores),
        "pass_rate_passed": passed,
        REFERENCE: {
            "rewards": list(scores),
            "reward_mean": fmean(scores),
            "reward_std": math.sqrt(variance),
            "reward_var": variance,
        },
    }


def _beside(turn: Turn, bare: JsonObject) -> JsonObject:
    """What would be otherwise if the row alone were read back."""
    *state, expert = conversation_of(bare)
    changes: list[Json] = [
        {"position": position, **fields}
        for position, (wanted, read) in enumerate(zip(turn.state, state, strict=True))
        if (fields := _differing(wanted, read))
    ]
    params = as_object(bare["responses_create_params"], "params")
    found: JsonObject = {"state": changes, "expert": _differing(turn.expert, expert)}
    if _read_tools(params["tools"]) != turn.tools:
        found["tools"] = list(turn.tools)
    return {key: value for key, value in found.items() if value}


def _differing(wanted: Message, read: Message) -> JsonObject:
    """The fields of a message that its items do not hold, in the OpenAI form; of calls, their ids."""
    plain, other = wanted.as_dict(), read.as_dict()
    names = sorted((plain.keys() | other.keys()) - {"tool_calls"})
    fields: JsonObject = {name: plain.get(name) for name in names if plain.get(name) != other.get(name)}
    call_ids: list[Json] = [call.id for call in wanted.tool_calls]
    return fields if call_ids == [call.id for call in read.tool_calls] else {**fields, "call_ids": call_ids}


def _read_tools(flat: Json) -> tuple[JsonObject, ...] | None:
    try:
        return parse_tools(flat)
    except BadRowError:  # the flat form has taken a key of a schema for one of its own
        return None
