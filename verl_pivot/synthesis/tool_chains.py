"""Step `tool_chain`: the graph of all recorded trajectories and tools -> a chain of calls, for each of several writers.

ASTRA (arXiv:2601.21558, section 3) draws chains over a graph of tools, and writers translate each chain to a request.
"""

from collections.abc import Sequence
from random import Random
from typing import Self

from pydantic import Field, model_validator

from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.path_source import USER_ROLE, GraphOptions, drawn_tools, read_graph, with_path
from verl_pivot.synthesis.steps import make_step
from verl_pivot.synthesis.tool_graph import ToolGraph
from verl_pivot.synthesis.tool_paths import draw_chain
from verl_pivot.synthesis.workshop import Workshop


class ToolChainOptions(GraphOptions):
    """Options of the tool graph, and of the chains that are drawn from it."""

    min_length: int = Field(default=2, ge=2)
    """Minimum number of calls of a chain; the number is drawn for each draft."""
    max_length: int = Field(default=5, ge=2)
    """Maximum number of calls of a chain."""
    writers: tuple[str, ...] = Field(default=("writer_1", "writer_2", "writer_3"), min_length=1)
    """Roles of the writers; each of them writes its own request for the chain."""

    @model_validator(mode="after")
    def _check_length(self) -> Self:
        if self.min_length > self.max_length:
            raise ValueError(f"min_length must not exceed max_length={self.max_length}, got {self.min_length}")
        if len({*self.writers}) < len(self.writers):
            raise ValueError(f"writers must differ, got {list(self.writers)}")
        return self


@make_step("tool_chain", options=ToolChainOptions)
class ToolChainStep:
    """Draws a chain for each draft, and makes a draft with it for each writer; `magnet` then writes conversations."""

    def __init__(self, options: ToolChainOptions) -> None:
        self._options = options
        self._graph: ToolGraph | None = None

    async def prepare(self, workshop: Workshop) -> None:
        self._graph = await read_graph(workshop, self._options)

    async def __call__(self, draft: Draft, workshop: Workshop) -> Sequence[Draft]:
        assert self._graph is not None, "steps are prepared before the first draft"
        options, rng = self._options, Random(workshop.seed(0))
        length = rng.randint(options.min_length, options.max_length)
        chain = draw_chain(self._graph, rng, length)
        assert chain is not None, "a graph without edges is refused when the step is prepared"
        if len(chain.calls) < options.min_length:
            detail = f"no other tool can follow {chain.calls[-1].tool}, which is call {len(chain.calls)} of {length}"
            return [draft.rejected("chain_too_short", detail)]
        tools = drawn_tools(self._graph, chain, rng, options.num_other_tools)
        return [
            with_path(draft, chain, tools, number=number).with_values(**{USER_ROLE: role})
            for number, role in enumerate(options.writers)
        ]
