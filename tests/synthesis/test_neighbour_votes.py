"""Edges by votes of a writer over a scripted server, and which tools the writer is shown."""

import json
from typing import Any

from tests.support.chat_server import chat_server, said
from tests.support.direct_workshop import direct_workshop
from tests.support.fake_engine import Answer
from tests.support.linked_tools import FIND_CUSTOMER, LIST_ORDERS, SHOP, make_tool
from verl_pivot.synthesis.neighbour_votes import neighbours, voted_edges
from verl_pivot.synthesis.tool_graph import EdgeOrigin, FieldEdge


def voted(*votes: tuple[str, str, str]) -> Answer:
    return said(json.dumps({"edges": [dict(zip(("result", "tool", "argument"), vote, strict=True)) for vote in votes]}))


async def edges(answers: list[Answer], num_votes: int = 3) -> tuple[list[FieldEdge], list[Any]]:
    """The voted edges of two tools, and the requests; the writer is asked about each tool with the other one."""
    with chat_server(answers) as server:
        async with direct_workshop(server.url) as workshop:
            found = await voted_edges([FIND_CUSTOMER, LIST_ORDERS], [], workshop, num_votes, 30)
        return found, server.requests


async def test_an_edge_needs_more_than_half_of_the_votes_and_a_tool_that_was_shown() -> None:
    good = ("customer.id", "list_orders", "customer_id")
    same = [
        voted(good, ("x", "refund", "order_id"), ("x", "list_orders", "shop"), ("a b", "list_orders", "customer_id"))
    ]

    found, requests = await edges(same, num_votes=1)

    # The question about list_orders gets the same answer, but its edges lead to tools that were not shown there.
    assert found == [FieldEdge("find_customer", "customer.id", "list_orders", "customer_id", EdgeOrigin.VOTED)]
    assert len(requests) == 2
    assert len({request["seed"] for request in requests}) == 2


async def test_answers_that_cannot_be_read_are_votes_for_none() -> None:
    for answer in (said("Sure!"), said('{"edges": "all"}'), said('{"edges": [{}]}'), said("{", end="length")):
        assert (await edges([answer]))[0] == []


async def test_a_tie_is_no_majority() -> None:
    lone = make_tool("customer_notes", ["customer_id"])
    good, none = voted(("notes.id", "list_orders", "customer_id")), voted()
    linked = [FieldEdge("list_orders", "id", "customer_notes", "customer_id", EdgeOrigin.SCHEMA)]
    for answers, num in (([good, none], 0), ([good, good], 1)):
        with chat_server(answers) as server:
            async with direct_workshop(server.url) as workshop:
                found = await voted_edges([lone, LIST_ORDERS], linked, workshop, 2, 30)

        assert len(found) == num


def test_neighbours_share_the_most_telling_words_and_have_no_edge_yet() -> None:
    tools = [*SHOP, make_tool("find_shop", ["customer_id", "order_id"]), make_tool("sing", [])]

    near = neighbours(tools, {("find_shop", "refund")}, 1)

    assert near["find_customer"] == ["find_shop"]  # shares two words; list_orders shares customer alone
    assert near["find_shop"] == ["find_customer"]
    assert neighbours(SHOP, {("find_customer", "list_orders"), ("find_customer", "refund")}, 9).keys() == {
        "list_orders",
        "refund",
    }
