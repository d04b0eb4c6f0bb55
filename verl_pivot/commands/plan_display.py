"""Display of `verl-pivot plan`: a Plan -> lines of text; commands are not wrapped, so that they can be copied."""

from collections.abc import Iterator
from textwrap import wrap
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from verl_pivot.planning.estimates import GpuHours
    from verl_pivot.planning.plan import Plan
    from verl_pivot.selection.decisions import Decision

_WIDTH = 96


def print_plan(plan: "Plan") -> None:
    """Print the whole plan."""
    for title, lines in _sections(plan):
        typer.echo(f"\n{title}")
        for line in lines:
            typer.echo("\n".join(f"  {part}" for part in _wrapped(line)))
    if plan.problems:
        typer.echo("\nWhat will go wrong")
        for problem in plan.problems:
            parts = _wrapped(problem.text)
            typer.echo("\n".join([f"  - {parts[0]}", *(f"    {part}" for part in parts[1:])]))
    typer.echo("\nCommands")
    for words in plan.commands.values():
        typer.echo(_typed(words))


def print_launch(plan: "Plan") -> None:
    """Print the launch command, for the pivots that were selected."""
    typer.echo(f"\n{plan.shape.num_pivots:,} pivots to train on, {_hours(plan.training)}. To train:")
    typer.echo(_typed(plan.commands["launch"]))


def _sections(plan: "Plan") -> Iterator[tuple[str, list[str]]]:
    found = plan.findings
    survey, lengths, trial, facts = found.survey, found.lengths, found.trial, found.facts
    size = "size not known" if facts.billions is None else f"{facts.billions:,.3g} billion parameters"
    yield (
        f"Plan for {found.request.trajectories} and {found.request.model} ({size})",
        [
            f"{survey.num_trajectories:,} trajectories with {survey.num_turns:,} turns, of which "
            f"{survey.num_message_turns:,} are messages; {len(trial.clusters):,} trajectories with "
            f"{trial.report.num_candidates:,} turns were profiled for this plan."
        ],
    )
    yield (
        "Lengths, of the profiled trajectories",
        [
            f"prompts: {lengths.max_prompt_tokens:,} tokens let {lengths.prompt_share:.1%} through (shortest "
            f"{lengths.shortest_prompt:,}, longest {lengths.longest_prompt:,}).",
            f"actions: {lengths.max_new_tokens:,} new tokens let {lengths.expert_share:.1%} of the experts' actions "
            f"through, and {1.0 - _share(trial.samples.num_truncated, trial.samples.num_samples):.1%} of the samples.",
        ],
    )
    counts = ", ".join(f"{count} {decision.value.replace('_', ' ')}" for decision, count in _decided(plan))
    pivots = plan.pivots
    yield (
        "Pivots",
        [
            f"in the trial: {counts}.",
            f"expected from all turns: {pivots.expected:,}, 95 % interval {pivots.low:,} to {pivots.high:,}. "
            "Equal turns of different trajectories count once, so that a whole file may have fewer.",
        ],
    )
    speed = "not known" if found.speed is None else found.speed.source
    yield (
        f"GPU hours, with --gpus {found.request.num_gpus}",
        [
            f"speed: {speed}.",
            f"profile: {_hours(plan.profile)}; {plan.profile.assumption}.",
            f"training: {_hours(plan.training)}; {plan.training.assumption}.",
        ],
    )


def _decided(plan: "Plan") -> "list[tuple[Decision, int]]":
    return [(decision, count) for decision, count in plan.findings.trial.report.num_by_decision.items() if count]


def _wrapped(text: str) -> list[str]:
    """Lines of a paragraph; a number stays with its percent sign."""
    lines = wrap(text.replace(" %", "\N{NO-BREAK SPACE}%"), _WIDTH, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _hours(estimate: "GpuHours") -> str:
    return "GPU hours not known" if estimate.gpu_hours is None else f"{estimate.gpu_hours:,.2g} GPU hours"


def _typed(words: list[str]) -> str:
    from verl_pivot.planning.plan_commands import typed

    return f"  {typed(words)}"
