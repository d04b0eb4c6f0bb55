"""`verl-pivot environment-rows`: the data set of a foreign environment -> rows whose rollouts it then drives."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from verl_pivot.commands.next_steps import next_override
from verl_pivot.commands.options import json_object, out_of_parquet, refuse_given
from verl_pivot.errors import ConfigError


def environment_rows_command(
    ctx: typer.Context,
    environment: Annotated[
        str,
        typer.Argument(help="verifiers:NAME, an environment or a task set of verifiers, or miniwob:TASK,TASK,..."),
    ],
    out: Annotated[Path, typer.Option(callback=out_of_parquet, help="The rows.parquet to write.")],
    python: Annotated[
        str, typer.Option(help="Python in which verifiers and the environment are installed.", show_default="this one")
    ] = sys.executable,
    arguments: Annotated[
        str, typer.Option(help="JSON object with arguments of load_environment, or of [env] in verifiers 0.4.")
    ] = "{}",
    limit: Annotated[int | None, typer.Option(min=1, help="Write only the first N rows.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="With miniwob: number of seeds of each task.")] = 100,
    first_seed: Annotated[int, typer.Option(min=0, help="With miniwob: the first seed.")] = 0,
) -> None:
    """Write the data set of a foreign environment as rows for training.

    An environment of the package verifiers then drives the rollouts of these rows, in a process of the Python in which
    it is installed. Tasks of miniwob are played in a browser, by +method=web_agent. For miniwob this command also reads
    in the browser what each task asks for, which becomes the prompt of the row. An interrupted command for miniwob goes
    on where it was.

    \b
    Examples:
    verl-pivot environment-rows verifiers:wordle --out wordle.parquet
    verl-pivot environment-rows verifiers:wordle --out wordle.parquet \\
      --python environments/bin/python --arguments '{"num_train": 500}'
    verl-pivot environment-rows miniwob:click-button,enter-text \\
      --seeds 200 --out web.parquet
    """
    from verl_pivot.environments.verifiers_rows import verifiers_rows, write_rows
    from verl_pivot.planning.overrides import override_value

    kind, _, name = environment.partition(":")
    if kind not in ("verifiers", "miniwob") or not name:
        raise ConfigError(f"{environment} is not an environment with rows; give verifiers:NAME or miniwob:TASK,TASK")
    void = ("python", "arguments") if kind == "miniwob" else ("seeds", "first_seed")
    refuse_given(ctx, void, f"with {kind}")
    if kind == "miniwob":
        _write_miniwob(name.split(","), range(first_seed, first_seed + seeds), limit, out)
        return
    chosen = json_object(arguments, "--arguments")
    typer.echo(f"Loading the environment {name} ...")
    num_rows = write_rows(verifiers_rows(python, name, chosen, limit), out)
    typer.echo(f"Wrote {out}: {num_rows} rows.")
    setting = f"pivot.rollout.environment={{verifiers: {name}"
    if python != sys.executable:
        setting += f", python: {override_value(python)}"
    if chosen:
        setting += f", arguments: {arguments}"
    files = next_override("data.train_files", out)
    typer.echo(
        "Next:\npython -m verl.trainer.main_ppo <your overrides> +method=tool_rollout \\\n"
        f"    {files} {shlex.quote(setting + '}')}"
    )


def _write_miniwob(tasks: list[str], seeds: range, limit: int | None, out: Path) -> None:
    from verl_pivot.commands.progress import progress_bar
    from verl_pivot.environments.miniwob_rows import miniwob_problems, write_miniwob_rows

    problems = miniwob_problems(tasks, seeds)[:limit]
    with progress_bar("rows", len(problems)) as on_rows:
        num_rows = write_miniwob_rows(problems, out, on_rows)
    typer.echo(f"Wrote {out}: {num_rows} rows.")
    files = next_override("data.train_files", out)
    typer.echo(f"Next:\npython -m verl.trainer.main_ppo <your overrides> +method=web_agent \\\n    {files}")
