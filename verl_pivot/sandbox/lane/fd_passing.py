"""Messages with file descriptors between the processes of a lane: small tuples by marshal over SOCK_SEQPACKET.

Only processes that run none of the user's code write such messages. Other processes answer as answers.py says.
"""

import fcntl
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
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
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


def sealed_memory_file(content: bytes) -> int:
    """Descriptor of a new file in memory that holds `content`; the caller closes it.

    It is sealed, since a program could otherwise reopen it and write to it, and no limit counts that memory.
    """
    fd = os.memfd_create("sandbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    written = 0
    while written < len(content):
        written += os.pwrite(fd, content[written:], written)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return fd


def read_all(fd: int) -> bytes:
    """Everything that a memory file holds."""
    size = os.fstat(fd).st_size
    content = os.pread(fd, size, 0)
    while len(content) < size and (more := os.pread(fd, size - len(content), len(content))):
        content += more
    return content
