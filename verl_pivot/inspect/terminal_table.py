"""ListedRollout -> its line in the terminal's list: cells of fixed widths, and wide ones that share the rest."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from verl_pivot.inspect.queries import ListedRollout
from verl_pivot.inspect.report_drawing import short_number
from verl_pivot.inspect.rollout_lines import score_style, score_text
from verl_pivot.inspect.rollout_rows import RolloutRow
from verl_pivot.inspect.visible_text import on_one_line

_MANY_CELLS = 110
"""Minimum width in cells for the extra columns, for which 80 cells have no room."""


def _left_out(row: RolloutRow) -> str:
    return row.left_out or ("yes" if row.kept is False else "")


class _Column(NamedTuple):
    title: str
    width: int
    """Width in cells; of a wide column its weight when the wide columns share the remaining cells."""
    text: Callable[[ListedRollout], str]
    is_wide: bool = False
    is_number: bool = False
    is_extra: bool = False


_COLUMNS = (
    _Column("step", 6, lambda found: short_number(found.row.step), is_number=True),
    _Column("part", 5, lambda found: "val" if found.part == "validation" else "train"),
    _Column("group", 8, lambda found: found.row.group_name or ""),
    _Column("score", 6, lambda found: score_text(found.row.score), is_number=True),
    _Column("reason", 3, lambda found: found.row.reason or "", is_wide=True),
    _Column("left out", 2, lambda found: _left_out(found.row), is_wide=True),
    _Column("ended", 2, lambda found: found.row.stop_reason or "", is_wide=True),
    _Column("errors", 2, lambda found: found.row.error_kinds, is_wide=True, is_extra=True),
    _Column("turns", 5, lambda found: short_number(found.row.num_turns), is_number=True),
    _Column("calls", 5, lambda found: short_number(found.row.num_calls), is_number=True),
    _Column("tokens", 6, lambda found: short_number(found.row.sampled_tokens), is_number=True),
    _Column("seconds", 8, lambda found: short_number(found.row.generate_seconds), is_number=True, is_extra=True),
)
_RUN_WIDTH = 10


def head_line(width: int, has_runs: bool) -> str:
    """Titles of the columns.

    Args:
        width: Cells of the line.
        has_runs: Whether a column names the run.
    """
    cells = [_cell(column.title, room, column.is_number) for column, room in _widths(width, has_runs)]
    return " ".join([" ", *(["run".ljust(_RUN_WIDTH)] if has_runs else []), *cells])


def row_parts(
    found: ListedRollout | None, width: int, names: Sequence[str], *, is_marked: bool
) -> list[tuple[str, str]]:
    """Parts of a rollout's line, each with a style of rich.

    Args:
        found: The rollout; None if it was replaced since it was listed.
        width: Cells of the line.
        names: [num_runs] names of the runs; a single one is not shown.
        is_marked: Whether the rollout is marked.
    """
    if found is None:
        return [("  ...", "dim")]
    has_runs = len(names) > 1
    parts = [("* " if is_marked else "  ", "bold yellow")]
    if has_runs:
        parts.append((_cell(names[found.run], _RUN_WIDTH, False) + " ", ""))
    soft = "dim" if found.row.kept is False else ""
    for column, room in _widths(width, has_runs):
        style = score_style(found.row.score) if column.title == "score" else soft
        parts.append((_cell(column.text(found), room, column.is_number) + " ", style))
    return parts


def _widths(width: int, has_runs: bool) -> list[tuple[_Column, int]]:
    columns = [column for column in _COLUMNS if width >= _MANY_CELLS or not column.is_extra]
    taken = sum(1 + column.width * (not column.is_wide) for column in columns) + (_RUN_WIDTH + 1) * has_runs
    share = max(2.0, (width - 2 - taken) / sum(column.width for column in columns if column.is_wide))
    return [(column, int(column.width * share) if column.is_wide else column.width) for column in columns]


def _cell(text: str, width: int, is_number: bool) -> str:
    text = on_one_line(text[: 4 * width])
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + "…"
    return text.rjust(width) if is_number else set_cell_size(text, width)
