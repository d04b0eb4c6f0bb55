"""`verl-pivot next-stage`: a run's last checkpoint -> the model, or the run, from which the next stage starts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verl_pivot.commands.next_steps import next_override
from verl_pivot.commands.options import out_of_any_kind

if TYPE_CHECKING:
    from verl_pivot.exports.checkpoints import ActorCheckpoint


def next_stage_command(
    checkpoint: Annotated[
        Path, typer.Argument(help="A run's trainer.default_local_dir, or one global_step_N folder in it.")
    ],
    out: Annotated[Path, typer.Option(callback=out_of_any_kind, help="The folder to write; it must not exist yet.")],
    keep_optimizer: Annotated[
        bool,
        typer.Option(
            "--keep-optimizer",
            help="Write a folder for trainer.default_local_dir, from which verl resumes weights and optimizer.",
        ),
    ] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run the Python code that comes with the model.")
    ] = False,
) -> None:
    """Write the policy of a run's last checkpoint as a model, from which the next stage starts with a new optimizer.

    With --keep-optimizer it writes a run instead, which has taken no step yet and keeps the optimizer. rStar2-Agent's
    second stage goes on with the optimizer of the first, and the third begins with a new one. The written run needs as
    many GPUs as the run before.

    Weights that verl saved in shards go through verl's own merger, which rounds them to bfloat16. Weights saved with
    actor_rollout_ref.actor.checkpoint.save_contents=[...,hf_model] are taken as they are.

    Example: verl-pivot next-stage checkpoints/stage-2 --out stage-2-model
    """
    from rich.console import Console
    from rich.text import Text

    from verl_pivot.exports.carried_run import carry_run
    from verl_pivot.exports.checkpoints import find_actor, write_model

    actor, out = find_actor(checkpoint), out.resolve()
    if keep_optimizer:
        carry_run(actor, out)
        _print_carried_launch(actor, out)
        return
    doing = "Copying" if actor.backend is None else f"Merging {actor.backend} shards of"
    with Console(stderr=True).status(Text(f"{doing} {actor.actor}")):
        write_model(actor, out, trust_remote_code=trust_remote_code)
    _print_next_launch(actor, out)


def _print_next_launch(actor: "ActorCheckpoint", model: Path) -> None:
    num_bytes = sum(path.stat().st_size for path in model.rglob("*") if path.is_file())
    typer.echo(
        f"Wrote {model} ({num_bytes / 1e9:.2f} GB) from {actor.step_folder}.\n"
        f"Change in the next launch:\n"
        f"  {next_override('actor_rollout_ref.model.path', model)} "
        f"{next_override('trainer.default_local_dir', model.with_name(f'{model.name}-run'))} trainer.resume_mode=auto\n"
        f"Give trainer.default_local_dir a new folder: in {actor.step_folder.parent} verl would resume the old "
        "optimizer, weights and step count, whatever the model."
    )


def _print_carried_launch(actor: "ActorCheckpoint", run: Path) -> None:
    typer.echo(
        f"Wrote {run} from {actor.step_folder}.\n"
        "Change in the next launch:\n"
        f"  {next_override('trainer.default_local_dir', run)} trainer.resume_mode=auto\n"
        "Keep actor_rollout_ref.model.path, which gives the reference policy, and the number of GPUs."
    )
