"""QuestionClaims: locks by which only one of the processes that share a folder asks a question at a time."""

import fcntl
import os
from hashlib import sha256
from pathlib import Path
from typing import Final

_NAME: Final = "claims.lock"
_OFFSET_BYTES: Final = 7


class QuestionClaims:
    """Claims of questions by key: each claim is a lock on one byte of an empty file.

    The kernel frees the locks of a process that ends. Locks of a file belong to the whole process, so a process has
    one object for each folder (`claims_of`).
    """

    def __init__(self, folder: Path) -> None:
        """Open the file; raises OSError if it cannot be written, or its file system has no locks."""
        self._file = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT, 0o644)
        self._held: set[int] = set()
        if self.claim(""):
            self.release("")

    def claim(self, key: str) -> bool:
        """Whether this caller may ask now; False while another caller, in any process, holds the claim."""
        place = _place(key)
        if place in self._held:
            return False
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES: another process holds the lock
            return False
        self._held.add(place)
        return True

    def release(self, key: str) -> None:
        """Give up a claim, after the answer is cached or the request has failed."""
        place = _place(key)
        self._held.remove(place)
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)


def _place(key: str) -> int:
    """Offset of the byte that is locked for a key."""
    return int.from_bytes(sha256(key.encode()).digest()[:_OFFSET_BYTES])


_claims: dict[tuple[int, int, int], QuestionClaims] = {}
"""{(process id, device, inode of the folder): its claims}; a forked process does not inherit its parent's locks."""


def claims_of(folder: Path) -> QuestionClaims:
    """The claims of this process in a folder; raises the errors of `QuestionClaims`."""
    found = folder.stat()
    place = (os.getpid(), found.st_dev, found.st_ino)
    if place not in _claims:
        _claims[place] = QuestionClaims(folder)
    return _claims[place]
