"""JSON messages over Unix sockets, with or without file descriptors: never pickle, never longer than agreed."""

import array
import json
import os
import socket
import struct
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
"""A JSON object between two parts of our own; strangers' words are checked where they are read."""

_LENGTH = struct.Struct(">I")
_MAX_DATAGRAM_BYTES = 64 * 1024
_MAX_FDS = 8


class FrameError(ValueError):
    """The other side sent what is no frame."""


def encode(message: Message) -> bytes:
    """One frame of a byte stream: its length, then JSON."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


class Decoder:
    """Bytes of a stream -> messages, however they are cut."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Raise FrameError for a frame that is longer than agreed or no JSON object."""
        self._buffer += data
        messages: list[Message] = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > self._max_bytes:
                raise FrameError(f"a frame of {length} bytes is longer than {self._max_bytes}")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(_decode(bytes(self._buffer[_LENGTH.size : end])))
            del self._buffer[:end]
        return messages


def _decode(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a frame is no JSON: {error}") from error
    if not isinstance(message, dict):
        raise FrameError(f"a frame must be a JSON object, got {type(message).__name__}")
    return message


def send_with_fds(channel: socket.socket, message: Message, fds: tuple[int, ...] = ()) -> None:
    """One datagram of a SOCK_SEQPACKET socket; what is large goes through a memory file among `fds`."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    channel.sendmsg([json.dumps(message, separators=(",", ":")).encode()], ancillary)


def receive_with_fds(channel: socket.socket) -> tuple[Message, tuple[int, ...]] | None:
    """The next datagram, None when the other side is gone."""
    fds = array.array("i")
    data, ancillary, _, _ = channel.recvmsg(_MAX_DATAGRAM_BYTES, socket.CMSG_LEN(_MAX_FDS * fds.itemsize))
    if not data:
        return None
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return _decode(data), tuple(fds)


def memory_file(content: bytes) -> int:
    """A file without a name that holds `content`, open at its start."""
    fd = os.memfd_create("sandbox", os.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def read_all(fd: int) -> bytes:
    """The rest of an open file."""
    with os.fdopen(fd, "rb", closefd=False) as file:
        return file.read()
