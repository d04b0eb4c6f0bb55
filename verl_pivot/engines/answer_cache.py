"""AnswerCache: answers of a model in a folder, so that a run that was killed and goes on asks no question again."""

import os
import secrets
import socket
from pathlib import Path
from typing import NamedTuple

import msgspec

from verl_pivot.errors import ConfigError, EngineError

_SUFFIX = ".answers.jsonl"


class _Entry(msgspec.Struct):
    """One line of a file."""

    key: str
    answer: msgspec.Raw


class _AnswerPlace(NamedTuple):
    """Where a line stands."""

    descriptor: int
    offset: int
    length: int


class AnswerCache:
    """Answers by key, those of other processes included that used the folder before this one began.

    Every process appends to a file of its own, each answer by one write, so that the answers of a process that is
    killed are there, and several processes and nodes can share the folder. A line that a full disk cut off is skipped.
    """

    def __init__(self, folder: Path) -> None:
        """Read where the answers of earlier processes stand.

        Raises:
            ConfigError: If the folder cannot be read or written.
        """
        self._folder = folder
        self._places: dict[str, _AnswerPlace] = {}
        self._size = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(folder.glob(f"*{_SUFFIX}")):
                self._read(path)
            name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}"
            self._own = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except OSError as error:
            raise ConfigError(self._unwritable(error)) from error

    def __len__(self) -> int:
        return len(self._places)

    def get(self, key: str) -> bytes | None:
        """The answer that was put under a key, as JSON; None if there is none."""
        place = self._places.get(key)
        if place is None:
            return None
        entry = msgspec.json.decode(os.pread(place.descriptor, place.length, place.offset), type=_Entry)
        assert entry.key == key, (entry.key, key)
        return bytes(entry.answer)

    def put(self, key: str, answer: bytes) -> None:
        """Keep an answer, which is JSON.

        Raises:
            EngineError: If it cannot be written.
        """
        line = msgspec.json.encode(_Entry(key=key, answer=msgspec.Raw(answer))) + b"\n"
        try:
            num_written = os.write(self._own, line)
        except OSError as error:
            raise EngineError(self._unwritable(error)) from error
        if num_written == len(line):
            self._places[key] = _AnswerPlace(self._own, self._size, len(line))
            self._size += num_written
            return
        os.ftruncate(self._own, self._size)
        raise EngineError(self._unwritable(OSError("no space left")))

    def _read(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        offset = 0
        with open(descriptor, "rb", closefd=False) as file:
            for line in file:
                if (key := _key_of(line)) is not None:
                    self._places[key] = _AnswerPlace(descriptor, offset, len(line))
                offset += len(line)

    def _unwritable(self, error: OSError) -> str:
        return (
            f"answers of the judge cannot be kept in {self._folder}: {error}; make room there, or choose another folder"
        )


def _key_of(line: bytes) -> str | None:
    """The key of a whole line; None for one that was cut off."""
    try:
        return msgspec.json.decode(line, type=_Entry).key if line.endswith(b"\n") else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
