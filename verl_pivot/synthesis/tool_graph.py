"""Tools and FieldEdges -> ToolGraph: the fields of tools' results that may give arguments of other tools."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from verl_pivot.data.tool_schemas import name_of
from verl_pivot.extras import extra
from verl_pivot.types import JsonObject
from verl_pivot.verifiers.tool_call_schemas import required_names, resolved

with extra("data"):
    import networkx

MAX_NEIGHBOURS = 30
"""Maximum number of tools that may follow one tool; Magnet has 30 candidates per tool (arXiv:2503.07826, section 3)."""


class EdgeOrigin(StrEnum):
    """Source of the knowledge that a field of a result gives an argument."""

    RECORDED = "recorded"
    """Recorded trajectories have the same value in both."""
    SCHEMA = "schema"
    """The schema of a result has a field with the argument's name and type."""
    VOTED = "voted"
    """The majority of a writer's votes names the edge."""


class FieldEdge(NamedTuple):
    """An edge from a field in the result of one tool to an argument of another tool, which can take its value.

    Example:
        FieldEdge("get_user", "reservations", "get_reservation", "reservation_id", EdgeOrigin.RECORDED, 254)
    """

    source: str
    """Tool whose result has the value."""
    result: str
    """Path of keys to the field, joined by dots, without list indices; "*" stands for a key that is itself data."""
    target: str
    """Tool that takes the value."""
    argument: str
    """Path of keys to the argument, in the same format as `result`."""
    origin: EdgeOrigin
    num_calls: int = 0
    """Number of recorded calls that took a value along this edge."""

    @property
    def argument_name(self) -> str:
        """Name of the tool's argument that contains the value."""
        return self.argument.partition(".")[0]


class ToolGraph:
    """Tools, and the edges between their fields as a networkx graph, from each tool to at most `max_neighbours` others.

    If there are more, neighbours with the most recorded calls are kept, then those with the rarest argument names.
    Edges from a tool to itself and edges of unknown tools are left out.
    """

    def __init__(
        self, tools: Sequence[JsonObject], edges: Iterable[FieldEdge], *, max_neighbours: int = MAX_NEIGHBOURS
    ) -> None:
        self.tools = {name_of(tool): tool for tool in tools}
        """{name: schema in OpenAI's format}"""
        self.graph = networkx.DiGraph()
        """Graph with a node for each tool; the edge between two tools has `fields`, their FieldEdges, best first."""
        self.graph.add_nodes_from(self.tools)
        known = [
            edge for edge in edges if edge.source != edge.target and {edge.source, edge.target} <= self.tools.keys()
        ]
        takers = Counter(edge.argument for edge in known)
        between: dict[str, dict[str, list[FieldEdge]]] = defaultdict(lambda: defaultdict(list))
        for edge in sorted(known, key=lambda edge: (-edge.num_calls, takers[edge.argument], edge)):
            between[edge.source][edge.target].append(edge)
        for source, targets in between.items():
            for target in list(targets)[:max_neighbours]:
                self.graph.add_edge(source, target, fields=tuple(targets[target]))
        # Sorted only once, because walks need the neighbours at every step.
        self._after = {tool: tuple(sorted(self.graph.successors(tool))) for tool in self.tools}
        self._before = {tool: tuple(sorted(self.graph.predecessors(tool))) for tool in self.tools}
        self._required = {name: required_names(parameters_of(tool)) for name, tool in self.tools.items()}
        self.starts = tuple(sorted(tool for tool, following in self._after.items() if following))
        """Tools that give another tool a value, in alphabetical order."""

    def after(self, tool: str) -> tuple[str, ...]:
        """Tools that can take a value from a tool's result, in alphabetical order."""
        return self._after[tool]

    def before(self, tool: str) -> tuple[str, ...]:
        """Tools whose result can give a tool an argument, in alphabetical order."""
        return self._before[tool]

    def fields(self, source: str, target: str) -> tuple[FieldEdge, ...]:
        """The edges from one tool to another, best first; empty if there are none."""
        found: tuple[FieldEdge, ...] = self.graph.get_edge_data(source, target, {"fields": ()})["fields"]
        return found

    def distances_to(self, tool: str, most: int) -> dict[str, int]:
        """{other tool: number of edges on the shortest way from it to `tool`}, with 0 for `tool` itself.

        Args:
            tool: End of the ways.
            most: Maximum number of edges of a way; tools that are farther away are left out.
        """
        backwards = self.graph.reverse(copy=False)
        return dict(networkx.single_source_shortest_path_length(backwards, tool, cutoff=most))

    def required(self, tool: str) -> frozenset[str]:
        """Arguments that a tool requires."""
        return self._required[tool]


def parameters_of(tool: JsonObject) -> JsonObject:
    """JSON schema of a tool's arguments, with a reference at its top resolved; {} for a tool without parameters."""
    function = tool["function"]
    assert isinstance(function, dict), tool
    parameters = function.get("parameters")
    return resolved(parameters, parameters) if isinstance(parameters, dict) else {}
