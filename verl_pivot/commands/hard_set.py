"""`verl-pivot hard-set`: problems.parquet and recorded rollouts -> the problems that are not solved every time."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verl_pivot.commands.next_steps import next_override
from verl_pivot.commands.options import out_of_parquet, refuse_overwriting
from verl_pivot.commands.tables import counts_table, table_console
from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from verl_pivot.selection.hard_set import HardSet


def hard_set_command(
    problems: Annotated[Path, typer.Argument(help="The parquet file of problems that were rolled out.")],
    rollouts: Annotated[
        list[Path],
        typer.Option(help="Recorded rollouts, <trainer.validation_data_dir>/pivot/<step>.jsonl; repeatable."),
    ],
    out: Annotated[Path, typer.Option(callback=out_of_parquet, help="The hard.parquet to write.")],
    min_rollouts: Annotated[
        int, typer.Option(min=1, help="Minimum number of scored rollouts of a problem before it can be dropped.")
    ] = 8,
    right_from: Annotated[float, typer.Option(help="Minimum reward of a rollout that solved its problem.")] = 1.0,
    prompt_key: Annotated[str, typer.Option(help="Column with the chat messages: verl's data.prompt_key.")] = "prompt",
) -> None:
    """Drop the problems that the policy solved every time. The others stay unchanged and in their order.

    The rollouts come from the stock trainer, here eight of each problem.

    \b
    Examples:
      python -m verl.trainer.main_ppo <your overrides> +method=grpo_roc \\
          actor_rollout_ref.model.path=stage-2-model \\
          data.val_files=problems.parquet trainer.val_only=True \\
          actor_rollout_ref.rollout.val_kwargs.n=8 \\
          actor_rollout_ref.rollout.val_kwargs.do_sample=True \\
          actor_rollout_ref.rollout.val_kwargs.temperature=1.0 \\
          trainer.validation_data_dir=profile
      verl-pivot hard-set problems.parquet \\
          --rollouts profile/pivot/0.jsonl --out hard.parquet
    """
    from verl_pivot.commands.progress import progress_bar
    from verl_pivot.data.files import num_rows
    from verl_pivot.selection.hard_set import judge_problems, read_pass_counts, write_hard_set

    picture = out.with_suffix(".png")
    refuse_overwriting([out, picture], [problems, *rollouts])
    if not math.isfinite(right_from):
        raise ConfigError(f"--right-from {right_from}: give a number, such as 1")
    with progress_bar("rollouts", sum(num_rows(path) or 0 for path in rollouts) or None) as on_done:
        counts = read_pass_counts(rollouts, on_done, right_from=right_from)
    hard_set = judge_problems(problems, counts, min_rollouts=min_rollouts, prompt_key=prompt_key)
    _print_counts(hard_set)
    hard_set.check(problems)
    with progress_bar("problems", len(hard_set.judged)) as on_done:
        write_hard_set(problems, hard_set, out, picture, on_done)
    typer.echo(f"Wrote {out}, {picture.name}.")
    typer.echo(f"Next: {next_override('data.train_files', out)}")


def _print_counts(hard_set: "HardSet") -> None:
    table = counts_table(f"{len(hard_set.judged)} problems")
    for standing, count in hard_set.num_by_standing.items():
        table.add_row(standing.value, str(count), hard_set.note(standing))
    table.add_section()
    table.add_row("kept", str(hard_set.num_kept), "")
    table_console().print(table)
