"""Program that plays every role of Magnet without a language model, and makes a careless mistake now and then.

The user's messages hold a plan in base64, which the caller follows, and all values of the plan as plain text. Commands
take the program as `--program tests/support/path_clerk.py:answer`.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

from verl_pivot.synthesis.data_flow import result_value, scalars
from verl_pivot.synthesis.writer import WriterQuestion

CARELESS = 0.05
"""Share of answers with a mistake."""
_LINK = re.compile(r"Do not say (\S+) of (\S+): the assistant takes it from (.+?) in the result of (\S+)\.")
_WITHHELD = re.compile(r"Do not say (\S+) of \S+: the assistant asks")
_TOLD = re.compile(r"a made-up value for (\S+) of this tool")
_SCHEMA = re.compile(r'^(?:\d+\. )?(\{"name": .*\})$', re.MULTILINE)
_FIELDS = re.compile(r"The result must have: (.+?)\. Dots")
_GARBAGE = ("Sure!", '{"text": 17}', "-", "```json\n{}\n```\n```json\n{}\n```", '{"text": "cut')


def answer(question: WriterQuestion) -> Any:
    rng = Random(question.seed)
    is_careless = rng.random() < CARELESS
    text = str(question.messages[0]["content"])
    if question.tools:
        hinted = re.search(r"exactly this call: (.+)", text)
        call = json.loads(hinted[1]) if hinted else _next_call(question.messages)
        if isinstance(call, str):
            return call
        return _as_message(_mistaken(call, question.tools, rng) if is_careless else call)
    if is_careless:
        return rng.choice(_GARBAGE)
    asked = text.partition("The conversation so far")[0]
    if text.startswith("You play a tool"):
        fields = _FIELDS.search(asked)
        return json.dumps({"result": _result(fields[1].split(", ") if fields else [], rng)})
    if told := _TOLD.search(asked):
        (schema,) = _schemas(asked)
        return _said({"told": {path: _made_up(each, path, rng) for path, each in _leaves(schema, told[1])}})
    return _said(_plan(asked, rng))


def _said(plan: Mapping[str, Any]) -> str:
    hidden = base64.b64encode(json.dumps(plan).encode()).decode()
    calls = plan.get("calls", [])
    values = [call["values"] for call in calls] or [plan["told"]]
    return json.dumps({"text": f"{hidden} {json.dumps([list(each.values()) for each in values])}"})


def _plan(asked: str, rng: Random) -> dict[str, Any]:
    """The calls of a request, with a made-up value for each required argument that no result gives."""
    links: dict[str, dict[str, list[str]]] = {}
    for argument, tool, result, giver in _LINK.findall(asked):
        links.setdefault(tool, {})[argument] = [giver, "" if result == "the text" else result]
    withheld = _WITHHELD.search(asked)
    schemas = _schemas(asked)
    schemas.sort(key=lambda schema: f"\n{schema['name']}" not in asked and _is_implied(schema, asked), reverse=True)
    calls = []
    for number, schema in enumerate(schemas, start=1):
        left_out = set(links.get(schema["name"], {}))
        hidden = withheld[1] if withheld and number == len(schemas) else None
        values = {
            path: _made_up(each, path, rng)
            for path, each in _leaves(schema)
            if path not in left_out and path.partition(".")[0] != hidden
        }
        calls.append(
            {"name": schema["name"], "values": values, "links": links.get(schema["name"], {}), "schema": schema}
        )
    return {"calls": calls, "withheld": withheld[1] if withheld else None}


def _is_implied(schema: Mapping[str, Any], asked: str) -> bool:
    return re.search(rf'^\d+\. \{{"name": "{schema["name"]}"', asked, re.MULTILINE) is None


def _schemas(asked: str) -> list[dict[str, Any]]:
    return [json.loads(found) for found in _SCHEMA.findall(asked) if '"parameters"' in found]


def _leaves(schema: Mapping[str, Any], only: str | None = None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Paths and schemas of the values that a tool requires, or of those in one argument."""
    parameters = schema["parameters"]
    for name in parameters.get("required", []):
        if only in (None, name):
            yield from _within(parameters["properties"][name], name)


def _within(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if "properties" in schema:
        for name, child in schema["properties"].items():
            yield from _within(child, f"{path}.{name}")
    elif "items" in schema:
        yield from _within(schema["items"], path)
    else:
        yield path, schema


def _made_up(schema: Mapping[str, Any], path: str, rng: Random) -> Any:
    if "enum" in schema:
        return rng.choice(schema["enum"])
    made: dict[str, Any] = {"integer": rng.randint(10, 99), "number": rng.randint(10, 99), "boolean": True}
    return made.get(str(schema.get("type")), f"{path.rpartition('.')[2]}-{rng.randint(1000, 9999)}")


def _next_call(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any] | str:
    """The next call of the last request, or a text of the caller if there is none or a value is withheld."""
    at = max(number for number, each in enumerate(messages) if each["role"] == "user" and "calls" in _read(each))
    plan, later = _read(messages[at]), messages[at + 1 :]
    told = [_read(each)["told"] for each in later if each["role"] == "user"]
    num_made = sum("tool_calls" in each for each in later)
    if num_made == len(plan["calls"]):
        return "That is done."
    if plan["withheld"] and not told and num_made == len(plan["calls"]) - 1:
        return "Which value do you mean?"
    call = plan["calls"][num_made]
    values = {**call["values"], **(told[0] if told else {})}
    for argument, (giver, result) in call["links"].items():
        values[argument] = _value_of(messages, giver, result)
    properties = call["schema"]["parameters"]["properties"]
    needed = {path.partition(".")[0] for path in values}
    return {
        "name": call["name"],
        "arguments": {name: _built(properties[name], name, values) for name in sorted(needed)},
    }


def _read(message: Mapping[str, Any]) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads(base64.b64decode(str(message["content"]).split()[0]))
    return plan


def _value_of(messages: Sequence[Mapping[str, Any]], giver: str, result: str) -> Any:
    """The value at a path in the last result of a tool."""
    ids = {call["id"] for each in messages for call in each.get("tool_calls", ()) if call["function"]["name"] == giver}
    content = [str(each["content"]) for each in messages if each.get("tool_call_id") in ids][-1]
    return next(each.value for each in scalars(result_value(content)) if each.path == result)


def _built(schema: Mapping[str, Any], path: str, values: Mapping[str, Any]) -> Any:
    if "properties" in schema:
        inner = {name: (child, f"{path}.{name}") for name, child in schema["properties"].items()}
        known = {name: each for name, each in inner.items() if any(key.startswith(each[1]) for key in values)}
        return {name: _built(child, place, values) for name, (child, place) in known.items()}
    if "items" in schema:
        return [_built(schema["items"], path, values)]
    return values[path]


def _result(fields: Sequence[str], rng: Random) -> Any:
    """A result with these fields."""
    if fields == ["a text alone"]:
        return str(rng.randint(100, 999))
    made: dict[str, Any] = {"status": "ok"}
    for field in fields:
        *keys, last = [f"key_{rng.randint(1000, 9999)}" if key == "*" else key for key in field.split(".")]
        inside = made
        for key in keys:
            inside = inside.setdefault(key, {})
        inside[last] = f"{field.rpartition('.')[2].strip('*')}-{rng.randint(1000, 9999)}"
    return made


def _as_message(call: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
    return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}


def _mistaken(call: Mapping[str, Any], tools: Sequence[Mapping[str, Any]], rng: Random) -> dict[str, Any]:
    """The call with a mistake: another tool, an invented value, or a missing argument."""
    arguments = dict(call["arguments"])
    kind = rng.randrange(3)
    if kind == 0 or not arguments:
        return {"name": rng.choice(tools)["function"]["name"], "arguments": arguments}
    name = rng.choice(sorted(arguments))
    if kind == 1:
        return {"name": call["name"], "arguments": {**arguments, name: f"invented-{rng.randint(1000, 9999)}"}}
    del arguments[name]
    return {"name": call["name"], "arguments": arguments}


def timid(question: WriterQuestion) -> Any:
    """A policy of the shop that finds customers and lists their orders, and never refunds anything."""
    action = perfect(question)
    return "I had rather not." if "refund" in json.dumps(action) else action


def perfect(question: WriterQuestion) -> Any:
    """The policy that made the shop's recordings."""
    texts = [str(each["content"]) for each in question.messages if each["role"] == "tool"]
    if not texts:
        address = re.search(r"\S+@\S+\.\w+", str(question.messages[0]["content"]))
        return _as_message({"name": "find_customer", "arguments": {"email": address[0] if address else "?"}})
    found = result_value(texts[-1])
    if not isinstance(found, dict):
        return "That is done."
    if "customer" in found:
        return _as_message({"name": "list_orders", "arguments": {"customer_id": found["customer"]["id"]}})
    order = found["orders"][0]["id"] if isinstance(found.get("orders"), list) else "?"
    return _as_message({"name": "refund", "arguments": {"order_id": order, "reason": "broke"}})
