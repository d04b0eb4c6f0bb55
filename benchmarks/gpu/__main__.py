"""`python -m benchmarks.gpu --help`: the stages that are measured on a machine with a GPU."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.gpu.stages import STAGE_SECONDS, STAGES, filled


def main(
    number: Annotated[list[int] | None, typer.Argument(help="Stages; by default all that lack a record.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for results; earlier ones are kept.")] = Path("outputs/gpu"),
    seconds: Annotated[float, typer.Option(min=1.0, help="Time limit of one stage, in seconds.")] = STAGE_SECONDS,
    dry: Annotated[bool, typer.Option("--dry", help="Print the commands and run nothing.")] = False,
) -> None:
    """Run the stages one after the other; each writes its results as soon as it ends."""
    if unknown := set(number or ()) - {stage.number for stage in STAGES}:
        raise typer.BadParameter(f"there is no stage {min(unknown)}; known: 1 to {len(STAGES)}")
    chosen = [stage for stage in STAGES if not number or stage.number in number]
    if dry:
        for stage in chosen:
            typer.echo(f"{stage.number}. {stage.title}")
            for command in stage.commands:
                typer.echo(f"   python -m {shlex.join(filled(command, out))}")
        return
    from benchmarks.gpu.visit import visit

    for each, record in visit(chosen, out.absolute(), seconds=seconds, again=bool(number)).items():
        typer.echo(f"{each}. {record['title']}: exit codes {record['exit_codes']}, {record['seconds']} s")


if __name__ == "__main__":
    typer.run(main)
