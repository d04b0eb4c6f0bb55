"""ToolGraph and a seed -> ToolPath: the calls that a conversation has to make, by a walk and Magnet's operations."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from pydantic import Field

from verl_pivot.synthesis.tool_graph import FieldEdge, ToolGraph
from verl_pivot.validation import Options


class PathOptions(Options):
    """Options for drawing paths.

    Magnet (arXiv:2503.07826, section 3) walks 7 calls and merges with probability 0.3. It gives no probabilities for
    the other two operations, so their defaults are our own.
    """

    length: int = Field(default=7, ge=2)
    """Maximum number of calls of a walk, before calls are inserted; a walk is shorter if no new tool can follow."""
    merge: float = Field(default=0.3, ge=0.0, le=1.0)
    """Probability that two successive requests are merged into one request with the calls of both."""
    insert: float = Field(default=0.2, ge=0.0, le=1.0)
    """Probability that a request needs one more call, which it does not mention, to get a value for its first call."""
    split: float = Field(default=0.2, ge=0.0, le=1.0)
    """Probability that a request leaves out a required value, so that the assistant has to ask for it."""


class ValueLink(Options):
    """An argument that gets its value from the result of an earlier call."""

    call: int
    """Number of the earlier call among all calls of the path, counted from 0."""
    result: str
    """Path of keys to the value in that call's result, as in `FieldEdge`."""
    argument: str
    """Path of keys to the argument, as in `FieldEdge`."""

    @property
    def argument_name(self) -> str:
        """Name of the tool's argument that contains the value."""
        return self.argument.partition(".")[0]


class PathCall(Options):
    """One call that a conversation has to make."""

    tool: str
    links: tuple[ValueLink, ...] = ()
    """Arguments whose values come from earlier results; the other values come from the user's messages."""
    is_implied: bool = False
    """Whether the request does not mention the call; a later call of the same request needs its result."""


class PathTurn(Options):
    """One request of the user with the calls that answer it, in their order."""

    calls: tuple[PathCall, ...]
    withheld: str | None = None
    """Required argument of the last call whose value the user gives only when asked; None if there is none."""


class ToolPath(Options):
    """The requests of one conversation.

    Example:
        ToolPath(turns=(PathTurn(calls=(PathCall(tool="get_user"),)), ...))
    """

    turns: tuple[PathTurn, ...]

    @property
    def calls(self) -> tuple[PathCall, ...]:
        """All calls of the path in order; `ValueLink.call` is an index into them."""
        return tuple(call for turn in self.turns for call in turn.calls)

    def needed_fields(self, number: int) -> list[str]:
        """Paths of the fields that a call's result must have, because later calls take values from them."""
        return sorted({link.result for call in self.calls for link in call.links if link.call == number})


class WalkStep(NamedTuple):
    """One call of a walk."""

    tool: str
    giver: int | None
    """Number of the earlier call in the walk whose result gives a value; None for the first call."""


def draw_path(graph: ToolGraph, rng: Random, options: PathOptions) -> ToolPath | None:
    """Draw a legal path; None if the graph has no edges."""
    walk = draw_walk(graph, rng, options.length)
    if len(walk) < 2:
        return None
    used = [step.tool for step in walk]
    numbers: list[int] = []
    """[num_steps] number of each step of the walk among all calls of the path."""
    num_calls = 0
    known: set[str] = set()
    """Required arguments of earlier requests; later ones do not withhold them, as the value may already be known."""
    turns: list[PathTurn] = []
    for steps in _merged(walk, rng, options.merge):
        calls: list[PathCall] = []
        for tool, giver in steps:
            links: tuple[ValueLink, ...] = ()
            if giver is not None:
                links = (drawn_link(graph.fields(walk[giver].tool, tool), numbers[giver], rng),)
            if not calls and rng.random() < options.insert:
                calls, links = _inserted(graph, tool, links, used, num_calls, rng)
                used += [call.tool for call in calls]
            calls.append(PathCall(tool=tool, links=links))
            numbers.append(num_calls + len(calls) - 1)
        num_calls += len(calls)
        choices = [name for name in _said_arguments(graph, calls[-1]) if name not in known]
        withheld = rng.choice(choices) if choices and rng.random() < options.split else None
        turns.append(PathTurn(calls=tuple(calls), withheld=withheld))
        known.update(*(graph.required(call.tool) for call in calls))
    return ToolPath(turns=tuple(turns))


def draw_walk(graph: ToolGraph, rng: Random, length: int) -> list[WalkStep]:
    """[num_calls] a random walk in which each tool takes a value from an earlier one; no tool occurs twice.

    If no new tool can follow the last tool, the walk continues from the latest tool that a new tool can follow.

    Args:
        graph: The tools.
        rng: Random generator of all draws.
        length: Maximum number of tools of the walk.

    Returns:
        An empty list if the graph has no edges.
    """
    if not graph.starts:
        return []
    walk = [WalkStep(rng.choice(graph.starts), None)]
    visited = {walk[0].tool}
    while len(walk) < length:
        for giver in reversed(range(len(walk))):
            if following := [tool for tool in graph.after(walk[giver].tool) if tool not in visited]:
                walk.append(WalkStep(rng.choice(following), giver))
                visited.add(walk[-1].tool)
                break
        else:
            break
    return walk


def draw_chain(graph: ToolGraph, rng: Random, length: int) -> ToolPath | None:
    """A path of one request in which each call takes a value from the previous call; no tool occurs twice.

    ASTRA (arXiv:2601.21558, section 3) uses chains of 2 to 5 calls; in its released code a tool may occur again.

    Args:
        graph: The tools.
        rng: Random generator of all draws.
        length: Maximum number of calls; a chain ends earlier if no new tool can follow.

    Returns:
        None if the graph has no edges.
    """
    if not graph.starts:
        return None
    calls = [PathCall(tool=rng.choice(graph.starts))]
    while len(calls) < length:
        last, known = calls[-1].tool, {call.tool for call in calls}
        following = [tool for tool in graph.after(last) if tool not in known]
        if not following:
            break
        tool = rng.choice(following)
        calls.append(PathCall(tool=tool, links=(drawn_link(graph.fields(last, tool), len(calls) - 1, rng),)))
    return ToolPath(turns=(PathTurn(calls=tuple(calls)),))


def drawn_link(edges: Sequence[FieldEdge], call: int, rng: Random) -> ValueLink:
    """A link by a random edge, drawn in proportion to recorded calls; an edge without recordings counts as one call."""
    edge = rng.choices(edges, [max(1, edge.num_calls) for edge in edges])[0]
    return ValueLink(call=call, result=edge.result, argument=edge.argument)


def path_problem(path: ToolPath, graph: ToolGraph) -> str | None:
    """Why a path is not legal; None if it is.

    In a legal path, each link is an edge of the graph from an earlier call. Every call except the first takes a value
    from an earlier call, or is implied. An implied call gives a value to a later call of its request. A withheld
    argument is required and not linked.
    """
    calls = path.calls
    for number, call in enumerate(calls):
        if call.tool not in graph.tools:
            return f"call {number}: no tool is named {call.tool}"
        for link in call.links:
            if not 0 <= link.call < number:
                return f"call {number} takes {link.argument} from call {link.call}, which is not before it"
            edges = graph.fields(calls[link.call].tool, call.tool)
            if (link.result, link.argument) not in {(edge.result, edge.argument) for edge in edges}:
                return f"call {number}: {calls[link.call].tool} does not give {call.tool} its {link.argument}"
        if number and not call.links and not call.is_implied:
            return f"call {number}, {call.tool}, takes no value from an earlier call"
    return next((problem for turn, first in _numbered(path) if (problem := _turn_problem(turn, first, graph))), None)


def _numbered(path: ToolPath) -> Iterator[tuple[PathTurn, int]]:
    """The requests, each with the number of its first call."""
    first = 0
    for turn in path.turns:
        yield turn, first
        first += len(turn.calls)


def _turn_problem(turn: PathTurn, first: int, graph: ToolGraph) -> str | None:
    if not turn.calls or turn.calls[-1].is_implied:
        return "a request ends without a call that it mentions"
    for position, call in enumerate(turn.calls):
        taken = {link.call for later in turn.calls[position + 1 :] for link in later.links}
        if call.is_implied and first + position not in taken:
            return f"call {first + position}, {call.tool}, is implied, but no later call takes a value from it"
    last = turn.calls[-1]
    if turn.withheld is not None and turn.withheld not in _said_arguments(graph, last):
        return f"{last.tool}.{turn.withheld} is withheld, but the user need not give it"
    return None


def _merged(walk: Sequence[WalkStep], rng: Random, probability: float) -> list[list[WalkStep]]:
    """Requests of one or two calls: each call joins a previous request of one call with this probability."""
    merged: list[list[WalkStep]] = []
    for step in walk:
        if merged and len(merged[-1]) == 1 and rng.random() < probability:
            merged[-1].append(step)
        else:
            merged.append([step])
    return merged


def _inserted(
    graph: ToolGraph, tool: str, links: tuple[ValueLink, ...], used: Sequence[str], number: int, rng: Random
) -> tuple[list[PathCall], tuple[ValueLink, ...]]:
    """([new call that gives `tool` a value], links of `tool` with it); ([], unchanged links) if no tool can."""
    linked = {link.argument_name for link in links}
    for giver in rng.sample(graph.before(tool), len(graph.before(tool))):
        edges = [edge for edge in graph.fields(giver, tool) if edge.argument_name not in linked]
        if edges and giver not in used:
            return [PathCall(tool=giver, is_implied=True)], (*links, drawn_link(edges, number, rng))
    return [], links


def _said_arguments(graph: ToolGraph, call: PathCall) -> list[str]:
    """Required arguments of a call that no earlier result gives, in alphabetical order."""
    return sorted(graph.required(call.tool) - {link.argument_name for link in call.links})
