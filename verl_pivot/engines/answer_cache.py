"""AnswerCache: answers of a model in a folder, so that a run that was killed and goes on asks no question again."""

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
"""Bytes that no line reaches."""
_MOST_BYTES_OF_FILE: Final = 1 << 48
_LOOK_SECONDS: Final = 0.02
"""Seconds between two looks at what other processes have written."""


class _Entry(msgspec.Struct):
    """One line of a file."""

    key: str
    answer: msgspec.Raw = msgspec.Raw(b"null")
    failure: str = ""
    """Why whoever asked got no answer; "" for an answer."""


class _AnswerPlace(NamedTuple):
    """Where a line stands."""

    descriptor: int
    offset: int
    length: int


class _PlaceTable:
    """{key: place} with 130 bytes for each, so that memory holds a million: digests of keys, and numbers for places."""

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
        descriptor, offset = divmod(rest, _MOST_BYTES_OF_FILE)
        return _AnswerPlace(descriptor, offset, length)

    def put(self, key: str, place: _AnswerPlace) -> None:
        packed = (place.descriptor * _MOST_BYTES_OF_FILE + place.offset) * _MOST_BYTES + place.length
        self._packed[_short(key)] = packed


def _short(key: str) -> bytes:
    return blake2b(key.encode(), digest_size=16).digest()


@dataclass(slots=True, kw_only=True)
class _OtherFile:
    """The file of another process, as far as it was read."""

    descriptor: int
    num_read: int = 0
    """Bytes of whole lines."""
    num_seen: int = 0
    """Bytes at the last look, of which the last line may not have been whole."""


class AnswerCache:
    """Answers by key, those of all processes included that share the folder, before this one began and since.

    Every process appends to a file of its own, each answer by one write, so that the answers of a process that is
    killed are there, and several processes and nodes can share the folder. A line that a full disk cut off is skipped.
    """

    def __init__(self, folder: Path) -> None:
        """Read where the answers of other processes stand.

        Raises:
            ConfigError: If the folder cannot be read or written, or its file system has no locks.
        """
        self._folder = folder
        self._places = _PlaceTable()
        self._others: dict[str, _OtherFile] = {}
        self._failures: dict[str, list[str]] = defaultdict(list)
        self._size = 0
        self._looked_at = -math.inf
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}"
            self._own = os.open(folder / self._name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
            self._claims = claims_of(folder)
            self._look()
        except OSError as error:
            raise ConfigError(self._unwritable(error)) from error

    def __len__(self) -> int:
        return len(self._places)

    def claim(self, key: str) -> bool:
        """Whether the caller may ask a question now; False while another one of any process does.

        Whoever claims a question asks the cache again before the model, puts the answer, and releases the claim. The
        claim of a process that dies ends with it.
        """
        if not self._claims.claim(key):
            return False
        self._looked_at = -math.inf  # an answer may have come just before the claim
        return True

    def release(self, key: str) -> None:
        """Give up a claim."""
        self._claims.release(key)

    def get(self, key: str) -> bytes | None:
        """The answer that was put under a key, as JSON; None if there is none.

        Raises:
            EngineError: If the folder cannot be read any more.
        """
        if key not in self._places and time.monotonic() - self._looked_at >= _LOOK_SECONDS:
            try:
                self._look()
            except OSError as error:
                raise EngineError(self._unwritable(error)) from error
        place = self._places.get(key)
        if place is None:
            return None
        entry = msgspec.json.decode(os.pread(place.descriptor, place.length, place.offset), type=_Entry)
        assert entry.key == key, (entry.key, key)
        return bytes(entry.answer)

    def failures(self, key: str) -> list[str]:
        """Why those who asked a question got no answer, in the order of the failures."""
        return self._failures.get(key, [])

    def put_failure(self, key: str, failure: str) -> None:
        """Tell those that wait for the answer to a question that there is none; whoever asks later asks the model.

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
            num_written = os.write(self._own, line)
        except OSError as error:
            raise EngineError(self._unwritable(error)) from error
        if num_written == len(line):
            self._size += num_written
            return _AnswerPlace(self._own, self._size - len(line), len(line))
        os.ftruncate(self._own, self._size)
        raise EngineError(self._unwritable(OSError("no space left")))

    def _look(self) -> None:
        """Read what other processes have written since the last look."""
        self._looked_at = time.monotonic()
        for name in sorted(os.listdir(self._folder)):
            if name.endswith(_SUFFIX) and name != self._name and name not in self._others:
                self._others[name] = _OtherFile(descriptor=os.open(self._folder / name, os.O_RDONLY))
        for other in self._others.values():
            if (size := os.fstat(other.descriptor).st_size) != other.num_seen:
                other.num_seen = size
                self._read(other)

    def _read(self, other: _OtherFile) -> None:
        with open(other.descriptor, "rb", closefd=False) as file:
            file.seek(other.num_read)
            for line in file:
                if not line.endswith(b"\n"):  # it is being written, or a full disk cut it off
                    break
                entry = _entry_of(line)
                if entry is not None and entry.failure:
                    self._failures[entry.key].append(entry.failure)
                elif entry is not None:
                    self._places.put(entry.key, _AnswerPlace(other.descriptor, other.num_read, len(line)))
                other.num_read += len(line)

    def _unwritable(self, error: OSError) -> str:
        return f"answers cannot be kept in {self._folder}: {error}; make room there, or choose another folder"


def _entry_of(line: bytes) -> _Entry | None:
    """What a line says; None for one that a full disk cut off before another was written behind it."""
    try:
        return msgspec.json.decode(line, type=_Entry)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
