"""paper.yaml and outcomes -> a table of the paper's figures beside ours."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import yaml
from pydantic import TypeAdapter

from examples.study.claims import Tasks
from examples.study.outcomes import StudyResults, accuracy
from examples.study.verdicts import groups_of
from verl_pivot.validation import Options

NOTHING = "-"


class PaperFigure(Options):
    """One figure of the paper, and the arms whose value is shown beside it."""

    text: str
    paper: float
    """In percent or points."""
    tasks: Tasks
    arm: str
    over: str | None = None
    """Arm whose share is subtracted; None to show the share itself."""


def paper_figures(path: Path = Path(__file__).parent / "paper.yaml") -> list[PaperFigure]:
    return TypeAdapter(list[PaperFigure]).validate_python(yaml.safe_load(path.read_text()))


def paper_lines(results: StudyResults, seeds: Sequence[int], outside: Collection[str]) -> list[str]:
    """A table in Markdown; it has a mean only if every seed has both arms."""
    lines = seeds_table_head("| | paper |", seeds)
    for figure in paper_figures():
        shares = {seed: _share(figure, results, seed, outside) for seed in seeds}
        shown = f"{figure.paper:.2f}" if figure.over is None else f"{figure.paper:+.2f}"
        values = {seed: share for seed, share in shares.items() if share is not None}
        text = "{:.1f}" if figure.over is None else "{:+.1f}"
        lines.append(f"| {figure.text} | {shown} {seed_cells(values, seeds, text, 100.0)}")
    return lines


def _share(figure: PaperFigure, results: StudyResults, seed: int, outside: Collection[str]) -> float | None:
    shares = []
    for name in (figure.arm, figure.over):
        final = None if name is None else results.final(name, seed)
        if name is not None:
            share = None if final is None else accuracy(final, groups_of(final.solved, figure.tasks, outside))
            if share is None:
                return None
            shares.append(share)
    return shares[0] - sum(shares[1:])


def seeds_table_head(begin: str, seeds: Sequence[int]) -> list[str]:
    """Head of a table whose last columns come from `seed_cells`."""
    columns = begin.count("|") + len(seeds)
    return [f"{begin} mean over all seeds | {' | '.join(f'seed {seed}' for seed in seeds)} |", "|---" * columns + "|"]


def seed_cells(values: Mapping[int, float], seeds: Sequence[int], text: str, factor: float = 1.0) -> str:
    """Cells of a row: the mean, or the number of measured seeds if some are missing, and then each seed's value.

    Args:
        values: {seed: value} of the seeds that were measured.
        seeds: All seeds of the study.
        text: Format of a value.
        factor: Factor of the values.
    """
    known = [values[seed] for seed in seeds if seed in values]
    mean = text.format(factor * fmean(known)) if len(known) == len(seeds) else f"{len(known)} of {len(seeds)} seeds"
    cells = [text.format(factor * values[seed]) if seed in values else NOTHING for seed in seeds]
    return f"| {' | '.join([mean, *cells])} |"
