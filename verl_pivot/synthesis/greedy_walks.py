"""ToolGraph and a hard tool -> a path of calls that ends with it; each call gets its inputs from earlier calls.

HardGen (arXiv:2601.01498, section 3) walks greedily, over calls that are legal at their time, to a tool at which models
fail. It treats all calls together as one advanced tool, and the request mentions only this advanced tool.
"""

from collections.abc import Sequence
from random import Random

from verl_pivot.synthesis.tool_graph import ToolGraph
from verl_pivot.synthesis.tool_paths import PathCall, PathTurn, ToolPath, ValueLink, drawn_link


def draw_path_to(graph: ToolGraph, target: str, rng: Random, length: int) -> ToolPath | None:
    """A path of one request whose last call is `target` and whose other calls the request does not mention.

    It begins at one of the tools that are farthest from the target, and takes a shortest way. Then calls are added that
    give the target its missing required arguments, if these calls can take a value from an earlier result.

    Args:
        graph: The tools.
        target: Tool of the last call.
        rng: Random generator of all draws.
        length: Maximum number of calls.

    Returns:
        None if no other tool gives the target a value.
    """
    distances = graph.distances_to(target, length - 1)
    farthest = max(distances.values())
    if farthest == 0:
        return None
    walk = [rng.choice(sorted(tool for tool, distance in distances.items() if distance == farthest))]
    while (distance := distances[walk[-1]]) > 1:
        walk.append(rng.choice([tool for tool in graph.after(walk[-1]) if distances.get(tool) == distance - 1]))
    calls = [PathCall(tool=walk[0], is_implied=True)]
    for number, tool in enumerate(walk[1:]):
        link = drawn_link(graph.fields(walk[number], tool), number, rng)
        calls.append(PathCall(tool=tool, links=(link,), is_implied=True))
    links = [drawn_link(graph.fields(walk[-1], target), len(walk) - 1, rng)]
    for argument in sorted(graph.required(target)):
        if argument not in {link.argument_name for link in links}:
            links += _added(graph, target, argument, calls, rng, length)
    calls.append(PathCall(tool=target, links=tuple(links)))
    return ToolPath(turns=(PathTurn(calls=tuple(calls)),))


def _added(
    graph: ToolGraph, target: str, argument: str, calls: list[PathCall], rng: Random, length: int
) -> list[ValueLink]:
    """[link] for one more argument, from an earlier call or a call that is added to `calls`; [] if impossible."""
    givers = {
        giver: edges
        for giver in graph.before(target)
        if (edges := [edge for edge in graph.fields(giver, target) if edge.argument_name == argument])
    }
    made = [number for number, call in enumerate(calls) if call.tool in givers]
    if made:
        return [drawn_link(givers[calls[made[-1]].tool], made[-1], rng)]
    for giver in rng.sample(list(givers), len(givers)):
        number = _number_before(graph, giver, calls)
        if number is not None and giver != target and len(calls) + 1 < length:
            link = drawn_link(graph.fields(calls[number].tool, giver), number, rng)
            calls.append(PathCall(tool=giver, links=(link,), is_implied=True))
            return [drawn_link(givers[giver], len(calls) - 1, rng)]
    return []


def _number_before(graph: ToolGraph, tool: str, calls: Sequence[PathCall]) -> int | None:
    """Index of the latest call whose result gives a tool a value; None if there is none."""
    return next((at for at in reversed(range(len(calls))) if graph.fields(calls[at].tool, tool)), None)
