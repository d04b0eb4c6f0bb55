"""Command `verl-pivot select`: trajectories.jsonl and profile.jsonl -> pivots.parquet, a table and a plot."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from verl_pivot.commands.tables import counts_table, refuse_overwriting
from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from verl_pivot.selection.decisions import SelectionReport
    from verl_pivot.types import Trajectory, Turn


def select_command(
    trajectories: Annotated[Path, typer.Argument(help="What `verl-pivot import` wrote.")],
    out: Annotated[Path, typer.Option(help="The pivots.parquet to write.")],
    profile: Annotated[Path | None, typer.Option(help="What `verl-pivot profile` wrote.")] = None,
    lambda_diff: Annotated[float, typer.Option(help="Pivots have a mean reward below this, in (0, 1].")] = 1.0,
    keep: Annotated[
        Literal["pivots", "all"], typer.Option(help="'all' switches the filters on rewards off.")
    ] = "pivots",
    max_per_trajectory: Annotated[
        int | None, typer.Option(help="Keep those of highest reward variance; no cap unless given.")
    ] = None,
    max_prompt_tokens: Annotated[int, typer.Option(help="Longer prompts are refused; 0 is no limit.")] = 4096,
    model: Annotated[str | None, typer.Option(help="Whose tokenizer counts prompts that have no profile.")] = None,
    validation_share: Annotated[float, typer.Option(help="Share of the trajectories, in [0, 1).")] = 0.1,
    seed: Annotated[int, typer.Option(help="Of the split.")] = 0,
    check_verifier: Annotated[
        bool, typer.Option(help="Refuse turns whose verifier refuses the expert's own action.")
    ] = True,
    verifier_module: Annotated[
        list[str] | None, typer.Option(help="Module or .py file that registers verifiers; may be repeated.")
    ] = None,
) -> None:
    """Choose the turns worth training on: mixed rewards, and a mean below lambda_diff.

    Example: verl-pivot select trajectories.jsonl --profile profile.jsonl --out pivots.parquet
    """
    from verl_pivot.selection.decisions import SelectionRule, select
    from verl_pivot.selection.selecting import (
        CandidateSource,
        OutputPaths,
        gather_candidates,
        profiles_of,
        report_of,
        require_some,
        write_selection,
    )
    from verl_pivot.verifiers.judge_usage import usage_lines
    from verl_pivot.verifiers.registry import load_verifier_modules

    refuse_overwriting(out, [trajectories, *([profile] if profile else [])])
    settings: dict[str, object] = {
        "trajectories": str(trajectories),
        "profile": None if profile is None else str(profile),
        "model": model,
        "validation_share": validation_share,
        "seed": seed,
        "check_verifier": check_verifier,
    }
    rule = SelectionRule(
        lambda_diff=lambda_diff,
        keep=keep,
        max_per_trajectory=max_per_trajectory,
        max_prompt_tokens=max_prompt_tokens or None,
    )
    if profile is None and keep == "pivots":
        raise ConfigError(
            "the pivots are told by the profile: run `verl-pivot profile` and give its file with "
            "--profile, or take every turn with --keep all"
        )
    load_verifier_modules(verifier_module or [])
    source = CandidateSource(
        profiles=None if profile is None else profiles_of(profile, trajectories),
        count_prompt_tokens=_prompt_counter(model, rule.max_prompt_tokens) if profile is None else None,
        check_verifier=check_verifier,
        seed=seed,
        validation_share=validation_share,
    )
    candidates = gather_candidates(_trajectories_with_progress(trajectories, "reading"), source)
    selection = select(candidates, rule)
    _print_selection(selection.report)
    for line in usage_lines():
        typer.echo(line)
    require_some(selection.report, validation_share=validation_share)
    paths, report = OutputPaths(train=out), report_of(selection, rule, settings)
    write_selection(_trajectories_with_progress(trajectories, "writing"), candidates, selection, paths, report)
    typer.echo(
        f"Wrote {paths.train}, {paths.validation.name}, {paths.report.name}"
        + (f", {paths.picture.name}" if profile else "")
        + "."
    )
    if not selection.report.num_validation:
        typer.echo("The validation split is empty, as asked for: train with data.val_files of your own.")


def _prompt_counter(model: str | None, max_prompt_tokens: int | None) -> "Callable[[Turn], int] | None":
    if model is None:
        if max_prompt_tokens is not None:
            raise ConfigError(
                "prompts are counted in tokens and nothing was profiled: give --model, the policy whose "
                "tokenizer counts them, or --max-prompt-tokens 0 to leave them unchecked"
            )
        return None
    from verl_pivot.rollout.rendering import PromptRenderer

    renderer = PromptRenderer(model)
    return lambda turn: len(renderer.prompt_ids(turn))


def _trajectories_with_progress(path: Path, doing: str) -> "Iterable[Trajectory]":
    from rich.progress import track

    from verl_pivot.data.storage import num_rows
    from verl_pivot.data.trajectories import read_trajectories

    return track(read_trajectories(path), description=f"{doing} {path.name}", total=num_rows(path), transient=True)


def _print_selection(report: "SelectionReport") -> None:
    from rich.console import Console

    console = Console()
    table = counts_table(f"{report.num_candidates} pivot candidates")
    if any(report.num_by_outcome.values()):
        for outcome, count in report.num_by_outcome.items():
            table.add_row(f"profile: {outcome.value}", str(count), "")
    table.add_section()
    for decision, count in report.num_by_decision.items():
        note = f"{report.num_train} train, {report.num_validation} validation" if decision.value == "kept" else ""
        table.add_row(decision.value.replace("_", " "), str(count), note)
    for reason, count in report.num_refused_experts.items():
        table.add_row(f"  expert: {reason}", str(count), report.refused_expert_examples[reason])
    console.print(table)
