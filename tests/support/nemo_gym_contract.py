"""Rules that a row of NeMo Gym's pivot environments must keep.

They follow its row contract, the models of its single-step tool-use environment, and OpenAI's types of the Responses
API.
"""

import json
from collections.abc import Iterator
from typing import Any

from openai.types.responses import FunctionToolParam, ResponseInputItemParam
from pydantic import TypeAdapter, ValidationError

PARAMS = {
    *("background", "include", "input", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "model"),
    *("parallel_tool_calls", "previous_response_id", "prompt", "reasoning", "service_tier", "store", "stream"),
    *("temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user"),
}
ITEM: TypeAdapter[Any] = TypeAdapter(ResponseInputItemParam)
TOOL: TypeAdapter[Any] = TypeAdapter(FunctionToolParam)
TYPES = {"message", "reasoning", "function_call", "function_call_output"}


def broken_rules(row: dict[str, Any]) -> set[str]:
    """Names of the rules that a row breaks; NeMo Gym takes a row that breaks none."""
    params, agent_ref = row.get("responses_create_params"), row.get("agent_ref")
    broken = set(_broken_action(row.get("expected_action"), params))
    if not isinstance(agent_ref, dict) or agent_ref.get("type") != "responses_api_agents" or not agent_ref.get("name"):
        broken.add("agent_ref")
    if "pass_rate_total" in row and row["pass_rate"] != row["pass_rate_passed"] / row["pass_rate_total"]:
        broken.add("pass_rate")
    return broken | set(_broken_params(params) if isinstance(params, dict) else ["responses_create_params"])


def _broken_params(params: dict[str, Any]) -> Iterator[str]:
    if params.keys() - PARAMS:
        yield "unknown parameter"
    if params.get("metadata", {}) is None:
        yield "metadata is null"
    if params.get("tool_choice", "auto") != "auto":
        yield "tool_choice"
    if not isinstance(params.get("parallel_tool_calls", False), bool):
        yield "parallel_tool_calls"
    if not isinstance(params.get("tools"), list):
        yield "tools"
    elif not all(_is_valid(TOOL, tool) for tool in params["tools"]):
        yield "tool schema"
    if not isinstance(params.get("input"), list) or not params["input"]:
        yield "input"
    else:
        yield from _broken_items(params["input"])


def _broken_items(items: list[dict[str, Any]]) -> Iterator[str]:
    if not all(item.get("type", "message") in TYPES and _is_valid(ITEM, item) for item in items):
        yield "input item"
    called: set[str] = set()
    for item in items:
        if item.get("type") == "function_call":
            called.add(item["call_id"])
            yield from _broken_call(item)
        elif item.get("type") == "function_call_output" and item["call_id"] not in called:
            yield "output without call"


def _broken_action(action: Any, params: Any) -> Iterator[str]:
    match action:
        case {"type": "message", "content": str()}:
            return
        case {"type": "function_call"}:
            calls = [action]
        case {"type": "function_call_batch", "calls": [_, *_] as calls}:
            pass
        case _:
            yield "expected_action"
            return
    known = {tool.get("name") for tool in (params or {}).get("tools") or []}
    for call in calls:
        yield from _broken_call(call)
        if call.get("name") not in known:
            yield "unknown tool"


def _broken_call(call: dict[str, Any]) -> Iterator[str]:
    if call.get("type") != "function_call" or not isinstance(call.get("name"), str) or not call["name"]:
        yield "call"
    try:
        if not isinstance(json.loads(call["arguments"]), dict):
            yield "arguments"
    except (KeyError, TypeError, ValueError):
        yield "arguments"


def _is_valid(schema: TypeAdapter[Any], value: Any) -> bool:
    try:
        schema.validate_python(value)
    except ValidationError:
        return False
    return True
