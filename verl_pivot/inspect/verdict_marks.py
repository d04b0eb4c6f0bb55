"""Verdicts that a person calls wrong -> `marked_verdicts.jsonl` beside the run, a test set for the verifier.

Its lines have the form of a dump, with the score that the person gives, so that `verl-pivot score` reads them: a
verdict that changes there is one in which the verifier still differs from the person.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from verl_pivot.errors import DataError
from verl_pivot.inspect.queries import ListedRollout
from verl_pivot.inspect.texts import line_with_record
from verl_pivot.runs.run import TrainingRun
from verl_pivot.types import JsonObject

FILE_NAME = "marked_verdicts.jsonl"
REASON = "marked_as_wrong"
"""Reason of the person's verdict."""
_RIGHT = 0.5
"""Score from which on a rollout counts as right, here and in the page."""


class MarkedVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict that somebody marked as wrong."""

    file: str
    """Path of its dump below the run's folder."""
    uid: str
    score: float
    """Score that the rollout should have got."""


class _Marked(msgspec.Struct):
    """Field of a line that tells where it comes from."""

    file: str


class _MarkLine(msgspec.Struct):
    """Fields of a line that are read."""

    uid: str
    score: float
    marked: _Marked


def marks_path(run: TrainingRun) -> Path:
    return run.folder / FILE_NAME


def read_marks(path: Path) -> list[MarkedVerdict]:
    """[num_marks] the marks of a run; none if there is no file.

    Raises:
        DataError: If the file cannot be read.
    """
    return [mark for _, mark in _lines(path) if mark is not None]


def toggle_mark(path: Path, found: ListedRollout, lines: Sequence[JsonObject], prompt: Sequence[JsonObject]) -> bool:
    """Mark the verdict of a rollout as wrong, or take its mark away; returns whether it is marked now.

    The file is replaced as a whole, and is removed with its last mark. Lines of it that are no marks stay.

    Args:
        path: File of the marks.
        found: The rollout.
        lines: [num_parts] its lines in the dump, in the order of its parts.
        prompt: Messages of its prompt, if they are known.

    Raises:
        DataError: If the rollout has no verdict that could be wrong, or the file cannot be read or written.
    """
    before = list(_lines(path))
    left = [text for text, mark in before if mark is None or (mark.file, mark.uid) != (found.file_name, found.row.uid)]
    is_marked = len(left) == len(before)
    if is_marked:
        left.append(json.dumps(_test_line(found, lines, prompt)).encode())
    _replace(path, left)
    return is_marked


def _test_line(found: ListedRollout, lines: Sequence[JsonObject], prompt: Sequence[JsonObject]) -> JsonObject:
    """The rollout as one line of a dump, with the score that it should have got."""
    row, last = found.row, line_with_record(lines)
    if row.uid is None or "kept" not in last:
        raise DataError(f"{found.file_name} holds no verdicts of verl-pivot to mark: open the folder 'pivot' beside it")
    if row.score is None:
        raise DataError("this rollout is undecided: only a verdict with a score can be marked as wrong")
    return {
        **last,
        "turns": [turn for line in lines if isinstance(turns := line.get("turns"), list) for turn in turns],
        "prompt": list(prompt),
        "score": 0.0 if row.score >= _RIGHT else 1.0,
        "reason": REASON,
        "detail": f"the verifier gave {row.score:g} ({last.get('reason', '')}): {last.get('detail', '')}",
        "marked": {"file": found.file_name, "score": row.score, "reason": last.get("reason", "")},
    }


def _lines(path: Path) -> Iterator[tuple[bytes, MarkedVerdict | None]]:
    """The file's lines, each with its mark if it is one."""
    try:
        texts = path.read_bytes().splitlines()
    except FileNotFoundError:
        return
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; it holds the verdicts marked as wrong") from error
    for text in texts:
        try:
            line = msgspec.convert(json.loads(text), _MarkLine)
        except (ValueError, RecursionError):  # written by somebody else: left as it is
            yield text, None
        else:
            yield text, MarkedVerdict(file=line.marked.file, uid=line.uid, score=line.score)


def _replace(path: Path, lines: Sequence[bytes]) -> None:
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        if not lines:
            path.unlink(missing_ok=True)
            return
        unfinished.write_bytes(b"".join(line + b"\n" for line in lines))
        os.replace(unfinished, path)
    except OSError as error:
        raise DataError(
            f"{path} cannot be written: {error.strerror}; marks are saved in the run's folder, which must be writable"
        ) from error
