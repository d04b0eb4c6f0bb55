"""Command line `verl-pivot`: one function in commands/ per command; slow modules are imported when a command runs."""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from verl_pivot import __version__
from verl_pivot.commands.doctor import doctor_command
from verl_pivot.commands.environment_rows import environment_rows_command
from verl_pivot.commands.export import export_command
from verl_pivot.commands.filter import filter_command
from verl_pivot.commands.hard_set import hard_set_command
from verl_pivot.commands.import_trajectories import import_command
from verl_pivot.commands.index import index_command
from verl_pivot.commands.init import init_command
from verl_pivot.commands.inspect_run import inspect_command
from verl_pivot.commands.judge import judge_app
from verl_pivot.commands.mcp import mcp_app
from verl_pivot.commands.next_stage import next_stage_command
from verl_pivot.commands.plan import plan_command
from verl_pivot.commands.play import play_command
from verl_pivot.commands.process import process_app
from verl_pivot.commands.profile import profile_command
from verl_pivot.commands.qa_rows import qa_rows_command
from verl_pivot.commands.report import report_command
from verl_pivot.commands.rewards import rewards_app
from verl_pivot.commands.route import route_app
from verl_pivot.commands.sandbox import sandbox_app
from verl_pivot.commands.score import score_command
from verl_pivot.commands.search import search_app
from verl_pivot.commands.select import select_command
from verl_pivot.commands.smoke import smoke_command
from verl_pivot.commands.synthesize import synthesize_command
from verl_pivot.commands.tools import tools_app
from verl_pivot.commands.workflows import workflows_app
from verl_pivot.errors import PivotError
from verl_pivot.extras import missing_of_verl
from verl_pivot.interrupts import stop


class _UserErrors(TyperGroup):
    """Prints an error that the user can correct as one sentence, and exits with code 1, or with 130 for Ctrl-C."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        command = next(iter(args), None)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except KeyboardInterrupt:
            raise typer.Exit(stop(command)) from None

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PivotError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from error
        except ModuleNotFoundError as error:
            if (missing := missing_of_verl(error)) is None:
                raise
            typer.echo(f"error: {missing}", err=True)
            raise typer.Exit(1) from error
        except KeyboardInterrupt:
            raise typer.Exit(stop(ctx.invoked_subcommand)) from None
        except OSError as error:
            if error.filename is None:  # no file that the user named, such as a closed pipe, which typer handles
                raise
            typer.echo(f"error: {error.filename}: {error.strerror}", err=True)
            raise typer.Exit(1) from error


app = typer.Typer(
    name="verl-pivot",
    cls=_UserErrors,
    no_args_is_help=True,
    rich_markup_mode=None,  # Rich's tables cut names that do not fit into 80 columns
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"verl-pivot {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Prepare data for the stock verl trainer: `import`, `profile` and `select` turn recorded trajectories into pivots.

    The other commands are optional.
    """


_COMMANDS: dict[str, Callable[..., object]] = {
    "doctor": doctor_command,
    "smoke": smoke_command,
    "init": init_command,
    "plan": plan_command,
    "import": import_command,
    "filter": filter_command,
    "profile": profile_command,
    "play": play_command,
    "synthesize": synthesize_command,
    "score": score_command,
    "select": select_command,
    "export": export_command,
    "index": index_command,
    "qa-rows": qa_rows_command,
    "environment-rows": environment_rows_command,
    "next-stage": next_stage_command,
    "hard-set": hard_set_command,
    "inspect": inspect_command,
    "report": report_command,
}

for _name, _function in _COMMANDS.items():  # the whole first line: typer itself cuts it at the terminal's width
    app.command(_name, short_help=(_function.__doc__ or "").partition("\n")[0])(_function)
app.add_typer(sandbox_app, name="sandbox", short_help=str(sandbox_app.info.help))
app.add_typer(judge_app, name="judge", short_help=str(judge_app.info.help))
app.add_typer(mcp_app, name="mcp", short_help=str(mcp_app.info.help))
app.add_typer(process_app, name="process", short_help=str(process_app.info.help))
app.add_typer(rewards_app, name="rewards", short_help=str(rewards_app.info.help))
app.add_typer(route_app, name="route", short_help=str(route_app.info.help))
app.add_typer(search_app, name="search", short_help=str(search_app.info.help))
app.add_typer(tools_app, name="tools", short_help=str(tools_app.info.help))
app.add_typer(workflows_app, name="workflows", short_help=str(workflows_app.info.help))


if __name__ == "__main__":
    app()
