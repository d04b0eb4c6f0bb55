"""`verl-pivot inspect`: a page on loopback with the metrics and rollouts of a training, also of one that runs."""

from pathlib import Path
from typing import Annotated

import typer

from verl_pivot.commands.options import refuse_repeats


def inspect_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folder of a run, of its trainer.rollout_data_dir, or one dump; several lie over each other.",
        ),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; any other than loopback lets others in who have the token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 0,
) -> None:
    """Show a training in the browser: its metrics as curves, and its rollouts turn by turn.

    Open the address that is printed. The page follows a training that runs, and needs no network. Press ? in it for
    its keys. Ctrl-C ends the command. It writes nothing but marked_verdicts.jsonl, for verdicts that you mark as wrong.

    \b
    Examples:
    verl-pivot inspect outputs/run
    verl-pivot inspect seed-0 seed-1
    verl-pivot inspect outputs/run/rollouts/pivot/12.jsonl --port 8000
    """
    refuse_repeats(runs)
    from verl_pivot.runs.run import TrainingRun

    found = [TrainingRun(run) for run in runs]
    for run in found:
        run.check()

    import secrets

    from verl_pivot.commands.serving import serve_until_told
    from verl_pivot.inspect.queries import RunIndex
    from verl_pivot.inspect.server import InspectPage

    index, token = RunIndex(found), secrets.token_urlsafe(24)
    names = ", ".join(map(str, runs))
    serve_until_told(
        lambda: InspectPage(index, token=token, host=host).app(),
        host,
        port,
        lambda url: typer.echo(f"Showing {names} at {url}/?token={token}"),
    )
