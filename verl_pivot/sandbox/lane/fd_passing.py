"""Messages with file descriptors between the processes of a lane: small tuples by marshal over SOCK_SEQPACKET.

Only processes that run none of the user's code write them. A session's interpreter answers in JSON; see repl.py.
"""

import marshal
import os
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would take a zygote 10 ms
    from typing import Any, TypeAlias

    Message: TypeAlias = tuple[Any, ...]

_MAX_MESSAGE_BYTES = 4096
_MAX_FDS = 64
_INT_BYTES = struct.calcsize("i")


def send(channel: socket.socket, message: "Message", fds: tuple[int, ...] = ()) -> None:
    """Send one message; large content goes through a memory file among `fds`."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
    channel.sendmsg([marshal.dumps(message)], ancillary)


def receive(channel: socket.socket) -> "tuple[Message, tuple[int, ...]] | None":
    """The next message with its descriptors; None when the other side is gone."""
    data, ancillary, _, _ = channel.recvmsg(_MAX_MESSAGE_BYTES, socket.CMSG_LEN(_MAX_FDS * _INT_BYTES))
    if not data:
        return None
    fds = memoryview(ancillary[0][2]).cast("i").tolist() if ancillary else ()
    return marshal.loads(data), tuple(fds)


def memory_file(content: bytes) -> int:
    """Descriptor of a new file in memory that holds `content`."""
    fd = os.memfd_create("sandbox", os.MFD_CLOEXEC)
    written = os.pwrite(fd, content, 0)
    while written < len(content):
        written += os.pwrite(fd, content[written:], written)
    return fd


def read_all(fd: int) -> bytes:
    """Everything that a memory file holds."""
    size = os.fstat(fd).st_size
    content = os.pread(fd, size, 0)
    while len(content) < size and (more := os.pread(fd, size - len(content), len(content))):
        content += more
    return content


def overwrite(fd: int, content: bytes) -> None:
    """Replace everything that a memory file holds."""
    os.ftruncate(fd, 0)
    written = 0
    while written < len(content):
        written += os.pwrite(fd, content[written:], written)
