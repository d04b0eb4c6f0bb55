"""Step `tool_path`: the graph of all recorded trajectories and tools -> a legal path of calls for each draft."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from pydantic import Field

from verl_pivot.data.tool_schemas import name_of
from verl_pivot.data.trajectories import read_trajectories
from verl_pivot.errors import ConfigError
from verl_pivot.synthesis.data_flow import MIN_CALLS, mined_edges
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.neighbour_votes import voted_edges
from verl_pivot.synthesis.return_schemas import schema_edges
from verl_pivot.synthesis.steps import make_step
from verl_pivot.synthesis.tool_graph import MAX_NEIGHBOURS, FieldEdge, ToolGraph
from verl_pivot.synthesis.tool_paths import PathOptions, ToolPath, draw_path
from verl_pivot.synthesis.workshop import Workshop
from verl_pivot.types import JsonObject, Trajectory
from verl_pivot.validation import Options

PATH = "path"
"""Key of the draft value that holds the draft's path."""
USER_ROLE = "user_role"
"""Key of the draft value with the role that writes the user's messages; without it, the role is `user`."""


class GraphOptions(Options):
    """Options of the tool graph, and of the tools that a conversation gets."""

    min_calls: int = Field(default=MIN_CALLS, ge=1)
    """Minimum number of recorded calls for an edge between two fields."""
    max_neighbours: int = Field(default=MAX_NEIGHBOURS, ge=1)
    """Maximum number of tools that may follow one tool."""
    votes: int = Field(default=0, ge=0)
    """Number of answers for each tool with which a writer in the role `voter` adds edges; 0 adds no edges."""
    num_other_tools: int = Field(default=10, ge=0)
    """Number of randomly drawn tools that the conversation gets in addition to those of its path."""


class ToolPathOptions(PathOptions, GraphOptions):
    """Options of the tool graph, and of the paths that are drawn from it."""


@make_step("tool_path", options=ToolPathOptions)
class ToolPathStep:
    """Gives each draft a path in `values`, and a trajectory that has tools but no messages yet.

    Edges come first from recorded data flow (--trajectories), then from result schemas of these tools and of --tools,
    then from votes if `votes` is set.
    """

    def __init__(self, options: ToolPathOptions) -> None:
        self._options = options
        self._graph: ToolGraph | None = None

    async def prepare(self, workshop: Workshop) -> None:
        self._graph = await read_graph(workshop, self._options)

    async def __call__(self, draft: Draft, workshop: Workshop) -> Sequence[Draft]:
        assert self._graph is not None, "steps are prepared before the first draft"
        rng = Random(workshop.seed(0))
        path = draw_path(self._graph, rng, self._options)
        assert path is not None, "a graph without edges is refused when the step is prepared"
        return [with_path(draft, path, drawn_tools(self._graph, path, rng, self._options.num_other_tools))]


def with_path(draft: Draft, path: ToolPath, tools: Sequence[JsonObject], *, number: int = 0) -> Draft:
    """A draft with a path, and a trajectory that has tools but no messages yet."""
    made = draft.made(number, trajectory=Trajectory(id=draft.id, messages=(), tools=tuple(tools)))
    return made.with_values(**{PATH: path.model_dump(mode="json")})


def drawn_tools(graph: ToolGraph, path: ToolPath, rng: Random, num_others: int) -> list[JsonObject]:
    """Schemas of a path's tools and of other tools, in the order of the graph, which does not show the path."""
    needed = {call.tool for call in path.calls}
    others = sorted(graph.tools.keys() - needed)
    chosen = needed.union(rng.sample(others, min(len(others), num_others)))
    return [tool for name, tool in graph.tools.items() if name in chosen]


async def read_graph(workshop: Workshop, options: GraphOptions) -> ToolGraph:
    """The graph of a command's trajectories and tools; if two schemas have the same name, the one of --tools is used.

    Args:
        workshop: Workshop with the input files and the writer that votes.
        options: Options of the graph.

    Raises:
        ConfigError: If there are neither trajectories nor tools, or no value passes from one tool to another.
        DataError: If a line is no trajectory.
    """
    inputs, step = workshop.inputs, workshop.step
    if inputs.trajectories is None and inputs.toolset is None:
        raise ConfigError(
            f"step {step} needs tools: give --trajectories FILE, whose calls show how values pass between tools"
        )
    tools: dict[str, JsonObject] = {}
    edges: list[FieldEdge] = []
    if inputs.trajectories is not None:
        edges += mined_edges(_collecting(inputs.trajectories, tools), min_calls=options.min_calls)
    if inputs.toolset is not None:
        tools |= {name_of(tool): tool for tool in inputs.toolset.schemas}
    schemas = list(tools.values())
    edges += schema_edges(schemas)
    if options.votes:
        edges += await voted_edges(schemas, edges, workshop, options.votes, options.max_neighbours)
    graph = ToolGraph(schemas, edges, max_neighbours=options.max_neighbours)
    if not graph.starts:
        raise ConfigError(
            f"step {step} finds no value that passes between two of {len(tools)} tools: give more --trajectories or "
            f"schemas of results (`returns`), lower min_calls (now {options.min_calls}), or set votes"
        )
    return graph


def _collecting(path: Path, tools: dict[str, JsonObject]) -> Iterator[Trajectory]:
    """The trajectories of a file; their tools are added to `tools` as the trajectories are read."""
    for trajectory in read_trajectories(path):
        for tool in trajectory.tools:
            tools.setdefault(name_of(tool), tool)
        yield trajectory
