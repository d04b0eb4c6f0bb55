"""Finished turns -> profile.jsonl, which is appended to line by line, survives kill -9 and is resumed."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path

from verl_pivot.data.storage import encode_json
from verl_pivot.errors import ConfigError
from verl_pivot.profiling.profiles import (
    KIND,
    VERSION,
    ProfileSettings,
    TurnKey,
    iter_profiles,
    parse_header,
    profile_as_dict,
    read_settings,
)
from verl_pivot.types import JsonObject, TurnProfile

_SYNC_SECONDS = 10.0


class ProfileWriter:
    """Appends finished turns, one line each; `done` are those that the file held before."""

    def __init__(self, path: Path, descriptor: int, done: frozenset[TurnKey]) -> None:
        self.done = done
        self._path = path
        self._descriptor = descriptor
        self._synced_at = time.monotonic()

    def append(self, profile: TurnProfile) -> None:
        """Write one line; it is in the file when this returns.

        Raises:
            ConfigError: If it cannot be written (full disk); the lines before it stay whole.
        """
        _append_line(self._descriptor, self._path, profile_as_dict(profile))
        if time.monotonic() - self._synced_at > _SYNC_SECONDS:
            os.fsync(self._descriptor)
            self._synced_at = time.monotonic()


@contextmanager
def open_profile(path: Path, settings: ProfileSettings) -> Iterator[ProfileWriter]:
    """Create a profile, or go on with one: a last line that kill -9 tore is cut off.

    Raises:
        ConfigError: If the file has other settings, is being written by another process, or cannot be written.
        DataError: If it is no profile.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        _lock(descriptor, path)
        _begin_or_resume(descriptor, path, settings)
        done = frozenset(TurnKey(profile.trajectory_id, profile.index) for profile in iter_profiles(path))
        yield ProfileWriter(path, descriptor, done)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_settings(path: Path, settings: ProfileSettings) -> None:
    found, wanted = _flat(read_settings(path)), _flat(settings)
    names = [name for name in wanted if found[name] != wanted[name]]
    if names:
        differing = [f"{name} is {found[name]!r} there and {wanted[name]!r} here" for name in names]
        raise ConfigError(
            f"{path} was begun with other settings: {'; '.join(differing)}. Choose another --out, or use "
            "the same settings to go on with it"
        )


def _flat(settings: ProfileSettings) -> dict[str, object]:
    values: dict[str, object] = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name != "sampling"}
    return values | asdict(settings.sampling)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(
            f"{path} is being written by another `verl-pivot profile`; wait for it, or choose another --out"
        ) from error


def _begin_or_resume(descriptor: int, path: Path, settings: ProfileSettings) -> None:
    """A file without a finished turn is begun anew, whatever its settings: nothing is lost."""
    with path.open("rb") as file:
        first, second = file.readline(), file.readline()
    begin = f'{{"kind": "{KIND}"'.encode()
    torn = not first.endswith(b"\n") and (first.startswith(begin) or begin.startswith(first))
    if torn or (parse_header(first, path) != settings and not second.endswith(b"\n")):
        os.ftruncate(descriptor, 0)
    else:
        _check_settings(path, settings)
        _cut_torn_line(descriptor)
    if os.fstat(descriptor).st_size == 0:
        _append_line(descriptor, path, {"kind": KIND, "version": VERSION, "settings": settings.as_dict()})


def _cut_torn_line(descriptor: int) -> None:
    """Whatever follows the last newline was being written when the process was killed."""
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
        f"{path} cannot be written: {error.strerror}; the turns finished before are safe in it: free "
        "some space there and run the same command again to go on"
    )
