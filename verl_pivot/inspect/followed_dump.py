"""DumpFile -> rows of the table `rollouts`, read a part at a time as the training writes it."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow

from verl_pivot.inspect.rollout_rows import BadLine, RowReader
from verl_pivot.inspect.rollout_table import RowOrigin, row_batch
from verl_pivot.runs.growing_lines import GrowingLines
from verl_pivot.runs.run import DumpFile


class ReadPart(NamedTuple):
    """Result of reading the next part of a dump."""

    is_replaced: bool
    """Whether the file is another one than before, so that all rows that were read from it are void."""
    rows: pyarrow.RecordBatch | None
    """Rollouts that are complete with this part; None if there are none."""
    is_changed: bool
    """Whether there was anything new, such as a line that is no rollout."""


class _FileState(NamedTuple):
    """Values that change when a file is written or replaced."""

    number: int
    size: int
    changed: int
    """Time of the last change of content or permissions, in nanoseconds since 1970."""

    @classmethod
    def of(cls, path: Path) -> "_FileState":
        status = path.stat()
        return cls(status.st_ino, status.st_size, status.st_ctime_ns)


class FollowedDump:
    """One dump that is read as it grows."""

    def __init__(self, number: int, run: int, dump: DumpFile) -> None:
        """Create the reader; nothing is read yet.

        Args:
            number: Number of the dump among all that are followed.
            run: Number of its run, from 0.
            dump: The file.
        """
        self.number, self.run, self.dump = number, run, dump
        self._lines, self._rows = GrowingLines(dump.path), RowReader()
        self._groups: dict[str, int] = {}
        """{name of a group: its number}"""
        self._is_all = False
        self._state: _FileState | None = None
        """State of the file when it was read last."""
        self._bad_lines: list[BadLine] = []

    @property
    def is_unread(self) -> bool:
        """Whether the dump was not read to its present end."""
        try:
            return not self._is_all or _FileState.of(self.dump.path) != self._state
        except OSError:  # removed: what was read stays until it comes back
            return False

    @property
    def problems(self) -> list[str]:
        """Sentences about lines that are no rollouts, or that have an unknown form."""
        found = []
        if bad := self._bad_lines:
            found.append(
                f"{self.dump.path}: {len(bad)} lines are not rollouts and are left out; the first one is line "
                f"{bad[0].number} ({bad[0].why})"
            )
        if number := self._rows.num_strange:
            found.append(
                f"{self.dump.path}: {number} lines have neither a uid nor a score, and are listed with their other "
                "fields; check that the file is a dump of rollouts, and which version of verl wrote it"
            )
        return found

    def read(self, group_numbers: Iterator[int]) -> ReadPart:
        """Read the next part.

        Args:
            group_numbers: Gives a number that no group of any dump has.

        Raises:
            OSError: If the file cannot be read.
        """
        # Set before reading, so that a file that is missing or cannot be read is not tried for ever.
        self._is_all, self._state = True, None
        self._state = _FileState.of(self.dump.path)
        lines, is_replaced, self._is_all = self._lines.read()
        if is_replaced:
            self._bad_lines.clear()
            self._rows = RowReader()
        columns, bad_lines = self._rows.read(lines, is_all=self._is_all)
        self._bad_lines += bad_lines
        groups = [self._group_number(name, group_numbers) for name in columns["group_name"]]
        origin = RowOrigin(self.run, self.dump.part.value, self.number, self.dump.step)
        rows = row_batch(origin, columns, groups) if groups else None
        return ReadPart(is_replaced, rows, is_replaced or bool(lines))

    def _group_number(self, name: str | None, numbers: Iterator[int]) -> int:
        """Number of a group; a rollout without a group is alone in one."""
        if name is None:
            return next(numbers)
        if name not in self._groups:
            self._groups[name] = next(numbers)
        return self._groups[name]
