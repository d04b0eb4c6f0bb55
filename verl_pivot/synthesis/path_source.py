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
from verl_pivot.synthesis.return_schemas import schema_edges
from verl_pivot.synthesis.steps import make_step
from verl_pivot.synthesis.tool_graph import MAX_NEIGHBOURS, ToolGraph
from verl_pivot.synthesis.tool_paths import PathOptions, ToolPath, draw_path
from verl_pivot.synthesis.workshop import Inputs, Workshop
from verl_pivot.types import JsonObject, Trajectory

PATH = "path"
"""Key of a draft's values that holds its path."""


class ToolPathOptions(PathOptions):
    """How the graph is made, and paths are drawn from it."""

    min_calls: int = Field(default=MIN_CALLS, ge=1)
    """Recorded calls that an edge between two fields takes."""
    max_neighbours: int = Field(default=MAX_NEIGHBOURS, ge=1)
    """Tools that may follow one tool."""
    num_other_tools: int = Field(default=10, ge=0)
    """Tools that the conversation has beside those of its path, drawn at random."""


@make_step("tool_path", options=ToolPathOptions)
class ToolPathStep:
    """Gives each draft a path in `values`, and a trajectory that has tools and no messages yet.

    Edges come from recorded data flow (--trajectories), then from schemas of results (those tools, and --tools).
    """

    def __init__(self, options: ToolPathOptions) -> None:
        self._options = options
        self._graph: ToolGraph | None = None

    async def prepare(self, workshop: Workshop) -> None:
        self._graph = read_graph(workshop.inputs, self._options)

    async def __call__(self, draft: Draft, workshop: Workshop) -> Sequence[Draft]:
        assert self._graph is not None, "steps are prepared before the first draft"
        rng = Random(workshop.seed(0))
        path = draw_path(self._graph, rng, self._options)
        assert path is not None, "a graph without edges is refused when the step is prepared"
        tools = self._tools(self._graph, path, rng)
        made = draft.made(0, trajectory=Trajectory(id=draft.id, messages=(), tools=tools))
        return [made.with_values(**{PATH: path.model_dump(mode="json")})]

    def _tools(self, graph: ToolGraph, path: ToolPath, rng: Random) -> tuple[JsonObject, ...]:
        """Schemas of the path's tools among others, in the order of the graph, which says nothing of the path."""
        needed = {call.tool for call in path.calls}
        others = sorted(graph.tools.keys() - needed)
        chosen = needed.union(rng.sample(others, min(len(others), self._options.num_other_tools)))
        return tuple(tool for name, tool in graph.tools.items() if name in chosen)


def read_graph(inputs: Inputs, options: ToolPathOptions) -> ToolGraph:
    """The graph of a command's trajectories and tools; where two schemas have one name, that of --tools counts.

    Raises:
        ConfigError: If there is neither, or no value passes from one tool to another.
        DataError: If a line is no trajectory.
    """
    if inputs.trajectories is None and inputs.toolset is None:
        raise ConfigError("step tool_path needs tools: give --trajectories FILE, whose calls show how values pass")
    tools: dict[str, JsonObject] = {}
    edges = (
        []
        if inputs.trajectories is None
        else mined_edges(_collecting(inputs.trajectories, tools), min_calls=options.min_calls)
    )
    if inputs.toolset is not None:
        tools |= {name_of(tool): tool for tool in inputs.toolset.schemas}
    schemas = list(tools.values())
    graph = ToolGraph(schemas, [*edges, *schema_edges(schemas)], max_neighbours=options.max_neighbours)
    if not graph.starts:
        raise ConfigError(
            f"step tool_path finds no value that passes between two of {len(tools)} tools: give more --trajectories, "
            f"lower min_calls (now {options.min_calls}), or give the tools schemas of their results (`returns`)"
        )
    return graph


def _collecting(path: Path, tools: dict[str, JsonObject]) -> Iterator[Trajectory]:
    """The trajectories of a file, whose tools are added to `tools` as they pass."""
    for trajectory in read_trajectories(path):
        for tool in trajectory.tools:
            tools.setdefault(name_of(tool), tool)
        yield trajectory
