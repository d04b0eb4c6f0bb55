"""Seconds to build a graph of many tools, to draw paths in it, and to find the data flow in many conversations.

Run by `make bench-synthesis`, or with other sizes by `python -m benchmarks.bench_tool_graph --help`. The tools are made
up: each has three arguments and a result of five fields, whose names are drawn from one list.
"""

import itertools
import random
import time
from collections.abc import Callable
from string import ascii_lowercase
from typing import Annotated, TypeVar

import typer
from rich.table import Table

from tests.support.linked_tools import make_tool, refund_of, shapes
from verl_pivot.commands.tables import table_console
from verl_pivot.synthesis.data_flow import mined_edges
from verl_pivot.synthesis.return_schemas import schema_edges
from verl_pivot.synthesis.tool_graph import ToolGraph
from verl_pivot.synthesis.tool_paths import PathOptions, draw_path, path_problem
from verl_pivot.types import JsonObject

_TOOLS_OF_A_NAME = 10
"""Average number of tools that have an argument of one name."""
ResultT = TypeVar("ResultT")


def main(
    tools: Annotated[int, typer.Option(min=10, help="Tools of the graph.")] = 5000,
    walks: Annotated[int, typer.Option(min=1, help="Paths that are drawn.")] = 10_000,
    recordings: Annotated[int, typer.Option(min=2, help="Recorded conversations of three calls.")] = 10_000,
) -> None:
    """Print wall-clock seconds and CPU seconds of each part."""
    table = Table(title=f"{tools} tools, {walks} paths, {recordings} recordings")
    for column in ("", "seconds", "CPU seconds", "result"):
        table.add_column(column, justify="left" if column in ("", "result") else "right")

    def timed(what: str, make: Callable[[], ResultT], count: Callable[[ResultT], str]) -> ResultT:
        began, spent = time.perf_counter(), time.process_time()
        made = make()
        table.add_row(what, f"{time.perf_counter() - began:.2f}", f"{time.process_time() - spent:.2f}", count(made))
        return made

    rng = random.Random(0)
    schemas = made_up_tools(tools, rng)
    graph = timed(
        "graph from schemas of results",
        lambda: ToolGraph(schemas, schema_edges(schemas)),
        lambda made: f"{made.graph.number_of_edges()} pairs of tools",
    )
    paths = timed(
        "paths",
        lambda: [draw_path(graph, rng, PathOptions()) for _ in range(walks)],
        lambda made: f"{sum(len(path.calls) for path in made if path is not None)} calls",
    )
    timed(
        "check of the paths",
        lambda: sum(path is None or path_problem(path, graph) is not None for path in paths),
        lambda made: f"{made} illegal paths",
    )
    recorded = [refund_of(f"cus_{number}", f"ord_{number}") for number in range(recordings)]
    timed("data flow of recordings", lambda: mined_edges(recorded), lambda made: f"{len(made)} edges between fields")
    table_console().print(table)


def made_up_tools(num: int, rng: random.Random) -> list[JsonObject]:
    """Tools that share names of arguments and of fields."""
    words = map("".join, itertools.product(ascii_lowercase, repeat=3))  # a name with digits looks like data
    names = [f"{word}_id" for word in itertools.islice(words, max(10, 3 * num // _TOOLS_OF_A_NAME))]
    made = []
    for number in range(num):
        returns = shapes(dict.fromkeys(rng.sample(names, 5), "string"))
        made.append(make_tool(f"tool_{number}", rng.sample(names, 3), returns=returns))
    return made


if __name__ == "__main__":
    typer.run(main)
