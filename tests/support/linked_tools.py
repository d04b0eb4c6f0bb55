"""Tools of a shop whose results are arguments of others, and recordings of them, for tests of the tool graph."""

import json
from collections.abc import Mapping, Sequence

from tests.support.factories import make_trajectory
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall, Trajectory


def make_tool(
    name: str, arguments: Sequence[str], *, required: Sequence[str] | None = None, returns: JsonObject | None = None
) -> JsonObject:
    """A tool whose arguments are texts, all of them required unless `required` names some."""
    function: JsonObject = {
        "name": name,
        "description": f"Tool {name}.",
        "parameters": {
            "type": "object",
            "properties": {argument: {"type": "string"} for argument in arguments},
            "required": list(arguments if required is None else required),
        },
    }
    return {"type": "function", "function": function if returns is None else {**function, "returns": returns}}


FIND_CUSTOMER = make_tool("find_customer", ["email"])
LIST_ORDERS = make_tool("list_orders", ["customer_id"])
REFUND = make_tool("refund", ["order_id", "reason"])
SHOP = (FIND_CUSTOMER, LIST_ORDERS, REFUND)


def user(text: str) -> Message:
    return Message(role=Role.USER, content=text)


def called(name: str, arguments: JsonObject, result: Json) -> tuple[Message, Message]:
    """A call and its result."""
    call = ToolCall(name=name, arguments=arguments)
    text = result if isinstance(result, str) else json.dumps(result)
    return Message(role=Role.ASSISTANT, tool_calls=(call,)), Message(role=Role.TOOL, content=text, name=name)


def recorded(*messages: Message, tools: Sequence[JsonObject] = SHOP, id: str = "shop-1") -> Trajectory:
    return make_trajectory(id=id, messages=messages, tools=tools)


def refund_of(customer: str, order: str, *, id: str = "shop-1") -> Trajectory:
    """Recording of a refund; both ids come from results of earlier calls."""
    return recorded(
        user("My last order broke, I am ann@shop.example. I want my money back."),
        *called(
            "find_customer", {"email": "ann@shop.example"}, {"customer": {"id": customer}, "email": "ann@shop.example"}
        ),
        *called("list_orders", {"customer_id": customer}, {"customer_id": customer, "orders": [{"id": order}]}),
        *called("refund", {"order_id": order, "reason": "broke"}, "done"),
        Message(role=Role.ASSISTANT, content="You have it back."),
        id=id,
    )


def shapes(values: Mapping[str, str]) -> JsonObject:
    """JSON schema of an object with these properties: {name: JSON type}."""
    return {"type": "object", "properties": {name: {"type": type_} for name, type_ in values.items()}}
