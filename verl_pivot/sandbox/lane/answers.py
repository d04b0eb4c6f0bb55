"""Answers of processes in pods -> their fields, of bounded length. Each answer has a socket of its own.

The user's code can forge answers: it shares a process with a session's interpreter, and a pod with a helper that reads
files. But an answer forged for one request cannot reach the socket of another request. The kernel attests which process
wrote each piece. And as each field follows its length, reading the fields needs no parser.
"""

import os
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would take a zygote 10 ms
    from typing import TypeAlias

    Fields: TypeAlias = tuple[bytes | None, ...]

MAX_CALL_BYTES = 1024**2
"""Maximum bytes of the arguments of one call of a host function, as JSON, and of its reply."""
_LENGTH = struct.Struct(">q")
_ABSENT = -1
CREDENTIALS = struct.Struct("3i")
"""Ancillary data of a message: process, user and group id of its sender."""
HELLO = b"+"
"""First and only message of an interpreter on its channel for requests."""
_CHUNK_BYTES = 64 * 1024


class AnswerError(ValueError):
    """Error for an answer that is not of the agreed form, or comes from a process that was not asked."""


def write_answer(fd: int, fields: "Fields") -> None:
    """Write the fields of an answer to the far end of an AnswerSocket, and close it.

    It does not matter if the reader is gone: it has then taken other bytes as the answer.
    """
    content = memoryview(pack_fields(fields))
    try:
        while content:
            content = content[os.write(fd, content[:_CHUNK_BYTES]) :]
        os.close(fd)
    except OSError:
        return


def pack_fields(fields: "Fields") -> bytes:
    """The lengths of the fields, then the fields."""
    lengths = b"".join(_LENGTH.pack(_ABSENT if field is None else len(field)) for field in fields)
    return lengths + b"".join(field or b"" for field in fields)


def num_bytes_of(fields: "Fields") -> int:
    """Number of bytes that `pack_fields` returns for these fields."""
    return sum(_LENGTH.size + len(field or b"") for field in fields)


class AnswerSocket:
    """The lane's end of a socket for one answer; `theirs` is the far end."""

    def __init__(self, *, num_fields: int, max_bytes: int, max_total_bytes: int) -> None:
        """Make a pair of sockets.

        Args:
            num_fields: Number of fields of the answer.
            max_bytes: Maximum bytes of each field.
            max_total_bytes: Maximum bytes of all fields together.
        """
        self._ours, self.theirs = socket.socketpair()
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._bounds = (num_fields, max_bytes, max_total_bytes)
        self._received = bytearray()

    def fileno(self) -> int:
        return self._ours.fileno()

    def receive(self, pid: int | None) -> "Fields | None":
        """Read one piece; the fields when all are there, else None.

        Args:
            pid: Process that was asked; None where it does not matter who answers.

        Raises:
            BlockingIOError: If no bytes have come.
            AnswerError: If another process answers, or the answer is not of the agreed form.
            EOFError: If the socket was closed before the answer was complete.
        """
        room = socket.CMSG_SPACE(CREDENTIALS.size)
        data, ancillary, _, _ = self._ours.recvmsg(_CHUNK_BYTES, room, socket.MSG_DONTWAIT)
        if not data:
            raise EOFError
        if pid is not None and attested_pid(ancillary) != pid:
            raise AnswerError("it came from another process")
        self._received += data
        return decode_answer(self._received, *self._bounds)

    def close(self) -> None:
        """Close the lane's end, after which nothing that is written to the socket is ever read."""
        self._ours.close()


def decode_answer(
    received: bytes | bytearray, num_fields: int, max_bytes: int, max_total_bytes: int
) -> "Fields | None":
    """Fields of the answer with which the bytes `received` begin; None if it is not complete.

    Bytes after the answer are ignored, so a second answer has no effect.

    Raises:
        AnswerError: If it is not of the agreed form.
    """
    start = num_fields * _LENGTH.size
    if len(received) < start:
        return None
    lengths = [_LENGTH.unpack_from(received, number * _LENGTH.size)[0] for number in range(num_fields)]
    if any(not _ABSENT <= length <= max_bytes for length in lengths):
        raise AnswerError(f"it has a field whose length is not in 0 to {max_bytes} bytes")
    num_bytes = sum(max(length, 0) for length in lengths)
    if num_bytes > max_total_bytes:
        raise AnswerError(f"its {num_bytes} bytes are more than {max_total_bytes}")
    if len(received) < start + num_bytes:
        return None
    fields: list[bytes | None] = []
    for length in lengths:
        end = start + max(length, 0)
        fields.append(None if length == _ABSENT else bytes(received[start:end]))
        start = end
    return tuple(fields)


def attested_pid(ancillary: "list[tuple[int, int, bytes]]") -> int:
    """Process id of a message's sender, as the kernel attests it; 0 if it does not."""
    kinds = (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)
    return next((CREDENTIALS.unpack(data)[0] for level, kind, data in ancillary if (level, kind) == kinds), 0)
