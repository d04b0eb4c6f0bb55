"""Checks by programs, which run before any judge: a filter of `verl-pivot filter`, and a replay of the calls."""

from collections.abc import Mapping

from pydantic import Field

from verl_pivot.data.answered_calls import answered_calls
from verl_pivot.data.json_values import encode_json
from verl_pivot.errors import ConfigError, ToolFailureError
from verl_pivot.quality.contract import TrajectoryFilter, shortened
from verl_pivot.quality.registry import make_filter
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.steps import CheckStep, check_step
from verl_pivot.synthesis.workshop import Workshop
from verl_pivot.tools.rollout_tools import RolloutTools
from verl_pivot.tools.tool_response import is_same_result
from verl_pivot.types import Json, JsonObject, Role, Trajectory, Verdict
from verl_pivot.validation import Options


class FilterCheckOptions(Options):
    name: str
    """Name of a filter that judges each trajectory on its own, such as coherence."""
    options: dict[str, object] = Field(default_factory=dict)
    """Options of the filter."""


@check_step("filter", options=FilterCheckOptions)
def filter_check(options: FilterCheckOptions) -> CheckStep:
    """Rejects trajectories that a filter drops, at this step instead of at the end of the recipe."""
    found = make_filter(options.name, options.options)  # type: ignore[arg-type]  # the recipe is JSON
    if not isinstance(found, TrajectoryFilter):
        raise ConfigError(
            f"filter {options.name} compares trajectories: put it into the rules of the last step, quality"
        )

    async def check(draft: Draft, workshop: Workshop) -> Verdict:
        if draft.trajectory is None:
            return Verdict.undecided("no_trajectory")
        finding = found.judge(draft.trajectory)
        return Verdict.accept() if finding is None else Verdict.refuse(finding.reason, finding.detail)

    return check


class ReplayOptions(Options):
    same_results: bool = True
    """Whether each call must give the result in the trajectory; false checks only the outcome."""
    max_calls_per_turn: int = Field(default=16, ge=1)
    """Maximum number of calls of one turn that are run."""


@check_step("replay", options=ReplayOptions)
def replay(options: ReplayOptions) -> CheckStep:
    """Runs the calls of a trajectory in fresh tools: the results must be the same, and the outcome must be 1."""

    async def check(draft: Draft, workshop: Workshop) -> Verdict:
        if draft.trajectory is None:
            return Verdict.undecided("no_trajectory")
        return await replayed(
            draft.trajectory, draft.task or {}, workshop,
            same_results=options.same_results, max_calls_per_turn=options.max_calls_per_turn,
        )  # fmt: skip

    return check


async def replayed(
    trajectory: Trajectory,
    task: Mapping[str, Json],
    workshop: Workshop,
    *,
    same_results: bool,
    max_calls_per_turn: int,
) -> Verdict:
    """The verdict of fresh tools on the calls and the last message of a trajectory.

    Args:
        trajectory: Trajectory with the calls and their results.
        task: Columns from which the tools are made; if `metadata` is missing, the trajectory's metadata is used.
        workshop: Workshop with the tools.
        same_results: Whether a result that differs from the recorded one, as text or as JSON, is refused.
        max_calls_per_turn: Maximum number of calls of one turn that are run.

    Returns:
        The score of the environment; undecided if nothing scores the outcome, or the system failed.

    Raises:
        ConfigError: If there are no tools.
        UserCodeError: If the code of an environment or a tool fails.
    """
    columns: JsonObject = {"metadata": encode_json(trajectory.metadata), **task}
    opened = workshop.toolset("runs calls again").open(columns, max_calls_per_turn=max_calls_per_turn)
    try:
        async with opened as tools:
            problem = await _difference(trajectory, tools, same_results=same_results)
            if problem is not None:
                return problem
            last = trajectory.messages[-1]
            is_answer = last.role is Role.ASSISTANT and not last.tool_calls
            verdict = await tools.score(last if is_answer else None)
    except ToolFailureError as error:
        return Verdict.undecided("system_failed", str(error))
    return verdict or Verdict.undecided("not_scored", "no environment decides the outcome")


async def _difference(trajectory: Trajectory, tools: RolloutTools, *, same_results: bool) -> Verdict | None:
    """Run the calls again; returns a verdict on the first result that differs from the recorded one, or None."""
    for answered in answered_calls(trajectory.messages):
        found = (await tools.toolbox.run_one(answered.call, answered.number)).observed().text
        if answered.result is None or not same_results:
            continue
        known = answered.result.content
        if not is_same_result(found, known):
            detail = f"turn {answered.turn}, {answered.call.name}: got {found!r} instead of {known!r}"
            return Verdict.refuse("other_result", shortened(detail))
    return None
