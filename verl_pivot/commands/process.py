"""`verl-pivot process`: rollouts -> labelled turns; labelled turns and a judge -> how good the judge is."""

import typer

from verl_pivot.commands.process_bench import bench_command
from verl_pivot.commands.process_label import label_command

process_app = typer.Typer(help="Label turns of rollouts, and measure judges of them.", no_args_is_help=True)


@process_app.callback()
def process() -> None:
    """Label turns of rollouts, and measure judges of them."""


process_app.command("label", short_help=(label_command.__doc__ or "").partition("\n")[0])(label_command)
process_app.command("bench", short_help=(bench_command.__doc__ or "").partition("\n")[0])(bench_command)
