"""Edges between the fields of tools, from recordings and from schemas, and the graph of them."""

import json
from functools import cache

import pytest

from tests.support.linked_tools import SHOP, called, make_tool, recorded, refund_of, shapes, user
from tests.support.paths import SHARED_DATA
from verl_pivot.data.messages import parse_message
from verl_pivot.data.tool_schemas import parse_tools
from verl_pivot.synthesis.data_flow import mined_edges
from verl_pivot.synthesis.return_schemas import result_fields, schema_edges
from verl_pivot.synthesis.tool_graph import EdgeOrigin, FieldEdge, ToolGraph
from verl_pivot.types import JsonObject, Message, Role, ToolCall, Trajectory

AIRLINE = SHARED_DATA / "tau_airline"


def ends(edges: list[FieldEdge]) -> list[tuple[str, str, str, str]]:
    return [edge[:4] for edge in edges]


def test_values_that_only_results_held_are_edges_with_the_number_of_their_calls() -> None:
    recordings = [refund_of("cus_17", "ord_9"), refund_of("cus_18", "ord_4"), refund_of("cus_17", "ord_9")]

    assert mined_edges(recordings) == [
        FieldEdge("find_customer", "customer.id", "list_orders", "customer_id", EdgeOrigin.RECORDED, 3),
        FieldEdge("list_orders", "orders.id", "refund", "order_id", EdgeOrigin.RECORDED, 3),
    ]


def test_one_recorded_call_may_be_chance_and_is_no_edge() -> None:
    assert mined_edges([refund_of("cus_17", "ord_9")]) == []
    assert len(mined_edges([refund_of("cus_17", "ord_9")], min_calls=1)) == 2


def test_what_the_user_said_before_the_call_comes_from_the_user() -> None:
    trajectory = recorded(
        user("Refund ORD_9, it broke."),
        *called("list_orders", {"customer_id": "cus_17"}, {"orders": ["ord_9", "ord_4"]}),
        *called("refund", {"order_id": "ord_9", "reason": "broke"}, "done"),
        user("And ord_4 now?"),
        *called("refund", {"order_id": "ord_4", "reason": "broke"}, "done"),
    )

    assert mined_edges([trajectory], min_calls=1) == []


def test_what_a_call_was_told_is_not_from_its_result() -> None:
    """Results repeat the arguments; only the tool that gave a value first is its source."""
    trajectory = recorded(
        user("Money back!"),
        *called("find_customer", {"email": "ann@shop.example"}, {"id": "cus_17"}),
        *called("list_orders", {"customer_id": "cus_17"}, {"customer_id": "cus_17", "orders": []}),
        *called("refund", {"order_id": "cus_17", "reason": ""}, "no such order"),
    )

    assert ends(mined_edges([trajectory], min_calls=1)) == [
        ("find_customer", "id", "list_orders", "customer_id"),
        ("find_customer", "id", "refund", "order_id"),
    ]


def test_the_result_of_a_parallel_call_comes_too_late() -> None:
    calls = (
        ToolCall(id="a", name="find_customer", arguments={"email": "ann@shop.example"}),
        ToolCall(id="b", name="list_orders", arguments={"customer_id": "cus_17"}),
    )
    trajectory = recorded(
        user("My orders?"),
        Message(role=Role.ASSISTANT, tool_calls=calls),
        Message(role=Role.TOOL, content='{"id": "cus_17"}', tool_call_id="a"),
        Message(role=Role.TOOL, content="[]", tool_call_id="b"),
    )

    assert mined_edges([trajectory], min_calls=1) == []


def test_small_numbers_short_texts_and_truth_values_stand_everywhere_and_are_no_edges() -> None:
    held = {"flag": True, "few": 9, "many": 10, "short": "ab", "text": "abc", "empty": "", "none": None}
    trajectory = recorded(
        user("?"),
        *called("first", {}, held),
        *called("second", {f"to_{name}": value for name, value in held.items()}, "done"),
    )

    assert ends(mined_edges([trajectory], min_calls=1)) == [
        ("first", "many", "second", "to_many"),
        ("first", "text", "second", "to_text"),
    ]


def test_keys_that_are_data_are_values_and_share_one_path() -> None:
    cards = {
        "card_4421": {"id": "card_4421", "line1": "Main Street"},
        "card_1955": {"id": "card_1955", "line1": "High"},
    }
    trajectory = recorded(
        user("?"),
        *called("cards", {}, {"cards": cards}),
        *called("pay", {"parts": [{"card": "card_4421"}, {"card": "card_1955"}]}, "done"),
        *called("send", {"street": "Main Street"}, "done"),
    )

    assert [(*edge[:4], edge.num_calls) for edge in mined_edges([trajectory], min_calls=1)] == [
        ("cards", "cards.*", "pay", "parts.card", 1),
        ("cards", "cards.*.id", "pay", "parts.card", 1),
        ("cards", "cards.*.line1", "send", "street", 1),
    ]


def test_names_of_arguments_are_never_data() -> None:
    trajectory = recorded(
        user("?"),
        *called("first", {}, {"line10": "Main Street"}),
        *called("second", {"line10": "Main Street", "a.b": "Main Street", "lines": {"line10": "Main Street"}}, "done"),
    )

    assert ends(mined_edges([trajectory], min_calls=1)) == [
        ("first", "*", "second", "line10"),
        ("first", "*", "second", "lines.*"),
    ]


def test_a_result_without_json_is_one_text_and_a_deep_one_does_no_harm() -> None:
    deep = "[" * 900 + '"ord_9"' + "]" * 900
    trajectory = recorded(
        user("?"),
        *called("first", {}, "ord_9"),
        *called("second", {"order_id": "ord_9"}, deep),
        *called("third", {"order_id": "ord_9"}, "[" * 100_000),
    )

    assert ends(mined_edges([trajectory], min_calls=1)) == [
        ("first", "", "second", "order_id"),
        ("first", "", "third", "order_id"),
    ]


def test_a_field_of_a_result_gives_the_argument_of_its_name_and_type() -> None:
    result = shapes({"order_id": "string", "total": "number", "id": "string", "email 10": "string"})
    result["properties"]["customer"] = shapes({"id": "string", "email": "string"})  # type: ignore[index, call-overload]
    tools = [make_tool("find_order", ["email"], returns=result), *SHOP, make_tool("by_id", ["id", "total"])]

    assert schema_edges(tools) == [
        FieldEdge("find_order", "order_id", "refund", "order_id", EdgeOrigin.SCHEMA),
        FieldEdge("find_order", "customer.id", "list_orders", "customer_id", EdgeOrigin.SCHEMA),
        FieldEdge("find_order", "customer.email", "find_order", "email", EdgeOrigin.SCHEMA),
        FieldEdge("find_order", "customer.email", "find_customer", "email", EdgeOrigin.SCHEMA),
    ]


def test_a_name_that_more_than_thirty_tools_take_is_no_edge() -> None:
    giver = make_tool("give", [], returns=shapes({"page_token": "string"}))

    assert len(schema_edges([giver, *(make_tool(f"take_{n}", ["page_token"]) for n in range(30))])) == 30
    assert schema_edges([giver, *(make_tool(f"take_{n}", ["page_token"]) for n in range(31))]) == []


def test_a_schema_that_refers_to_itself_ends() -> None:
    node: JsonObject = {
        "type": "object",
        "properties": {"node_id": {"type": "string"}, **{f"child_{n}": {"$ref": "#/$defs/node"} for n in range(20)}},
    }
    tree: JsonObject = {"$ref": "#/$defs/node", "$defs": {"node": node}}

    found = result_fields(make_tool("read_tree", [], returns=tree))

    assert [field.path for field in found[:3]] == ["node_id", "child_0.node_id", "child_1.node_id"]
    assert len(found) < 500


def test_tools_without_parameters_and_without_results_are_nodes_without_edges() -> None:
    bare: JsonObject = {"type": "function", "function": {"name": "ping"}}
    graph = ToolGraph([bare, *SHOP], schema_edges([bare, *SHOP]))

    assert (sorted(graph.graph), graph.starts) == (["find_customer", "list_orders", "ping", "refund"], ())
    assert graph.required("ping") == frozenset()


def test_a_graph_keeps_the_neighbours_with_the_most_recorded_calls() -> None:
    edges = [
        FieldEdge("find_customer", "id", "list_orders", "customer_id", EdgeOrigin.SCHEMA),
        FieldEdge("find_customer", "last", "refund", "order_id", EdgeOrigin.RECORDED, 2),
        FieldEdge("find_customer", "order", "refund", "order_id", EdgeOrigin.RECORDED, 5),
        FieldEdge("find_customer", "id", "find_customer", "email", EdgeOrigin.RECORDED, 9),
        FieldEdge("find_customer", "id", "unknown", "email", EdgeOrigin.RECORDED, 9),
    ]

    assert ToolGraph(SHOP, edges).after("find_customer") == ("list_orders", "refund")
    one = ToolGraph(SHOP, edges, max_neighbours=1)
    assert (one.after("find_customer"), one.before("list_orders")) == (("refund",), ())
    assert [edge.result for edge in one.fields("find_customer", "refund")] == ["order", "last"]


@cache
def airline() -> tuple[tuple[JsonObject, ...], list[FieldEdge]]:
    tools = parse_tools((AIRLINE / "airline_tools.json").read_text())
    rows = map(json.loads, (AIRLINE / "gpt-4o-airline.jsonl").read_text().splitlines())
    recordings = [
        Trajectory(id=str(number), messages=tuple(map(parse_message, row["traj"])), tools=tools)
        for number, row in enumerate(rows)
    ]
    return tools, mined_edges(recordings)


@pytest.mark.skipif(not AIRLINE.is_dir(), reason="tau-bench's trajectories are not at ../shared/data/tau_airline")
def test_real_recordings_show_the_ways_that_the_airline_knows() -> None:
    tools, edges = airline()
    graph = ToolGraph(tools, edges)

    by_calls = sorted(edges, key=lambda edge: -edge.num_calls)
    assert by_calls[0][:4] == ("get_user_details", "reservations", "get_reservation_details", "reservation_id")
    assert ("calculate", "", "book_reservation", "payment_methods.amount") in ends(edges)
    assert {edge.argument_name for edge in graph.fields("search_onestop_flight", "update_reservation_flights")} == {
        "flights"
    }
    assert "think" not in graph.starts
