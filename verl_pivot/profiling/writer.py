"""Finished turns -> profile.jsonl: lines are appended, resumed even after kill -9, and sorted at the end."""

import fcntl
import os
import time
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from verl_pivot.data.json_values import encode_json
from verl_pivot.data.output_place import output_place
from verl_pivot.errors import ConfigError
from verl_pivot.profiling.line_index import LineIndex
from verl_pivot.profiling.profiles import (
    KIND,
    VERSION,
    ProfileSettings,
    TurnKey,
    index_lines,
    parse_header,
    profile_as_dict,
    read_settings,
)
from verl_pivot.types import JsonObject, TurnProfile

_SYNC_SECONDS = 10.0
"""Seconds between two calls of fsync."""


class ProfileWriter:
    """Appends finished turns to a profile, one line each."""

    def __init__(self, path: Path, descriptor: int, settings: ProfileSettings, done: LineIndex) -> None:
        self.done = done
        """Turns that the file already held when it was opened."""
        self._path = path
        self._descriptor = descriptor
        self._settings = settings
        self._synced_at = time.monotonic()

    def append(self, profile: TurnProfile) -> None:
        """Write the line of one turn to the file.

        Raises:
            ConfigError: If the line cannot be written, such as to a full disk; earlier lines stay intact.
        """
        _append_line(self._descriptor, self._path, profile_as_dict(profile, self._settings.early_stop))
        if time.monotonic() - self._synced_at > _SYNC_SECONDS:
            os.fsync(self._descriptor)
            self._synced_at = time.monotonic()

    def put_in_order(self, turns: Iterable[TurnKey]) -> None:
        """Sort the lines in the order of `turns`, other turns last, so that the file depends on its content alone.

        The writer cannot be used afterwards. The file is replaced in one step, where a link leads if the path is one;
        an interruption leaves it unchanged.

        Raises:
            ConfigError: If a sorted copy of the file cannot be written.
        """
        index = index_lines(self._path)
        order = _order(index, turns)
        if bool((order[1:] > order[:-1]).all()):
            return
        place = output_place(self._path)
        temporary = place.with_name(f".{place.name}.ordered")
        try:
            _copy_lines(self._path, temporary, (index.offset(line) for line in order))
            temporary.replace(place)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise _unwritable(self._path, error) from error


@contextmanager
def open_profile(path: Path, settings: ProfileSettings) -> Iterator[ProfileWriter]:
    """Create a profile or continue one; an incomplete last line, as after kill -9, is cut off.

    Raises:
        ConfigError: If the file has other settings, is being written by another process, or cannot be written.
        DataError: If the file is no profile.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        _lock(descriptor, path)
        _begin_or_resume(descriptor, path, settings)
        yield ProfileWriter(path, descriptor, settings, index_lines(path))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_settings(path: Path, settings: ProfileSettings) -> None:
    in_file, here = _flat(read_settings(path)), _flat(settings)
    unknown = {name for name in ("model_digest", "template_digest") if in_file[name] is None}
    names = [name for name in here if name not in unknown and in_file[name] != here[name]]
    if names:
        differing = [f"{name} is {in_file[name]!r} in the file and {here[name]!r} now" for name in names]
        raise ConfigError(
            f"{path} was begun with other settings: {'; '.join(differing)}. Choose another --out, or use "
            "the same settings to continue it"
        )


def _flat(settings: ProfileSettings) -> dict[str, object]:
    """{name: value} of all settings; the sampling parameters are on the same level."""
    values: dict[str, object] = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name != "sampling"}
    return values | asdict(settings.sampling)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_free = os.path.samestat(os.fstat(descriptor), path.stat())  # False: another process just replaced the file
    except BlockingIOError:
        is_free = False
    if not is_free:
        raise ConfigError(
            f"{path} is being written by another `verl-pivot profile`; wait for it, or choose another --out"
        )


def _begin_or_resume(descriptor: int, path: Path, settings: ProfileSettings) -> None:
    """Continue a file with finished turns if its settings are the same; start any other profile anew."""
    with path.open("rb") as file:
        first, second = file.readline(), file.readline()
    begin = f'{{"kind": "{KIND}"'.encode()
    is_torn = not first.endswith(b"\n") and (first.startswith(begin) or begin.startswith(first))
    if is_torn or (parse_header(first, path) != settings and not second.endswith(b"\n")):
        os.ftruncate(descriptor, 0)
    else:
        _check_settings(path, settings)
        _cut_torn_line(descriptor)
    if os.fstat(descriptor).st_size == 0:
        _append_line(descriptor, path, {"kind": KIND, "version": VERSION, "settings": settings.as_dict()})


def _cut_torn_line(descriptor: int) -> None:
    """Cut off the incomplete line after the last newline, whose writer was killed."""
    end = size = os.fstat(descriptor).st_size
    while end > 0:
        begin = max(0, end - (1 << 20))
        newline = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            end = begin + newline + 1
            break
        end = begin
    if end < size:
        os.ftruncate(descriptor, end)


def _append_line(descriptor: int, path: Path, value: JsonObject) -> None:
    line = (encode_json(value) + "\n").encode()
    size = os.fstat(descriptor).st_size
    try:
        written = 0
        while written < len(line):
            written += os.write(descriptor, line[written:])
    except OSError as error:
        os.ftruncate(descriptor, size)
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"{path} cannot be written: {error.strerror}; the finished turns stay in the file: free "
        "some space there and run the same command again to continue"
    )


def _order(index: LineIndex, turns: Iterable[TurnKey]) -> NDArray[np.uint32]:
    """[num_lines] line numbers: first the lines of `turns` in their order, then the other lines."""
    order, is_left = array("I"), np.ones(len(index), dtype=bool)
    for turn in turns:
        line = index.line(turn)
        if line is not None and is_left[line]:
            is_left[line] = False
            order.append(line)
    return np.concatenate([np.frombuffer(order, dtype=np.uint32), np.flatnonzero(is_left).astype(np.uint32)])


def _copy_lines(source: Path, target: Path, offsets: Iterable[int]) -> None:
    """Write the first line of a file and the lines at `offsets` to another file."""
    with source.open("rb") as lines, target.open("wb") as file:
        file.write(lines.readline())
        for offset in offsets:
            lines.seek(offset)
            file.write(lines.readline())
        file.flush()
        os.fsync(file.fileno())
