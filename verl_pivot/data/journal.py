"""Journal of a long job in `<out>.unfinished`: even after kill -9 the job can resume, with the same bytes as output."""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import BinaryIO

from verl_pivot import __version__
from verl_pivot.data.files import make_folder, replacing, unwritable
from verl_pivot.data.output_place import output_place
from verl_pivot.errors import ConfigError
from verl_pivot.types import Json, JsonObject

_SCHEMA = """
create table if not exists state (name text primary key, value text not null);
create table if not exists sizes (name text primary key, size integer not null);
"""
_MIB_CACHED = 64
_FINISHED = "finished"


class Journal:
    """Growing files, and a database that says how many bytes of them are valid; one commit advances both.

    Example:
        with open_journal(out, settings) as journal:
            lines = journal.append_to("lines.jsonl")
            done = journal.state.get("done", 0)  # 0, or what the commit before the interruption said
            ...
            journal.commit({"done": done + 1})
            journal.finish({"lines.jsonl": out})
    """

    def __init__(self, folder: Path, database: sqlite3.Connection, state: JsonObject) -> None:
        self.folder = folder
        self.database = database
        """Database for the job's own tables; what is written to them becomes valid with the next commit."""
        self.state = state
        """State of the job at the last commit; empty before the first."""
        self._files: dict[str, BinaryIO] = {}

    def append_to(self, name: str) -> BinaryIO:
        """Open a file of the journal for appending, cut to its size at the last commit.

        Raises:
            ConfigError: If the file is shorter than at the last commit.
        """
        known = self.database.execute("select size from sizes where name = ?", (name,)).fetchone()
        size = known[0] if known else 0
        file = (self.folder / name).open("ab")
        if file.tell() < size:
            raise ConfigError(
                f"{self.folder / name} has {file.tell()} bytes, but {size} were written: delete {self.folder} to start "
                "over"
            )
        file.truncate(size)
        file.seek(size)  # else `tell` names the old end until the first write
        self._files[name] = file
        return file

    def commit(self, state: JsonObject) -> None:
        """Declare everything that was appended so far valid, and remember the job's state."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        sizes = [(name, file.tell()) for name, file in self._files.items()]
        self.database.executemany("insert or replace into sizes values (?, ?)", sizes)
        self.database.execute("insert or replace into state values ('state', ?)", (json.dumps(state),))
        self.database.commit()
        self.state = state

    @property
    def is_finished(self) -> bool:
        """Whether the job was interrupted in `finish`, so that only `finish` is left to do."""
        return bool(self.state.get(_FINISHED))

    def finish(self, outputs: Mapping[str, Path]) -> None:
        """Move the files to their final paths and remove the folder; may be interrupted and repeated.

        Args:
            outputs: {name in the journal: final path}. An empty file removes what is at the final path, and files
                that are not listed are removed with the folder.
        """
        if not self.is_finished:
            self.commit({**self.state, _FINISHED: True})
        self._put(outputs)
        self.discard()

    def fail(self, outputs: Mapping[str, Path]) -> None:
        """Give up the job: move only these files to their final paths, and remove the folder."""
        for file in self._files.values():
            file.flush()
        self._put(outputs)
        self.discard()

    def _put(self, outputs: Mapping[str, Path]) -> None:
        for name, place in outputs.items():
            unfinished = self.folder / name
            if unfinished.exists() and unfinished.stat().st_size:
                _move(unfinished, place)
            elif unfinished.exists():
                place.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove the journal and everything in it."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        self.database.close()
        shutil.rmtree(self.folder)

    def close(self) -> None:
        """Close the files; what was committed stays for the next run."""
        for file in self._files.values():
            file.close()
        self.database.close()


def _move(unfinished: Path, place: Path) -> None:
    """Put a file at its place; by a copy where a link leads to another disk, or another mount of the same disk."""
    target = output_place(place)
    try:
        unfinished.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with replacing(target) as copy:
            shutil.copyfile(unfinished, copy)


@contextmanager
def open_journal(out: Path, settings: JsonObject, *, is_folder: bool = False) -> Iterator[Journal]:
    """Open the journal of the job that writes `out`: that of an interrupted run with the same settings, or a new one.

    Args:
        out: Output of the job.
        settings: Everything that the output depends on, inputs included. A journal with other settings, or of another
            version of this package, is begun anew.
        is_folder: Whether `out` is a folder for several files.

    Raises:
        ConfigError: If another process writes `out`, the journal cannot be written (its content then stays), or there
            is a folder or a device where `out` will be a file.
    """
    if not is_folder:
        output_place(out)
    folder = journal_path(out)
    try:
        make_folder(out.parent)
        make_folder(folder)
        with _locked(folder, out):
            journal = _open(folder, _digest(settings))
            with closing(journal):
                yield journal
    except (OSError, sqlite3.OperationalError) as error:
        if isinstance(error, OSError) and not _is_of_files(error):
            raise
        raise unwritable(out, error, "and run the same command again to go on") from error


def _is_of_files(error: OSError) -> bool:
    """Whether an error may be one of the journal's files, and not of a connection or a library that the job uses."""
    is_own_kind = type(error).__module__ != "builtins"  # as those of name resolution and of HTTP clients
    return not is_own_kind and error.errno is not None and not isinstance(error, ConnectionError | TimeoutError)


def journal_path(out: Path) -> Path:
    """Folder of the journal of the job that writes `out`."""
    return out.with_name(f"{out.name}.unfinished")


def input_identity(path: Path) -> Json:
    """Path, size and time of change of an input, by which a resumed job recognizes the same input."""
    try:
        found = path.stat()
    except OSError:
        return [str(path), None, None]  # reading the input will raise the error
    return [str(path.resolve()), found.st_size, found.st_mtime_ns]


@contextmanager
def _locked(folder: Path, out: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"{out} is being written by another process; wait for it, or choose another --out"
            ) from error
        yield
    finally:
        os.close(descriptor)


def _open(folder: Path, digest: str) -> Journal:
    database = _connect(folder)
    found = dict(database.execute("select name, value from state"))
    if found.get("settings") not in (None, digest):
        database.close()
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        database, found = _connect(folder), {}
    database.execute("insert or ignore into state values ('settings', ?)", (digest,))
    database.commit()
    return Journal(folder, database, json.loads(found.get("state", "{}")))


def _connect(folder: Path) -> sqlite3.Connection:
    database = sqlite3.connect(folder / "journal.sqlite")
    database.execute("pragma synchronous = full")
    database.execute(f"pragma cache_size = {-_MIB_CACHED * 1024}")
    database.executescript(_SCHEMA)
    return database


def _digest(settings: JsonObject) -> str:
    text = json.dumps([__version__, settings], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
