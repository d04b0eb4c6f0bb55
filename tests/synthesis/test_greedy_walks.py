"""Paths to one tool: they are legal, begin as far away as they may, and give the tool what it requires."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.linked_tools import make_tool
from tests.synthesis.test_tool_graph import AIRLINE, airline
from tests.synthesis.test_tool_paths import CHAIN, CUSTOMER, edges, refund
from verl_pivot.synthesis.greedy_walks import draw_path_to
from verl_pivot.synthesis.tool_graph import EdgeOrigin, FieldEdge, ToolGraph
from verl_pivot.synthesis.tool_paths import PathCall, PathTurn, ToolPath, path_problem

FIND = PathCall(tool="find_customer", is_implied=True)
LIST = PathCall(tool="list_orders", links=(CUSTOMER,), is_implied=True)


def test_a_path_begins_at_the_farthest_tool_and_only_its_end_is_asked_for() -> None:
    path = draw_path_to(CHAIN, "refund", Random(0), 7)

    # `reasons` gives the other argument of refund, but is not added, since it takes nothing from an earlier call
    assert path == ToolPath(turns=(PathTurn(calls=(FIND, LIST, refund())),))


def test_a_short_path_begins_nearer() -> None:
    path = draw_path_to(CHAIN, "refund", Random(1), 2)

    assert path is not None
    assert [call.tool for call in path.calls] in (["list_orders", "refund"], ["reasons", "refund"])


def test_a_call_is_added_whose_input_exists_and_which_gives_what_is_required() -> None:
    shop = [*CHAIN.tools.values()]
    taken = FieldEdge("list_orders", "shop", "reasons", "shop", EdgeOrigin.RECORDED, 2)
    every = [edge for source, target in CHAIN.graph.edges for edge in CHAIN.fields(source, target)]

    path = draw_path_to(ToolGraph(shop, [*every, taken]), "refund", Random(0), 7)

    assert path is not None
    assert [call.tool for call in path.calls] == ["find_customer", "list_orders", "reasons", "refund"]
    assert {link.argument: link.call for link in path.calls[-1].links} == {"order_id": 1, "reason": 2}


def test_a_tool_to_which_nothing_leads_has_no_path() -> None:
    assert draw_path_to(CHAIN, "find_customer", Random(0), 7) is None


@given(edges=edges, seed=st.integers(0, 2**31), length=st.integers(2, 9), number=st.integers(0, 7))
def test_every_path_to_a_tool_is_legal_and_as_short_as_asked(
    edges: list[FieldEdge], seed: int, length: int, number: int
) -> None:
    graph = ToolGraph([make_tool(f"tool_{n}", ["left", "right", "middle"]) for n in range(8)], edges)
    target = f"tool_{number}"

    path = draw_path_to(graph, target, Random(seed), length)

    assert (path is None) == (not graph.before(target))
    if path is not None:
        assert path_problem(path, graph) is None
        assert path == draw_path_to(graph, target, Random(seed), length)
        names = [call.tool for call in path.calls]
        assert names[-1] == target
        assert len(set(names)) == len(names) <= length


@pytest.mark.skipif(not AIRLINE.is_dir(), reason="tau-bench's trajectories are not at ../shared/data/tau_airline")
def test_all_paths_to_tools_of_the_airline_are_legal() -> None:
    graph = ToolGraph(*airline())
    paths = [draw_path_to(graph, tool, Random(seed), 7) for tool in graph.tools for seed in range(50)]

    assert {path_problem(path, graph) for path in paths if path is not None} == {None}
