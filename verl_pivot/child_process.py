"""ChildProcess: a program whose pipes the running event loop reads and writes, started without a copy of this process.

Ray runs asynchronous actors on uvloop, whose `create_subprocess_exec` forks. A copy of a process with many threads can
wait for ever for a lock that one of them held, and the loop, which waits for the copy to become the program, with it:
an agent loop worker hung so, once in some 2,800 starts. `subprocess` starts programs by vfork, which copies nothing.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, NamedTuple


class _Output(NamedTuple):
    """What a program prints into one pipe."""

    reader: asyncio.StreamReader
    transport: asyncio.ReadTransport


class ChildProcess:
    """A program that runs, the leader of a process group of its own."""

    def __init__(
        self, started: "subprocess.Popen[bytes]", stdin: asyncio.StreamWriter, stdout: "_Output", stderr: "_Output"
    ) -> None:
        """Take over a program; `start_child` makes it."""
        self._started, self.stdin = started, stdin
        self.stdout, self.stderr = stdout.reader, stderr.reader
        self._transports = stdout.transport, stderr.transport
        self.pid = started.pid
        self._ended = asyncio.get_running_loop().create_future()
        self._pidfd = os.pidfd_open(started.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._note_end)

    @property
    def returncode(self) -> int | None:
        """Exit code, negative for the signal that ended the program; None while it runs."""
        return self._started.returncode

    def _note_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._started.wait()  # it has ended, so that this returns at once
        if not self._ended.done():
            self._ended.set_result(None)

    async def wait(self) -> int:
        """Wait for the program's end, whatever its descendants do; returns its exit code."""
        await asyncio.shield(self._ended)
        assert self._started.returncode is not None
        return self._started.returncode

    def kill_group(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the program and its descendants; those of an ended one may live on."""
        with suppress(ProcessLookupError, PermissionError):  # all have ended; one of them changed its user
            os.killpg(self.pid, number)

    def close(self) -> None:
        """Close the pipes, which a descendant may hold."""
        self.stdin.close()
        for transport in self._transports:
            transport.close()


async def start_child(
    command: Sequence[str | bytes],
    *,
    env: Mapping[str, str],
    limit: int = 1 << 16,
    pass_fds: Sequence[int] = (),
) -> ChildProcess:
    """Start a program with pipes for stdin, stdout and stderr.

    Args:
        command: Program and arguments.
        env: Its whole environment.
        limit: Most bytes of a line that `readline` returns.
        pass_fds: File descriptors that it inherits under the same numbers.

    Raises:
        OSError: If it cannot be started.
    """
    connecting = asyncio.ensure_future(_connected(_popen(command, env, pass_fds), limit))
    try:
        return await asyncio.shield(connecting)
    except asyncio.CancelledError:  # so that nobody knows of the program
        child = await connecting
        child.kill_group()
        await child.wait()
        child.close()
        raise


async def _connected(started: "subprocess.Popen[bytes]", limit: int) -> ChildProcess:
    assert started.stdin is not None
    assert started.stdout is not None
    assert started.stderr is not None
    stdin, stdout = await _writer(started.stdin), await _output(started.stdout, limit)
    return ChildProcess(started, stdin, stdout, await _output(started.stderr, limit))


def _popen(
    command: Sequence[str | bytes], env: Mapping[str, str], pass_fds: Sequence[int]
) -> "subprocess.Popen[bytes]":
    """The program, which has begun; this waits for no more than its exec."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, env=env, start_new_session=True, pass_fds=pass_fds
    )


async def _writer(pipe: IO[bytes]) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()),  # whose flow control a StreamWriter needs
        pipe,
    )
    given: Any = transport
    return asyncio.StreamWriter(given, protocol, None, loop)


async def _output(pipe: IO[bytes], limit: int) -> _Output:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return _Output(reader, transport)
