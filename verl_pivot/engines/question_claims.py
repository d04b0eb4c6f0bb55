"""QuestionClaims: which process asks a question, among all that share a folder; a claim ends with its process."""

import fcntl
import os
from hashlib import sha256
from pathlib import Path
from typing import Final

_NAME: Final = "claims.lock"
_OFFSET_BYTES: Final = 7


class QuestionClaims:
    """Claims of questions by key: each is the lock on one byte of an empty file, which the kernel takes back.

    Locks of a file belong to the whole process, so that a process has one object for each folder (`claims_of`).
    """

    def __init__(self, folder: Path) -> None:
        """Open the file; raises OSError if it cannot be written, or its file system has no locks."""
        self._file = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT, 0o644)
        self._held: set[int] = set()
        if self.claim(""):
            self.release("")

    def claim(self, key: str) -> bool:
        """Whether this caller may ask now; False while another one does, in this process or in another."""
        place = _place(key)
        if place in self._held:
            return False
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES: somebody else holds it
            return False
        self._held.add(place)
        return True

    def release(self, key: str) -> None:
        """Give up a claim, whose answer is kept by now or will never come."""
        place = _place(key)
        self._held.remove(place)
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)


def _place(key: str) -> int:
    """Number of the byte that stands for a key."""
    return int.from_bytes(sha256(key.encode()).digest()[:_OFFSET_BYTES])


_claims: dict[tuple[int, int, int], QuestionClaims] = {}
"""{(process, device, inode of the folder): its claims}; a process that was forked has none of its parent's."""


def claims_of(folder: Path) -> QuestionClaims:
    """The claims of this process in a folder; raises as `QuestionClaims`."""
    found = folder.stat()
    place = (os.getpid(), found.st_dev, found.st_ino)
    if place not in _claims:
        _claims[place] = QuestionClaims(folder)
    return _claims[place]
