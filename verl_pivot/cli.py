"""Command line `verl-pivot`: one function in commands/ per command; slow modules are imported when it runs."""

from typing import Any

import typer
from typer.core import TyperGroup

from verl_pivot.commands.doctor import doctor_command
from verl_pivot.commands.export import export_command
from verl_pivot.commands.filter import filter_command
from verl_pivot.commands.hard_set import hard_set_command
from verl_pivot.commands.import_trajectories import import_command
from verl_pivot.commands.index import index_command
from verl_pivot.commands.init import init_command
from verl_pivot.commands.next_stage import next_stage_command
from verl_pivot.commands.profile import profile_command
from verl_pivot.commands.route import route_app
from verl_pivot.commands.sandbox import sandbox_app
from verl_pivot.commands.score import score_command
from verl_pivot.commands.select import select_command
from verl_pivot.errors import PivotError


class _UserErrors(TyperGroup):
    """Prints an error that the user can correct as one sentence without a traceback, and exits with code 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PivotError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from error


app = typer.Typer(
    name="verl-pivot",
    cls=_UserErrors,
    help="Prepare data for the stock verl trainer: import, profile and select turn SFT trajectories into "
    "pivots.parquet. The other commands are optional.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command("doctor")(doctor_command)
app.command("init")(init_command)
app.command("import")(import_command)
app.command("filter")(filter_command)
app.command("profile")(profile_command)
app.command("score")(score_command)
app.command("select")(select_command)
app.command("export")(export_command)
app.command("index")(index_command)
app.command("next-stage")(next_stage_command)
app.command("hard-set")(hard_set_command)
app.add_typer(sandbox_app, name="sandbox")
app.add_typer(route_app, name="route")


if __name__ == "__main__":
    app()
