"""Terminal of a program: opened inside its pod; the lane types into it and reads its output.

The program's process opens it before any of the user's code runs. So the terminal belongs to the pod, and has a name
there.
"""

import fcntl
import math
import os
import socket
import struct

from verl_pivot.sandbox.lane.fd_passing import receive, send

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing these would slow down a zygote
    from verl_pivot.sandbox.lane.capture import Capture
    from verl_pivot.sandbox.lane.event_loop import Callback, EventLoop
    from verl_pivot.sandbox.lane.messages import TerminalFields

_TIOCSCTTY, _TIOCSWINSZ = 0x540E, 0x5414
_SIZE = struct.Struct("4H")
_END_OF_FILE = b"\x04"
"""Ctrl-D. In the middle of a line it only sends that line to the program; at the start of a line it ends the input."""
_CHUNK_BYTES = 1024
MAX_TYPED_AHEAD = 64 * 1024
"""Bytes of typed input that may wait until a program reads them; further input is dropped."""


def typed_input(stdin: bytes) -> bytes:
    """Bytes to type so that a program reads `stdin` and then the end of its input."""
    return stdin + _END_OF_FILE * (1 if stdin.endswith(b"\n") or not stdin else 2)


def enter_terminal(size: "TerminalFields", *, with_stdin: bool) -> tuple[int, int]:
    """Open a terminal and make it the controlling terminal of this process; returns its master and its slave side.

    The process must lead a session of processes.

    Args:
        size: Size of the terminal.
        with_stdin: Whether the terminal becomes stdin too, and not only stdout and stderr.

    Raises:
        OSError: If no terminal can be opened.
    """
    master, slave = os.openpty()
    fcntl.ioctl(slave, _TIOCSWINSZ, _SIZE.pack(size["rows"], size["columns"], 0, 0))
    fcntl.ioctl(slave, _TIOCSCTTY, 0)
    for number in (0, 1, 2) if with_stdin else (1, 2):
        os.dup2(slave, number)
    return master, slave


def hand_over(terminal: tuple[int, int], channel_fd: int) -> None:
    """Send both sides to the lane, and close them and the channel in this process.

    The lane types only after this, so a Ctrl-C reaches the user's code.

    Args:
        terminal: Descriptors of the two sides.
        channel_fd: Far end of a TerminalEnd.
    """
    with socket.socket(fileno=channel_fd) as channel:
        send(channel, (), terminal)
    for fd in terminal:
        os.close(fd)


class TerminalEnd:
    """The lane's end of a terminal. A Capture reads the terminal's output instead of its own pipe."""

    def __init__(self, loop: "EventLoop", output: "Capture", on_output: "Callback") -> None:
        """Wait for a terminal.

        Args:
            loop: The lane's event loop.
            output: Capture of the program's output; the loop watches it until its end.
            on_output: Called when there is output.
        """
        self._loop = loop
        self._output = output
        self._on_output = on_output
        self._ours, self.far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        """Ends of a socket pair. `far_end` is for the process that opens the terminal; the caller closes it."""
        self._ours.setblocking(False)
        self._slave: int | None = None
        """The program's side, kept open so that the terminal does not end while no process has it open."""
        self._typed = bytearray()
        """Bytes that are still to be typed."""
        loop.on_readable(self._ours.fileno(), self.settle)

    def type_in(self, data: bytes, max_waiting: float = math.inf) -> None:
        """Type into the terminal, as fast as the program reads; dropped if `max_waiting` bytes wait already."""
        if len(self._typed) < max_waiting:
            self._typed += data
        if self._slave is not None:
            self._type()

    def settle(self) -> None:
        """Begin to use the terminal if the program's process has sent it; harmless to repeat."""
        if self._ours.fileno() < 0:
            return
        try:
            received = receive(self._ours)
        except BlockingIOError:
            return
        self._loop.forget(self._ours.fileno())
        self._ours.close()
        if received is None:
            return
        master, self._slave = received[1]
        output = self._output
        self._loop.forget(output.read_end)
        os.dup2(master, output.read_end, inheritable=False)
        os.close(master)
        os.set_blocking(output.read_end, False)
        output.at_end = False
        self._loop.on_readable(output.read_end, self._on_output)
        self._type()

    def close(self) -> None:
        """Stop using the terminal. The Capture stays open: its maker closes it."""
        if self._ours.fileno() >= 0:
            self._loop.forget(self._ours.fileno())
            self._ours.close()
        if self._slave is not None:
            os.close(self._slave)
            self._slave = None

    def _type(self) -> None:
        fd = self._output.read_end
        while self._typed:
            try:
                num_typed = os.write(fd, self._typed[:_CHUNK_BYTES])
            except BlockingIOError:
                self._loop.on_writable(fd, self._type)
                return
            del self._typed[:num_typed]
        self._loop.on_writable(fd, None)
