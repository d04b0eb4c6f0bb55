"""Tools and FieldEdge -> ToolGraph: which field of a tool's result may give an argument of another tool."""

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
"""Tools that may follow one tool; Magnet has 30 candidates for each (arXiv:2503.07826, section 3)."""


class EdgeOrigin(StrEnum):
    """What says that a field of a result gives an argument."""

    RECORDED = "recorded"
    """Trajectories in which one value stood in both."""
    SCHEMA = "schema"
    """The schema of a result has a field with the argument's name and type."""
    VOTED = "voted"
    """The majority of a writer's votes."""


class FieldEdge(NamedTuple):
    """One way for a value from the result of one tool to an argument of another.

    Example:
        FieldEdge("get_user", "reservations", "get_reservation", "reservation_id", EdgeOrigin.RECORDED, 254)
    """

    source: str
    """Tool whose result has the value."""
    result: str
    """Keys to the field joined by dots, without positions in lists; "*" stands for a key that is data itself."""
    target: str
    """Tool that takes the value."""
    argument: str
    """Keys to the argument, written as those of `result`."""
    origin: EdgeOrigin
    num_calls: int = 0
    """Recorded calls that took their value on this way."""

    @property
    def argument_name(self) -> str:
        """Name of the tool's argument that has the value in it."""
        return self.argument.partition(".")[0]


class ToolGraph:
    """Tools, and the edges between their fields as a networkx graph, from each tool to at most `max_neighbours` others.

    Where there are more, those stay that recordings name most often, then those whose arguments the fewest tools take.
    Edges from a tool to itself, and of tools that are not given, are left out.
    """

    def __init__(
        self, tools: Sequence[JsonObject], edges: Iterable[FieldEdge], *, max_neighbours: int = MAX_NEIGHBOURS
    ) -> None:
        self.tools = {name_of(tool): tool for tool in tools}
        """{name: schema in OpenAI's form}"""
        self.graph = networkx.DiGraph()
        """A node for each tool; the edge between two tools has `fields`, their edges from the best one on."""
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
        # Sorted once, since walks ask for them at every step.
        self._after = {tool: tuple(sorted(self.graph.successors(tool))) for tool in self.tools}
        self._before = {tool: tuple(sorted(self.graph.predecessors(tool))) for tool in self.tools}
        self._required = {name: required_names(parameters_of(tool)) for name, tool in self.tools.items()}
        self.starts = tuple(sorted(tool for tool, following in self._after.items() if following))
        """Tools that give another one a value, in alphabetical order."""

    def after(self, tool: str) -> tuple[str, ...]:
        """Tools that can take a value from a tool's result, in alphabetical order."""
        return self._after[tool]

    def before(self, tool: str) -> tuple[str, ...]:
        """Tools whose result can give a tool an argument, in alphabetical order."""
        return self._before[tool]

    def fields(self, source: str, target: str) -> tuple[FieldEdge, ...]:
        """The edges from one tool to another, the best first; none if there are none."""
        found: tuple[FieldEdge, ...] = self.graph.get_edge_data(source, target, {"fields": ()})["fields"]
        return found

    def distances_to(self, tool: str, most: int) -> dict[str, int]:
        """{tool: edges on the shortest way from it} of the tools from which one leads to `tool`, itself included.

        Args:
            tool: End of the ways.
            most: Most edges of a way.
        """
        backwards = self.graph.reverse(copy=False)
        return dict(networkx.single_source_shortest_path_length(backwards, tool, cutoff=most))

    def required(self, tool: str) -> frozenset[str]:
        """Arguments that a tool requires."""
        return self._required[tool]


def parameters_of(tool: JsonObject) -> JsonObject:
    """JSON schema of a tool's arguments, without references at its top; {} for a tool without parameters."""
    function = tool["function"]
    assert isinstance(function, dict), tool
    parameters = function.get("parameters")
    return resolved(parameters, parameters) if isinstance(parameters, dict) else {}
