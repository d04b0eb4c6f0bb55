"""AnswerCache: a model's answers, kept in a folder so that a run that is resumed asks no question twice."""

import math
import os
import secrets
import socket
import time
from collections import defaultdict
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from verl_pivot.engines.question_claims import claims_of
from verl_pivot.errors import ConfigError, EngineError

_SUFFIX = ".answers.jsonl"
_MOST_BYTES: Final = 1 << 32
"""Upper bound of the length of a line, in bytes."""
_MOST_BYTES_OF_FILE: Final = 1 << 48
"""Upper bound of the size of a file, in bytes."""
_LOOK_SECONDS: Final = 0.02
"""Seconds between two reads of the files of other processes."""


class _Entry(msgspec.Struct):
    """One line of a cache file."""

    key: str
    answer: msgspec.Raw = msgspec.Raw(b"null")
    failure: str = ""
    """Why the question got no answer; "" if it got one."""


class _AnswerPlace(NamedTuple):
    """Place of a line: the number of its file, and the line's offset and length in bytes."""

    file: int
    offset: int
    length: int


class _PlaceTable:
    """{key: place} in about 130 bytes per entry: digests of keys, and places as integers. A million fit in memory."""

    def __init__(self) -> None:
        self._packed: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._packed)

    def __contains__(self, key: str) -> bool:
        return _short(key) in self._packed

    def get(self, key: str) -> _AnswerPlace | None:
        packed = self._packed.get(_short(key))
        if packed is None:
            return None
        rest, length = divmod(packed, _MOST_BYTES)
        file, offset = divmod(rest, _MOST_BYTES_OF_FILE)
        return _AnswerPlace(file, offset, length)

    def put(self, key: str, place: _AnswerPlace) -> None:
        packed = (place.file * _MOST_BYTES_OF_FILE + place.offset) * _MOST_BYTES + place.length
        self._packed[_short(key)] = packed

    def remove(self, key: str) -> None:
        self._packed.pop(_short(key), None)


def _short(key: str) -> bytes:
    return blake2b(key.encode(), digest_size=16).digest()


@dataclass(slots=True, kw_only=True)
class _OtherFile:
    """The cache file of another process, and how much of it was read."""

    number: int
    """Position in the list of names."""
    num_read: int = 0
    """Bytes read so far, which end with a complete line."""
    num_seen: int = 0
    """Size of the file in bytes when it was last read; its last line may have been incomplete."""


class AnswerCache:
    """Answers by key, from all processes that share the folder, including processes that have ended.

    Every process appends to its own file, with one write per answer. The answers of a killed process are therefore
    kept, and several processes and nodes can share the folder. A line that a full disk cut off is skipped. A process
    that writes nothing has no file, and files of other processes are open only while they are read.
    """

    def __init__(self, folder: Path) -> None:
        """Index the answers of other processes; this process's file is created when something is written to it.

        Raises:
            ConfigError: If the folder cannot be read or written, or its file system has no locks.
        """
        self._folder = folder
        self._places = _PlaceTable()
        self._names = [""]
        """[num_files] names by number; 0 is this process's file, which has a name once something is written to it."""
        self._own: int | None = None
        """Descriptor of this process's file; None until something is written to it."""
        self._others: dict[str, _OtherFile] = {}
        self._failures: dict[str, list[str]] = defaultdict(list)
        self._size = 0
        self._looked_at = -math.inf
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._claims = claims_of(folder)
            self._look()
        except OSError as error:
            raise ConfigError(self._unwritable(error)) from error

    def __len__(self) -> int:
        return len(self._places)

    def claim(self, key: str) -> bool:
        """Whether the caller may ask a question now; False while another caller, in any process, asks it.

        A caller that has the claim looks in the cache again before it asks the model, puts the answer into the cache,
        and releases the claim. The claim of a process ends when the process dies.

        Raises:
            EngineError: If the file system refuses the lock.
        """
        try:
            is_claimed = self._claims.claim(key)
        except OSError as error:
            raise EngineError(self._unwritable(error)) from error
        if not is_claimed:
            return False
        self._looked_at = -math.inf  # an answer may have come just before the claim
        return True

    def release(self, key: str) -> None:
        """Give up a claim.

        Raises:
            EngineError: If the file system refuses to free the lock.
        """
        try:
            self._claims.release(key)
        except OSError as error:
            raise EngineError(self._unwritable(error)) from error

    def get(self, key: str) -> bytes | None:
        """The answer that was put under a key, as JSON; None if there is none.

        Raises:
            EngineError: If the folder cannot be read any more.
        """
        try:
            if key not in self._places and time.monotonic() - self._looked_at >= _LOOK_SECONDS:
                self._look()
            if (place := self._places.get(key)) is None:
                return None
            with (self._folder / self._names[place.file]).open("rb") as file:
                file.seek(place.offset)
                line = file.read(place.length)
        except OSError as error:
            raise EngineError(self._unwritable(error)) from error
        entry = msgspec.json.decode(line, type=_Entry)
        assert entry.key == key, (entry.key, key)
        return bytes(entry.answer)

    def forget(self, key: str) -> None:
        """Treat the answer under a key as absent; it stays in its file until another is put."""
        self._places.remove(key)

    def failures(self, key: str) -> list[str]:
        """Error messages of the failed attempts to get an answer, oldest first."""
        return self._failures.get(key, [])

    def put_failure(self, key: str, failure: str) -> None:
        """Tell callers that wait for the answer to a question that it failed; later callers ask the model again.

        Raises:
            EngineError: If it cannot be written.
        """
        self._write(_Entry(key=key, failure=failure))
        self._failures[key].append(failure)

    def put(self, key: str, answer: bytes) -> None:
        """Keep an answer, which is JSON.

        Raises:
            EngineError: If it cannot be written.
        """
        place = self._write(_Entry(key=key, answer=msgspec.Raw(answer)))
        self._places.put(key, place)

    def _write(self, entry: _Entry) -> _AnswerPlace:
        line = msgspec.json.encode(entry) + b"\n"
        try:
            if self._own is None:
                self._names[0] = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}"
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
                self._own = os.open(self._folder / self._names[0], flags, 0o644)
            num_written = os.write(self._own, line)
        except OSError as error:
            raise EngineError(self._unwritable(error)) from error
        if num_written == len(line):
            self._size += num_written
            return _AnswerPlace(0, self._size - len(line), len(line))
        os.ftruncate(self._own, self._size)
        raise EngineError(self._unwritable(OSError("no space left")))

    def _look(self) -> None:
        """Read what other processes have written since the last read."""
        self._looked_at = time.monotonic()
        for name in sorted(os.listdir(self._folder)):
            if name.endswith(_SUFFIX) and name != self._names[0] and name not in self._others:
                self._others[name] = _OtherFile(number=len(self._names))
                self._names.append(name)
        for name, other in self._others.items():
            if (size := (self._folder / name).stat().st_size) != other.num_seen:
                other.num_seen = size
                self._read(other)

    def _read(self, other: _OtherFile) -> None:
        with (self._folder / self._names[other.number]).open("rb") as file:
            file.seek(other.num_read)
            for line in file:
                if not line.endswith(b"\n"):  # it is being written, or a full disk cut it off
                    break
                entry = _entry_of(line)
                if entry is not None and entry.failure:
                    self._failures[entry.key].append(entry.failure)
                elif entry is not None:
                    self._places.put(entry.key, _AnswerPlace(other.number, other.num_read, len(line)))
                other.num_read += len(line)

    def _unwritable(self, error: OSError) -> str:
        return f"answers cannot be kept in {self._folder}: {error}; make room there, or choose another folder"


def _entry_of(line: bytes) -> _Entry | None:
    """The entry in a line; None if a full disk cut the line off and the next line follows without a line break."""
    try:
        return msgspec.json.decode(line, type=_Entry)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
