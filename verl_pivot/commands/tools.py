"""`verl-pivot tools report`, `serve` and `check-replay`: shows a training's calls, serves tools, checks replays."""

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from verl_pivot.commands.options import out_of_any_kind, refuse_overwriting, refuse_repeats
from verl_pivot.errors import ConfigError, DataError, PivotError

if TYPE_CHECKING:
    from verl_pivot.runs.tool_use import StepToolUse
    from verl_pivot.tools.toolset import Toolset

tools_app = typer.Typer(help="Serve and check tools, and look at the tool calls of a training.", no_args_is_help=True)


@tools_app.callback()
def tools() -> None:
    """Serve and check tools, and look at the tool calls of a training."""


@tools_app.command("report")
def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folder of trainer.rollout_data_dir, or of a run that has it as rollouts; one run per seed.",
        ),
    ],
    right_from: Annotated[float, typer.Option(help="Minimum reward of a trajectory that counts as right.")] = 0.5,
    block: Annotated[
        int, typer.Option(min=1, help="Steps per block; rows and differences are of means over a block.")
    ] = 10,
    plot: Annotated[
        Path | None, typer.Option(callback=out_of_any_kind, help="PNG file to draw, with a line for each run.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything, with every step, as one JSON object instead.")
    ] = False,
) -> None:
    """Show how calls, length and accuracy develop over the steps, and whether they move together.

    The figures are those of all trajectories of a step that were not masked, read from the dumps that
    trainer.rollout_data_dir=DIR makes a training write.

    \b
    Examples:
    verl-pivot tools report outputs/run
    verl-pivot tools report seed-0 seed-1 seed-2 --plot trends.png
    verl-pivot tools report rollouts --right-from 1 --json
    """
    if plot is not None and plot.suffix != ".png":
        raise ConfigError(
            f"--plot {plot}: a PNG is drawn, and its name must end in .png; give {plot.with_suffix('.png')}"
        )
    refuse_overwriting([plot] if plot else [], runs, "--plot")
    if not math.isfinite(right_from):
        raise ConfigError(f"--right-from {right_from}: give a number, such as 1")
    refuse_repeats(runs, "the run of another seed")
    from verl_pivot.commands.tools_display import ToolReport, print_report, report_as_dict

    report = ToolReport(runs={str(run): _read(run, right_from) for run in runs}, block_size=block)
    if plot is not None:
        from verl_pivot.runs.tool_use_plot import draw_tool_use

        draw_tool_use(report.runs, plot)
    if as_json:
        import json

        typer.echo(json.dumps(report_as_dict(report), indent=2))
    else:
        print_report(report)
    if plot is not None:
        typer.echo(f"Wrote {plot}.", err=as_json)


def _read(run: Path, right_from: float) -> "tuple[StepToolUse, ...]":
    from verl_pivot.commands.progress import progress_bar
    from verl_pivot.runs.tool_use import dump_files, read_tool_use

    with progress_bar("steps", len(dump_files(run))) as on_step:
        return read_tool_use(run, right_from=right_from, on_step=on_step)


@tools_app.command("serve")
def serve_command(
    tools: Annotated[Path, typer.Argument(help="Tools file (YAML), or an environment as path/to/file.py:Class.")],
    tool_format: Annotated[
        str | None,
        typer.Option(
            help="Format of calls and observations: a name as in +tool_format=, or a YAML file with keys of "
            "pivot.rollout. By default calls are <tool_call> blocks."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for every interface.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 5000,
    idle_seconds: Annotated[
        float, typer.Option(min=1.0, help="Seconds without an action after which an unfinished trajectory is ended.")
    ] = 3600.0,
) -> None:
    """Serve the tools of a tools file in the protocol of verl-tool's tool servers.

    The path is /get_observation; the trainer's action_stop_tokens must be the texts that end a call in the format.
    Whoever reaches the port may run the tools: there is no password. Ctrl-C ends the service.

    \b
    Examples:
    verl-pivot tools serve tools.yaml
    verl-pivot tools serve tools.yaml --tool-format torl --host 0.0.0.0
    """
    from verl_pivot.commands.label_continuations import ContinuationOptions
    from verl_pivot.commands.serving import serve_until_told
    from verl_pivot.data.actions import read_turn
    from verl_pivot.launch_checks.sandbox_pool import check_pool
    from verl_pivot.playing.running import open_toolset
    from verl_pivot.rollout.turn_parsers import TagParser
    from verl_pivot.tools.tool_service import ActionForm, ToolService

    settings = ContinuationOptions(tools=str(tools), tool_format=tool_format).settings()
    toolset = open_toolset(settings.tools)
    check_pool(tools=toolset.built_in)
    for pair in settings.tags:
        toolset.check_argument(pair.tool, pair.argument)
    tags = TagParser(settings.tags, settings.answer_tag)
    form = ActionForm(
        read=tags.read if settings.parser == "tags" else lambda action: read_turn(action).calls,
        template=settings.observation_template,
    )
    service = ToolService(toolset, form, max_calls_per_turn=settings.max_calls_per_turn, idle_seconds=idle_seconds)
    serve_until_told(service.app, host, port, lambda url: typer.echo(f"Serving {tools} at {url}/get_observation"))


@tools_app.command("check-replay")
def check_replay_command(
    tools: Annotated[
        str,
        typer.Argument(help="Tools file (YAML), or an environment as path/to/file.py:Class or package.module:Class."),
    ],
    trajectories: Annotated[
        Path,
        typer.Argument(
            help="trajectories.jsonl from `import`; its calls are run, with its metadata.", exists=True, dir_okay=False
        ),
    ],
    num: Annotated[int | None, typer.Option(min=1, help="Run only the calls of the first N trajectories.")] = None,
) -> None:
    """Tell whether an environment replays exactly: the same calls give the same results, states and score.

    The calls of each trajectory are run twice in new environments, and also on copies if the environment has `fork`.
    The verifier `state`, +method=tree_search and the checks of `synthesize` run calls again, and rely on exact replays.
    The exit code is 1 if anything differs.

    \b
    Examples:
    verl-pivot tools check-replay shop.py:Shop trajectories.jsonl
    verl-pivot tools check-replay tools.yaml trajectories.jsonl --num 100
    """
    import asyncio

    from verl_pivot.launch_checks.sandbox_pool import check_pool
    from verl_pivot.playing.running import open_toolset

    toolset = open_toolset(tools)
    check_pool(tools=toolset.built_in)
    found = asyncio.run(_replay_differences(toolset, trajectories, num))
    for name, difference in found.differences.items():
        typer.echo(f"{name}: {difference}")
    if found.differences:
        typer.echo(f"{len(found.differences)} of {found.num_trajectories} trajectories do not replay.", err=True)
        raise typer.Exit(1)
    typer.echo(f"{found.num_trajectories} trajectories with {found.num_calls} calls: all replay exactly.")


class _Replayed(NamedTuple):
    num_trajectories: int
    num_calls: int
    differences: dict[str, str]
    """{id of a trajectory: its first difference}"""


async def _replay_differences(toolset: "Toolset", path: Path, num: int | None) -> _Replayed:
    from itertools import islice

    from verl_pivot.commands.progress import progress_bar
    from verl_pivot.data.answered_calls import answered_calls
    from verl_pivot.data.json_values import encode_json
    from verl_pivot.data.trajectories import read_trajectories
    from verl_pivot.tools.replay_check import replay_difference

    num_trajectories, num_calls, differences = 0, 0, {}
    with progress_bar("trajectories", num) as on_done:
        for trajectory in islice(read_trajectories(path), num):
            calls = answered_calls(trajectory.messages)
            row = {"metadata": encode_json(trajectory.metadata), "tools": encode_json(list(trajectory.tools))}
            try:
                found = await replay_difference(partial(toolset.open, row), calls)
            except PivotError as error:
                raise type(error)(f"trajectory {trajectory.id}: {error}") from error
            if found is not None:
                name = calls[found.call].call.name if 0 <= found.call < len(calls) else "no call"
                differences[trajectory.id] = f"call {found.call} ({name}): {found}"
            num_trajectories, num_calls = num_trajectories + 1, num_calls + len(calls)
            on_done(1)
    if not num_calls:
        raise DataError(f"{path} has no call to run; give trajectories that call these tools")
    return _Replayed(num_trajectories, num_calls, differences)
