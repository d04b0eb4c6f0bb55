"""`verl-pivot inspect`: a finished or running training -> a page on loopback, or a view in the terminal."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verl_pivot.commands.options import refuse_repeats
from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from aiohttp.web import Application


def inspect_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folder of a run, of its trainer.rollout_data_dir, or one dump; several runs are drawn over each "
            "other. Or files of the stages before training: trajectories, their profile, pivots, and the reasons of "
            "`filter`.",
        ),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; with 0.0.0.0 other machines that have the token can connect.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 0,
    terminal: Annotated[bool, typer.Option("--terminal", help="Show the runs or files in this terminal.")] = False,
) -> None:
    """Show a training in the browser, or files of the stages before it: a profile, pivots and trajectories.

    Open the address that is printed. The page follows a training that runs, and needs no network. Press ? in it for
    its keys. Ctrl-C ends the command. It writes nothing but marked_verdicts.jsonl, for verdicts that you mark as wrong.
    With --terminal everything is shown in the terminal instead, for example over ssh; press ? for the keys.

    \b
    Examples:
    verl-pivot inspect outputs/run
    verl-pivot inspect seed-0 seed-1
    verl-pivot inspect outputs/run/rollouts/pivot/12.jsonl --port 8000
    verl-pivot inspect outputs/run --terminal
    verl-pivot inspect trajectories.jsonl profile.jsonl pivots.parquet
    """
    refuse_repeats(runs)
    if terminal and (host, port) != ("127.0.0.1", 0):
        raise ConfigError("--host and --port do nothing with --terminal, which serves no page: leave them out")
    from verl_pivot.inspect.candidate_files import kind_of

    candidates = [path for path in runs if kind_of(path) is not None]
    if not candidates:
        _show_runs(runs, host, port, terminal)
    elif others := [path for path in runs if path not in candidates]:
        if missing := [str(path) for path in others if not path.exists()]:
            raise ConfigError(f"no such file: {', '.join(missing)}; check the name")
        names = ", ".join(map(str, others))
        raise ConfigError(f"{candidates[0]} comes from a stage before training, unlike {names}: give them separately")
    else:
        _show_candidates(candidates, host, port, terminal)


def _show_runs(runs: list[Path], host: str, port: int, terminal: bool) -> None:
    from verl_pivot.runs.run import TrainingRun

    found = [TrainingRun(run) for run in runs]
    for run in found:
        run.check()

    from verl_pivot.inspect.queries import RunIndex

    index = RunIndex(found)
    if terminal:
        from verl_pivot.inspect.terminal import show_in_terminal

        show_in_terminal(index)
        return

    from verl_pivot.inspect.server import InspectPage

    _serve(lambda token: InspectPage(index, token=token, host=host).app(), runs, host, port)


def _show_candidates(paths: list[Path], host: str, port: int, terminal: bool) -> None:
    from verl_pivot.inspect.candidate_files import CandidateFiles

    files = CandidateFiles(paths)
    if terminal:
        from verl_pivot.inspect.terminal_candidates import show_turns_in_terminal

        show_turns_in_terminal(files)
        return

    from verl_pivot.inspect.candidate_server import CandidatePage

    _serve(lambda token: CandidatePage(files, token=token, host=host).app(), paths, host, port)


def _serve(app: Callable[[str], "Application"], paths: list[Path], host: str, port: int) -> None:
    import secrets

    from verl_pivot.commands.serving import serve_until_told

    token = secrets.token_urlsafe(24)
    names = ", ".join(map(str, paths))
    serve_until_told(lambda: app(token), host, port, lambda url: typer.echo(f"Showing {names} at {url}/?token={token}"))
