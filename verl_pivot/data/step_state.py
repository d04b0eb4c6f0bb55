"""StepState: values of a training that change from step to step, in a file from which a resumed run goes on."""

import fcntl
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from verl_pivot.errors import ConfigError, StateError
from verl_pivot.types import Json

FOLDER = "pivot_state"
"""Folder of the files within `trainer.default_local_dir`, beside the checkpoints."""
_SUFFIX = ".jsonl"


class _StateLine(msgspec.Struct, omit_defaults=True):
    """One line of a file: a change of one value, or the step that a launch went on from."""

    step: int
    key: str | None = None
    """Name of the value; None for a launch, after which all changes of later steps are void."""
    value: msgspec.Raw = msgspec.Raw(b"null")
    time: int = 0
    """When the launch began, in nanoseconds since 1970; 0 for a change."""


class _StateChange(NamedTuple):
    """Step of a change, and the place of its line in the file."""

    step: int
    offset: int
    length: int


class _Launch(NamedTuple):
    """When a launch began, and the place of its line in the file."""

    time: int
    offset: int


class _ValidChanges(defaultdict[str, list[_StateChange]]):
    """Changes of each value that are valid after the lines that were taken in, and the launches among these lines."""

    def __init__(self) -> None:
        super().__init__(list)
        self.num_read = 0
        """Bytes of the lines."""
        self.launches: list[_Launch] = []

    def take(self, line: _StateLine, length: int) -> None:
        """Take in the next line of the file."""
        if line.key is not None:
            self[line.key].append(_StateChange(line.step, self.num_read, length))
        else:
            self.launches.append(_Launch(line.time, self.num_read))
            for key, changes in self.items():
                self[key] = [change for change in changes if change.step <= line.step]
        self.num_read += length

    def up_to(self, step: int) -> list[_StateChange]:
        """The changes of all values up to a step, in the order of the file."""
        kept = [change for changes in self.values() for change in changes if change.step <= step]
        return sorted(kept, key=lambda change: change.offset)


class StateEntry(NamedTuple):
    """One value after a change."""

    version: int
    """Number of the value's changes up to this one, from 1."""
    step: int
    """Training step of the change."""
    value: Json


class StepState:
    """Values by key in one file of JSON lines, to which every change is appended with its step.

    Any number of processes share the file: each takes its lock, reads what others have written since, and appends by
    one write, so that all see the same changes in the same order. A process that is killed in between leaves at most
    half a line, which the next one cuts off. `begin_launch` makes the changes after the resumed step void.

    Example:
        state = StepState(folder / "buffers.jsonl")
        entry = state.read("query-17")
        is_written = state.write("query-17", {"criteria": []}, step=4, version=0 if entry is None else entry.version)
    """

    def __init__(self, path: Path) -> None:
        """Open the file, and make it if it is not there.

        Raises:
            ConfigError: If it cannot be written, or its file system has no locks.
        """
        self._path = path
        self._changes = _ValidChanges()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            with self._locked():
                self._look()
        except (OSError, StateError) as error:
            raise ConfigError(self._unusable(error)) from error

    def read(self, key: str, *, before: int | None = None) -> StateEntry | None:
        """A value after its last change; None if it has none.

        Args:
            key: Name of the value.
            before: Only changes of steps before this one count, so that all rollouts of a step read the same value;
                None counts all changes.

        Raises:
            StateError: If the file cannot be read.
        """
        with self._changing():
            changes = self._changes.get(key, [])
            if before is not None:
                changes = [change for change in changes if change.step < before]
            if not changes:
                return None
            last = changes[-1]
            return StateEntry(len(changes), last.step, msgspec.json.decode(self._line(last).value))

    def write(self, key: str, value: Json, *, step: int, version: int) -> bool:
        """Append a change; returns False and writes nothing if another process has changed the value meanwhile.

        Args:
            key: Name of the value.
            value: The new value.
            step: Training step of the change. If the change that it builds on has a later step, that step is recorded,
                so that both become void together.
            version: Version of the value that this change builds on; 0 if there is none.

        Raises:
            StateError: If it cannot be written.
        """
        with self._changing():
            changes = self._changes[key]
            if len(changes) != version:
                return False
            built_on = changes[-1].step if changes else step
            encoded = msgspec.Raw(msgspec.json.encode(value, order="deterministic"))
            self._append(_StateLine(step=max(step, built_on), key=key, value=encoded))
            return True

    def names(self) -> list[str]:
        """Names of all values, in alphabetical order.

        Raises:
            StateError: If the file cannot be read.
        """
        with self._changing():
            return sorted(key for key, changes in self._changes.items() if changes)

    def close(self) -> None:
        os.close(self._file)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock, after reading everything that other processes have written."""
        try:
            with self._locked():
                self._look()
                yield
        except OSError as error:
            raise StateError(self._unusable(error)) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _look(self) -> None:
        """Read the lines that are new; an incomplete last line is cut off, since the process that wrote it has died."""
        size = os.fstat(self._file).st_size
        if size == self._changes.num_read:
            return
        new = os.pread(self._file, size - self._changes.num_read, self._changes.num_read)
        whole = new[: new.rfind(b"\n") + 1]
        self._take(self._changes, whole)
        if len(whole) < len(new):
            os.ftruncate(self._file, self._changes.num_read)

    def _take(self, changes: _ValidChanges, lines: bytes) -> None:
        for line in lines.splitlines(keepends=True):
            try:
                changes.take(msgspec.json.decode(line, type=_StateLine), len(line))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise StateError(
                    f"the line at byte {changes.num_read} is not that of a saved state: {error}"
                ) from error

    def _line(self, change: _StateChange) -> _StateLine:
        return msgspec.json.decode(os.pread(self._file, change.length, change.offset), type=_StateLine)

    def _append(self, line: _StateLine) -> None:
        encoded = msgspec.json.encode(line) + b"\n"
        if os.pwrite(self._file, encoded, self._changes.num_read) != len(encoded):
            os.ftruncate(self._file, self._changes.num_read)
            raise OSError("no space left")
        self._changes.take(line, len(encoded))

    def _at_checkpoint(self, step: int, saved_at: int) -> list[_StateLine]:
        """Changes that were valid in the run that saved a checkpoint, whatever launches began in the folder since.

        Args:
            step: Step of the checkpoint.
            saved_at: When it was saved, in nanoseconds since 1970.
        """
        with self._changing():
            since = [launch.offset for launch in self._changes.launches if launch.time > saved_at]
            changes = self._changes
            if since:
                changes = _ValidChanges()
                self._take(changes, os.pread(self._file, since[0], 0))
            return [self._line(change) for change in changes.up_to(step)]

    def _begin(self, step: int, kept: Sequence[_StateLine] | None) -> None:
        """Begin a launch: changes of later steps are void; if the earlier ones are not those to keep, all are."""
        with self._changing():
            is_kept = kept is None or kept == [self._line(change) for change in self._changes.up_to(step)]
            self._append(_StateLine(step=step if is_kept else -1, time=self._now()))
            for line in () if kept is None or is_kept else kept:
                self._append(line)

    def _now(self) -> int:
        """Time by the clock of the file system, by which checkpoints beside the file are dated too."""
        os.utime(self._file)
        return os.fstat(self._file).st_mtime_ns

    def _unusable(self, error: Exception) -> str:
        return (
            f"the state of the training cannot be saved in {self._path}: {error}; free some space there, or set "
            "trainer.default_local_dir to another folder, on a file system with file locks"
        )


def state_path(local_dir: str | Path, name: str) -> Path:
    """File of a state with this name beside the checkpoints of `trainer.default_local_dir`."""
    return Path(local_dir) / FOLDER / f"{name}{_SUFFIX}"


def begin_launch(local_dir: Path, name: str, step: int, checkpoint: Path | None = None) -> None:
    """Reset a state to the checkpoint that a launch resumes from; called once, before any worker opens it.

    Nothing is deleted: the lines of later steps stay in the file, but are ignored. If later launches in the folder of
    the checkpoint began anew or at an earlier step, the state is still that of the run that saved the checkpoint.

    Args:
        local_dir: `trainer.default_local_dir`.
        name: Name of the state.
        step: Step of the checkpoint; 0 begins anew.
        checkpoint: Folder of the checkpoint, `global_step_<step>` below the `trainer.default_local_dir` of the run that
            wrote it; None to begin anew.

    Raises:
        ConfigError: If the file cannot be written.
    """
    with closing(StepState(state_path(local_dir, name))) as state:
        try:
            state._begin(step, None if checkpoint is None else _kept(state, local_dir, name, step, checkpoint))
        except StateError as error:
            raise ConfigError(str(error)) from error


def _kept(state: StepState, local_dir: Path, name: str, step: int, checkpoint: Path) -> list[_StateLine]:
    """Changes up to the checkpoint, from the state beside it; none if it has no such state."""
    path = state_path(checkpoint.parent, name)
    saved_at = min(path.stat().st_mtime_ns for path in (checkpoint, *checkpoint.iterdir()))
    if checkpoint.parent.resolve() == local_dir.resolve():
        return state._at_checkpoint(step, saved_at)
    if not path.exists():
        return []
    with closing(StepState(path)) as source:
        return source._at_checkpoint(step, saved_at)
