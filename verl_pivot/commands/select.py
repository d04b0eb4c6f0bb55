"""`verl-pivot select`: trajectories.jsonl and profile.jsonl -> pivots.parquet, a report and a plot."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from verl_pivot.commands.next_steps import launch_command
from verl_pivot.commands.options import out_of_parquet, refuse_overwriting, refuse_void
from verl_pivot.commands.tables import counts_table, printable, table_console
from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from verl_pivot.selection.decisions import SelectionReport, SelectionRule


def select_command(
    trajectories: Annotated[Path, typer.Argument(help="trajectories.jsonl from `verl-pivot import`.")],
    out: Annotated[Path, typer.Option(callback=out_of_parquet, help="The pivots.parquet to write.")],
    profile: Annotated[Path | None, typer.Option(help="profile.jsonl from `verl-pivot profile`.")] = None,
    lambda_diff: Annotated[float, typer.Option(help="Upper limit of a pivot's mean reward, in (0, 1].")] = 1.0,
    keep: Annotated[
        Literal["pivots", "unsolved", "all"],
        typer.Option(
            help="pivots: turns with mixed rewards and a mean below --lambda-diff; unsolved: all turns but those at "
            "which every sample was right; all: every turn."
        ),
    ] = "pivots",
    max_per_trajectory: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of pivots per trajectory; those with the highest reward variance stay. By default all."
        ),
    ] = None,
    max_prompt_tokens: Annotated[int, typer.Option(help="Drop turns with a longer prompt; 0 is no limit.")] = 4096,
    model: Annotated[
        str | None, typer.Option(help="Model whose tokenizer counts prompt tokens, if no profile has counted them.")
    ] = None,
    validation_share: Annotated[
        float, typer.Option(help="Share of the trajectories in the validation split, in [0, 1).")
    ] = 0.1,
    split_by: Annotated[
        Literal["task", "trajectory"],
        typer.Option(help="Unit that is kept in one split: all trajectories of a task, or one trajectory."),
    ] = "task",
    seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
    check_verifier: Annotated[
        bool, typer.Option(help="Drop turns whose verifier refuses the expert's own action.")
    ] = True,
    recordings: Annotated[
        bool,
        typer.Option(help="Add the recorded observations, so that rollouts can continue from a pivot (docs/tools.md)."),
    ] = False,
    verifier_module: Annotated[
        list[str] | None, typer.Option(help="Module or .py file that registers verifiers of your own; repeatable.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default one per core.")] = None,
) -> None:
    """Choose the pivots: turns whose samples differ in reward, with a mean below --lambda-diff.

    An interrupted selection continues when it is run again.

    Example: verl-pivot select trajectories.jsonl --profile profile.jsonl --out pivots.parquet
    """
    from verl_pivot.commands.progress import progress_bar
    from verl_pivot.data.parallel import num_cores
    from verl_pivot.profiling.profiles import is_published, read_settings
    from verl_pivot.selection.candidates import CandidateSettings
    from verl_pivot.selection.decisions import SelectionRule
    from verl_pivot.selection.selecting import SelectionJob, SelectionOutputs, select_pivots
    from verl_pivot.verifiers.judge_usage import usage_lines

    paths = SelectionOutputs(train=out)
    outputs = [out, paths.validation, paths.report, paths.picture]
    refuse_overwriting(outputs, [trajectories, profile, *(verifier_module or [])])
    if keep != "pivots":
        refuse_void({"--lambda-diff": lambda_diff != 1.0}, because=f"--keep {keep} looks at no mean; leave it out")
    rule = SelectionRule(
        lambda_diff=lambda_diff,
        keep=keep,
        max_per_trajectory=max_per_trajectory,
        max_prompt_tokens=max_prompt_tokens or None,
    )
    measured = None if profile is None or is_published(profile) else read_settings(profile)
    counts_prompts = measured is None
    _check_options(rule, profile, counts_prompts=counts_prompts, model=model)
    if measured is not None and measured.early_stop is not None:
        measured.early_stop.check_decides(rule.keep, rule.lambda_diff)
    job = SelectionJob(
        trajectories=trajectories,
        profile=profile,
        paths=paths,
        rule=rule,
        settings=CandidateSettings(
            model=model if counts_prompts else None,
            check_verifier=check_verifier,
            seed=seed,
            validation_share=validation_share,
            split_by=split_by,
            verifier_modules=tuple(verifier_module or ()),
            turns="all" if measured is None else measured.turns,
        ),
        workers=workers or num_cores(),
        with_recordings=recordings,
    )
    job.settings.prepare()
    report = select_pivots(job, progress_bar)
    _print_selection(report)
    for line in usage_lines():
        typer.echo(line)
    typer.echo(
        f"Wrote {paths.train}, {paths.validation.name}, {paths.report.name}"
        + (f", {paths.picture.name}" if profile else "")
        + "."
    )
    if not report.num_validation:
        typer.echo(
            "The validation split is empty because of --validation-share: give your own data.val_files in training."
        )
    if measured is not None:
        typer.echo(f"Next: {launch_command(paths.train, report.num_train, measured, verifier_module or [])}")


def _check_options(rule: "SelectionRule", profile: Path | None, *, counts_prompts: bool, model: str | None) -> None:
    if profile is None and rule.keep != "all":
        raise ConfigError(
            "--profile is missing, and pivots are chosen by a profile: run `verl-pivot profile` and give its file with "
            "--profile, or take every turn with --keep all"
        )
    if not counts_prompts and model is not None:
        raise ConfigError(f"--model does nothing with --profile {profile}, which has counted the prompts: leave it out")
    if counts_prompts and rule.max_prompt_tokens is not None and model is None:
        raise ConfigError(
            "no profile has counted the tokens of the prompts: give --model, the policy whose tokenizer counts them, "
            "or --max-prompt-tokens 0 to leave the length of prompts unchecked"
        )


def _print_selection(report: "SelectionReport") -> None:
    console = table_console()
    table = counts_table(f"{report.num_candidates} pivot candidates")
    if any(report.num_by_outcome.values()):
        for outcome, count in report.num_by_outcome.items():
            table.add_row(f"profile: {outcome.value}", str(count), "")
    table.add_section()
    for decision, count in report.num_by_decision.items():
        note = f"{report.num_train} train, {report.num_validation} validation" if decision.value == "kept" else ""
        table.add_row(decision.value.replace("_", " "), str(count), note)
    for reason, count in report.num_refused_experts.items():
        table.add_row(f"  expert: {reason}", str(count), printable(report.refused_expert_examples[reason]))
    console.print(table)
