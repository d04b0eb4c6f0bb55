"""Steps of HardGen (arXiv:2601.01498): paths to tools at which a policy fails, and a check that samples are hard."""

from collections.abc import Sequence
from random import Random

from pydantic import Field

from verl_pivot.all_at_once import all_at_once
from verl_pivot.data.trajectories import read_trajectories
from verl_pivot.data.turns import turns
from verl_pivot.errors import ConfigError
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.greedy_walks import draw_path_to
from verl_pivot.synthesis.hard_tools import probe, probed_turns, wrong_shares
from verl_pivot.synthesis.path_source import GraphOptions, drawn_tools, read_graph, with_path
from verl_pivot.synthesis.rollouts import POLICY
from verl_pivot.synthesis.steps import CheckStep, check_step, make_step
from verl_pivot.synthesis.tool_graph import ToolGraph
from verl_pivot.synthesis.workshop import Workshop
from verl_pivot.types import Verdict
from verl_pivot.validation import Options

REFERENCE = "reference"
"""Role of a second model; if the file of --writers names one, a hard tool is one at which both models fail."""


class HardPathOptions(GraphOptions):
    length: int = Field(default=7, ge=2)
    """Maximum number of calls of a path."""
    probes: int = Field(default=4, ge=1)
    """Maximum number of recorded turns per tool at which the policy is probed."""
    wrong_from: float = Field(default=0.5, gt=0.0, le=1.0)
    """Minimum share of wrong answers among a tool's probes for which the model counts as failing at the tool."""
    max_tokens: int = Field(default=1024, ge=16)
    """Maximum number of tokens of one answer."""


@make_step("hard_path", options=HardPathOptions)
class HardPathStep:
    """Gives each draft a path to a randomly drawn tool among those at which the policy fails."""

    def __init__(self, options: HardPathOptions) -> None:
        self._options = options
        self._graph: ToolGraph | None = None
        self._hard: list[str] = []

    async def prepare(self, workshop: Workshop) -> None:
        options, path = self._options, workshop.inputs.trajectories
        if path is None:
            raise ConfigError(f"step {workshop.step} probes the policy at recorded turns: give --trajectories FILE")
        self._graph = await read_graph(workshop, options)
        recorded = probed_turns(read_trajectories(path), options.probes)
        probes = {tool: found for tool, found in recorded.items() if tool in self._graph.tools}
        shares = [await wrong_shares(probes, workshop, POLICY, options.max_tokens)]
        if REFERENCE in workshop.writers:
            shares.append(await wrong_shares(probes, workshop, REFERENCE, options.max_tokens))
        self._hard = [
            tool
            for tool in sorted(probes)
            if all(each.get(tool, 0.0) >= options.wrong_from for each in shares) and self._graph.before(tool)
        ]
        if not self._hard:
            raise ConfigError(
                f"step {workshop.step}: no hard tool among {len(probes)} probed tools (one that takes a value from "
                f"another tool, and at which a share of at least wrong_from={options.wrong_from:g} of the answers is "
                "wrong); lower wrong_from, or give other --trajectories"
            )

    async def __call__(self, draft: Draft, workshop: Workshop) -> Sequence[Draft]:
        assert self._graph is not None, "steps are prepared before the first draft"
        rng = Random(workshop.seed(0))
        target = rng.choice(self._hard)
        path = draw_path_to(self._graph, target, rng, self._options.length)
        assert path is not None, f"tools before {target}: {self._graph.before(target)}"
        tools = drawn_tools(self._graph, path, rng, self._options.num_other_tools)
        return [with_path(draft, path, tools).with_values(hard_tool=target)]


class StillHardOptions(Options):
    max_tokens: int = Field(default=1024, ge=16)
    """Maximum number of tokens of one answer."""


@check_step("still_hard", options=StillHardOptions)
def still_hard(options: StillHardOptions) -> CheckStep:
    """Passes a trajectory if the row's verifier finds the policy, which samples greedily, wrong at one of its calls."""

    async def check(draft: Draft, workshop: Workshop) -> Verdict:
        if draft.trajectory is None:
            return Verdict.refuse("no_trajectory", "the draft has no trajectory")
        calls = [turn for turn in turns(draft.trajectory) if turn.expert.tool_calls]
        verdicts = await all_at_once(probe(turn, workshop, POLICY, options.max_tokens) for turn in calls)
        wrong = next((verdict for verdict in verdicts if verdict.score is not None and verdict.score < 1.0), None)
        if wrong is not None:
            return Verdict.accept(detail=f"{wrong.reason}: {wrong.detail}")
        undecided = next((verdict for verdict in verdicts if verdict.score is None), None)
        return undecided or Verdict.refuse("too_easy", f"the policy is right at all {len(calls)} calls")

    return check
