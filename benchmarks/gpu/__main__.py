"""`python -m benchmarks.gpu --help`: wheels for a machine without a network, and the stages that are measured there."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.gpu.stages import STAGE_SECONDS, STAGES, filled
from benchmarks.gpu.wheels import join, missing, split, trim

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
_OUT = Path("outputs/gpu")


@app.command("missing")
def missing_command(
    requirements: Annotated[Path, typer.Argument(help="Pinned requirements.")] = Path("requirements/sglang.txt"),
) -> None:
    """Print the requirements that this environment lacks, for `pip download --no-deps -r`."""
    for line in missing(requirements):
        typer.echo(line)


@app.command("pieces")
def pieces_command(
    wheels: Annotated[Path, typer.Argument(help="Folder of wheels.")],
    out: Annotated[Path, typer.Option(help="Folder for smaller wheels and for the pieces.")] = _OUT / "carried",
    architecture: Annotated[int, typer.Option(help="GPU architecture, 90 for sm_90.")] = 90,
) -> None:
    """Make wheels smaller, and cut them into pieces of 60 MB."""
    smaller = [trim(wheel, out / "wheels", architecture) for wheel in sorted(wheels.glob("*.whl"))]
    pieces = split(smaller, out / "pieces")
    before, after = (sum(path.stat().st_size for path in paths) for paths in (wheels.glob("*.whl"), smaller))
    typer.echo(f"{len(smaller)} wheels, {before / 1e6:.0f} MB, {after / 1e6:.0f} MB as carried, {len(pieces)} pieces")


@app.command("join")
def join_command(
    pieces: Annotated[Path, typer.Argument(help="Folder with all pieces and their manifest.")],
    out: Annotated[Path, typer.Option(help="Folder for the wheels.")] = Path("wheels"),
) -> None:
    """Put the pieces together again, for `pip install --no-deps --no-index`."""
    typer.echo(f"{len(join(pieces, out))} wheels in {out}")


@app.command("stages")
def stages_command(
    number: Annotated[list[int] | None, typer.Argument(help="Stages; by default those not recorded yet.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for results, of earlier visits too.")] = _OUT,
    seconds: Annotated[float, typer.Option(min=1.0, help="Limit of one stage.")] = STAGE_SECONDS,
    dry: Annotated[bool, typer.Option("--dry", help="Print the commands and run nothing.")] = False,
) -> None:
    """Run the stages, each of which leaves its results behind."""
    chosen = [stage for stage in STAGES if not number or stage.number in number]
    if dry:
        for stage in chosen:
            typer.echo(f"{stage.number}. {stage.title}")
            for command in stage.commands:
                typer.echo(f"   python -m {' '.join(filled(command, out))}")
        return
    from benchmarks.gpu.visit import visit

    for each, record in visit(chosen, out, seconds=seconds).items():
        typer.echo(f"{each}. {record['title']}: exit codes {record['exit_codes']}, {record['seconds']} s")


if __name__ == "__main__":
    app()
