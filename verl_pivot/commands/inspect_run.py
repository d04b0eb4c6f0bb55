"""`verl-pivot inspect`: a page on loopback, or a view in the terminal, of a training, also of one that runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verl_pivot.commands.options import refuse_repeats
from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from verl_pivot.inspect.queries import RunIndex


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
    terminal: Annotated[bool, typer.Option("--terminal", help="Show the rollouts in this terminal.")] = False,
) -> None:
    """Show a training in the browser: its metrics as curves, and its rollouts turn by turn.

    Open the address that is printed. The page follows a training that runs, and needs no network. Press ? in it for
    its keys. Ctrl-C ends the command; it writes nothing. With --terminal the rollouts are shown where the command
    runs, as over ssh, by keys alone: ? shows them.

    \b
    Examples:
    verl-pivot inspect outputs/run
    verl-pivot inspect seed-0 seed-1
    verl-pivot inspect outputs/run/rollouts/pivot/12.jsonl --port 8000
    verl-pivot inspect outputs/run --terminal
    """
    refuse_repeats(runs)
    if terminal and (host, port) != ("127.0.0.1", 0):
        raise ConfigError("--host and --port are of the page, which --terminal does not serve: leave them out")
    from verl_pivot.runs.run import TrainingRun

    found = [TrainingRun(run) for run in runs]
    for run in found:
        run.check()

    from verl_pivot.inspect.queries import RunIndex

    index = RunIndex(found)
    if terminal:
        from verl_pivot.inspect.terminal import show_in_terminal

        show_in_terminal(index)
    else:
        _serve(index, runs, host, port)


def _serve(index: "RunIndex", runs: list[Path], host: str, port: int) -> None:
    import secrets

    from verl_pivot.commands.serving import serve_until_told
    from verl_pivot.inspect.server import InspectPage

    token = secrets.token_urlsafe(24)
    names = ", ".join(map(str, runs))
    serve_until_told(
        lambda: InspectPage(index, token=token, host=host).app(),
        host,
        port,
        lambda url: typer.echo(f"Showing {names} at {url}/?token={token}"),
    )
