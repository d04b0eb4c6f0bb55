"""Walks over the tool graph, Magnet's operations, and what a legal path is."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.linked_tools import SHOP, make_tool, shapes
from tests.synthesis.test_tool_graph import AIRLINE, airline
from verl_pivot.synthesis.return_schemas import schema_edges
from verl_pivot.synthesis.tool_graph import EdgeOrigin, FieldEdge, ToolGraph
from verl_pivot.synthesis.tool_paths import (
    PathCall,
    PathOptions,
    PathTurn,
    ToolPath,
    ValueLink,
    draw_path,
    draw_walk,
    path_problem,
)

CHAIN = ToolGraph(
    [*SHOP, make_tool("reasons", [])],
    [
        FieldEdge("find_customer", "customer.id", "list_orders", "customer_id", EdgeOrigin.RECORDED, 3),
        FieldEdge("list_orders", "orders.id", "refund", "order_id", EdgeOrigin.RECORDED, 3),
        FieldEdge("reasons", "texts", "refund", "reason", EdgeOrigin.RECORDED, 2),
    ],
)
CUSTOMER = ValueLink(call=0, result="customer.id", argument="customer_id")
FIND, LIST = PathCall(tool="find_customer"), PathCall(tool="list_orders", links=(CUSTOMER,))
PLAIN = PathOptions(merge=0.0, insert=0.0, split=0.0)


def refund(call: int = 1, *more: ValueLink) -> PathCall:
    return PathCall(tool="refund", links=(ValueLink(call=call, result="orders.id", argument="order_id"), *more))


def drawn(options: PathOptions, graph: ToolGraph = CHAIN) -> list[ToolPath]:
    return [path for seed in range(60) if (path := draw_path(graph, Random(seed), options)) is not None]


def test_a_plain_path_is_a_walk_with_one_call_a_request() -> None:
    path = max(drawn(PLAIN), key=lambda path: len(path.calls))

    assert path == ToolPath(turns=(PathTurn(calls=(FIND,)), PathTurn(calls=(LIST,)), PathTurn(calls=(refund(),))))


def test_merge_puts_two_calls_behind_one_request_and_never_three() -> None:
    path = max(drawn(PathOptions(merge=1.0, insert=0.0, split=0.0)), key=lambda path: len(path.calls))

    assert path == ToolPath(turns=(PathTurn(calls=(FIND, LIST)), PathTurn(calls=(refund(),))))


def test_insert_adds_a_call_that_gives_the_next_one_another_value() -> None:
    paths = drawn(PathOptions(merge=0.0, insert=1.0, split=0.0))
    path = next(path for path in paths if path.calls[:2] == (FIND, LIST) and not path.calls[0].is_implied)

    implied = PathCall(tool="reasons", is_implied=True)
    reason = ValueLink(call=2, result="texts", argument="reason")
    assert path == ToolPath(
        turns=(PathTurn(calls=(FIND,)), PathTurn(calls=(LIST,)), PathTurn(calls=(implied, refund(1, reason))))
    )


def test_split_withholds_what_only_the_user_can_say() -> None:
    paths = drawn(PathOptions(merge=0.0, insert=0.0, split=1.0))
    path = max(paths, key=lambda path: len(path.calls))

    # list_orders takes its only argument from the first call, so that the user can withhold nothing of it
    assert [turn.withheld for turn in path.turns] == ["email", None, "reason"]


def test_the_paper_merges_with_probability_0_3() -> None:
    tools = [make_tool(f"t{n}", [f"v{n}"], returns=shapes({f"v{n + 1}": "string"})) for n in range(2)]
    graph = ToolGraph(tools, schema_edges(tools))
    paths = [draw_path(graph, Random(seed), PathOptions(insert=0.0, split=0.0)) for seed in range(2000)]

    merged = sum(path is not None and len(path.turns) == 1 for path in paths)
    assert abs(merged / 2000 - 0.3) < 0.04  # four standard errors


@pytest.mark.parametrize(
    ("calls", "problem"),
    [
        ((FIND, LIST, refund()), None),
        ((FIND, PathCall(tool="pay")), "call 1: no tool is named pay"),
        ((FIND, LIST, refund(0)), "call 2: find_customer does not give refund its order_id"),
        ((FIND, LIST, refund(2)), "call 2 takes order_id from call 2, which is not before it"),
        ((LIST, FIND), "call 0 takes customer_id from call 0, which is not before it"),
        ((FIND, PathCall(tool="refund")), "call 1, refund, takes no value from an earlier call"),
    ],
)
def test_a_path_is_legal_or_its_first_problem_is_named(calls: tuple[PathCall, ...], problem: str | None) -> None:
    assert path_problem(ToolPath(turns=tuple(PathTurn(calls=(call,)) for call in calls)), CHAIN) == problem


@pytest.mark.parametrize(
    ("turn", "problem"),
    [
        (PathTurn(calls=(FIND,), withheld="email"), None),
        (PathTurn(calls=(FIND,), withheld="phone"), "find_customer.phone is withheld, but the user need not give it"),
        (
            PathTurn(calls=(FIND, LIST), withheld="customer_id"),
            "list_orders.customer_id is withheld, but the user need not give it",
        ),
        (
            PathTurn(calls=(FIND, PathCall(tool="reasons", is_implied=True), LIST)),
            "call 1, reasons, is implied, but no later call takes a value from it",
        ),
        (PathTurn(calls=()), "a request ends without a call that it mentions"),
    ],
)
def test_a_request_is_legal_or_its_problem_is_named(turn: PathTurn, problem: str | None) -> None:
    assert path_problem(ToolPath(turns=(turn,)), CHAIN) == problem


def test_a_walk_that_nothing_follows_goes_on_from_an_earlier_call() -> None:
    tools = [make_tool(name, ["id"]) for name in ("root", "left", "right")]
    edges = [FieldEdge("root", "id", tool, "id", EdgeOrigin.RECORDED, 1) for tool in ("left", "right")]
    path = draw_path(ToolGraph(tools, edges), Random(0), PLAIN)

    assert path is not None
    assert [call.tool for call in path.calls] in (["root", "left", "right"], ["root", "right", "left"])
    assert [link.call for call in path.calls for link in call.links] == [0, 0]


def test_a_graph_without_edges_has_no_path() -> None:
    graph = ToolGraph(SHOP, [])

    assert (draw_walk(graph, Random(0), 7), draw_path(graph, Random(0), PathOptions())) == ([], None)


def test_a_path_survives_json() -> None:
    for path in drawn(PathOptions(insert=0.5, split=0.5)):
        assert ToolPath.model_validate_json(path.model_dump_json()) == path


names = st.integers(0, 9).map("tool_{}".format)
arguments = st.sampled_from(["left", "right", "middle.id"])
edges = st.lists(
    st.builds(
        FieldEdge,
        names,
        st.sampled_from(["id", "rows.id"]),
        names,
        arguments,
        st.just(EdgeOrigin.RECORDED),
        st.integers(1, 9),
    )
)


@given(edges=edges, seed=st.integers(0, 2**31), length=st.integers(2, 9), chances=st.tuples(*[st.floats(0, 1)] * 3))
def test_every_path_is_legal_and_a_seed_gives_the_same_one(
    edges: list[FieldEdge], seed: int, length: int, chances: tuple[float, float, float]
) -> None:
    tools = [make_tool(f"tool_{n}", ["left", "right", "middle"]) for n in range(8)]  # edges may name tools 8 and 9
    graph = ToolGraph(tools, edges)
    options = PathOptions(length=length, merge=chances[0], insert=chances[1], split=chances[2])

    path = draw_path(graph, Random(seed), options)

    assert (path is None) == (not graph.starts)
    if path is not None:
        assert path_problem(path, graph) is None
        assert path == draw_path(graph, Random(seed), options)
        assert 2 <= sum(not call.is_implied for call in path.calls) <= length
        assert len({call.tool for call in path.calls}) == len(path.calls)


@pytest.mark.skipif(not AIRLINE.is_dir(), reason="tau-bench's trajectories are not at ../shared/data/tau_airline")
def test_all_paths_over_the_airlines_recordings_are_legal() -> None:
    graph = ToolGraph(*airline())
    paths = [draw_path(graph, Random(seed), PathOptions()) for seed in range(500)]

    assert [path_problem(path, graph) for path in paths if path is not None] == [None] * 500
    assert max(sum(not call.is_implied for call in path.calls) for path in paths if path is not None) == 7
