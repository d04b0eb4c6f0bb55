"""Numbers and texts -> tables and cells in HTML, each with a limit of bytes."""

from collections.abc import Iterable, Sequence

from verl_pivot.inspect.html_text import as_html, bounded_html
from verl_pivot.inspect.report_drawing import colour, short_number
from verl_pivot.inspect.report_numbers import ReportedRun

_MAX_CELL_BYTES = 160
_TABLE_BYTES = 150_000


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str = "", max_bytes: int = _TABLE_BYTES
) -> str:
    """A table; rows beyond `max_bytes` are left out, and a note says how many.

    Args:
        head: Text of each column.
        rows: [num_rows, num_columns] cells in HTML.
        caption: Text above it.
        max_bytes: Maximum number of bytes of its rows.
    """
    lines: list[str] = []
    room = max_bytes
    for cells in rows:
        line = f"<tr>{''.join(cells)}</tr>"
        room -= len(line.encode())
        if room < 0:
            break
        lines.append(line)
    title = f"<caption>{as_html(caption)}</caption>" if caption else ""
    columns = "".join(f'<th scope="col">{bounded_html(each, _MAX_CELL_BYTES)}</th>' for each in head)
    return (
        f'<div class="scrolled"><table>{title}<thead><tr>{columns}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
        f"{''.join(cut_note(rows[len(lines) :], 'rows are left out'))}</div>"
    )


def cut_note(left: Sequence[object], what: str) -> Iterable[str]:
    if left:
        yield f'<p class="cut">[{len(left):,} {what}]</p>'


def cell(text: str) -> str:
    return f"<td>{bounded_html(text, _MAX_CELL_BYTES)}</td>"


def head_cell(text: str) -> str:
    return f'<th scope="row">{bounded_html(text, _MAX_CELL_BYTES)}</th>'


def number_cell(value: float | None) -> str:
    return f'<td class="number">{short_number(value)}</td>'


def run_cell(run: int, of: ReportedRun) -> str:
    return f"<td>{run_key(run, of)}</td>"


def run_key(run: int, of: ReportedRun) -> str:
    return f'<span class="key {colour(run)}"></span>&nbsp;{bounded_html(of.name, _MAX_CELL_BYTES)}'


def step_range(steps: Sequence[int]) -> str:
    """The first and the last of some steps in order."""
    return "" if not steps else str(steps[0]) if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
