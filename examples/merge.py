"""Results of several runs of a study -> one table and plot: `python -m examples.merge --help`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from verl_pivot.commands.tables import table_console
from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

import examples.ppr.report  # noqa: E402
import examples.render.report  # noqa: E402
import examples.web.report  # noqa: E402
from examples.options import Out  # noqa: E402
from examples.results_file import RESULTS, StudyReport, merged  # noqa: E402
from verl_pivot.errors import DataError  # noqa: E402

_STUDIES: dict[str, StudyReport[Any]] = {
    "ppr": examples.ppr.report.STUDY,
    "render": examples.render.report.STUDY,
    "web": examples.web.report.STUDY,
}
console = table_console()


def main(
    study: Annotated[str, typer.Argument(help=f"The study: {', '.join(_STUDIES)}.")],
    files: Annotated[list[Path], typer.Argument(help=f"The files {RESULTS} of its runs.")],
    out: Out = Path("outputs/merged"),
) -> None:
    """Make one table and one plot from the results of several runs of a study, such as one run for each seed.

    No unit (one arm with one seed) may be in two of the files, an arm must have the same settings in all of them, and
    all arms of a seed must have started from one policy.

    Example: python -m examples.merge ppr seed-0/results.parquet seed-1/results.parquet --out outputs/ppr
    """
    if study not in _STUDIES:
        raise typer.BadParameter(f"there is no study {study} whose results are kept; known: {', '.join(_STUDIES)}")
    if (out / RESULTS).exists():
        raise typer.BadParameter(f"{out} holds {RESULTS} of a study, which would be overwritten: give another --out")
    report = _STUDIES[study]
    try:
        kept = merged(files, report)
    except DataError as error:
        raise SystemExit(str(error)) from error
    report.publish(kept, out)
    report.show(kept.results, kept.gaps, console)
    console.print(f"\nWrote {out / RESULTS} and {out / 'summary.json'}.")


if __name__ == "__main__":
    typer.run(main)
