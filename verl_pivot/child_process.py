"""ChildProcess: a program whose pipes the running event loop reads and writes, started without a fork of this process.

Ray runs asynchronous actors on uvloop, whose `create_subprocess_exec` forks. The forked copy of a process with many
threads can wait forever for a lock that another thread held during the fork. The event loop waits for the copy to
become the program, so that it hangs too: about 1 in 2,800 starts hung an agent loop worker in this way. `subprocess`
starts programs by vfork, which copies nothing.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, NamedTuple


class _Output(NamedTuple):
    """One output pipe of a program, open for reading."""

    reader: asyncio.StreamReader
    transport: asyncio.ReadTransport


class ChildProcess:
    """A running program, the leader of its own process group."""

    def __init__(
        self, started: "subprocess.Popen[bytes]", stdin: asyncio.StreamWriter, stdout: "_Output", stderr: "_Output"
    ) -> None:
        """Take over a started program; `start_child` starts one."""
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
        self._started.wait()  # returns at once, since the program has ended
        if not self._ended.done():
            self._ended.set_result(None)

    async def wait(self) -> int:
        """Wait until the program ends, even if its descendants still run; returns its exit code."""
        await asyncio.shield(self._ended)
        assert self._started.returncode is not None
        return self._started.returncode

    def kill_group(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the program and its descendants, which may still run after the program has ended."""
        with suppress(ProcessLookupError, PermissionError):  # all have ended, or one runs as another user
            os.killpg(self.pid, number)

    def close(self) -> None:
        """Close the pipes; a descendant may still hold the other ends."""
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
        env: The program's complete environment.
        limit: Maximum length, in bytes, of a line that `readline` returns.
        pass_fds: File descriptors that the program inherits under the same numbers.

    Raises:
        OSError: If the program cannot be started.
    """
    connecting = asyncio.ensure_future(_connected(_popen(command, env, pass_fds), limit))
    try:
        return await asyncio.shield(connecting)
    except asyncio.CancelledError:  # the caller gets no ChildProcess with which to end the program
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
    """Start the program; this waits only for its exec."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, env=env, start_new_session=True, pass_fds=pass_fds
    )


async def _writer(pipe: IO[bytes]) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()),  # a StreamWriter needs its flow control
        pipe,
    )
    given: Any = transport
    return asyncio.StreamWriter(given, protocol, None, loop)


async def _output(pipe: IO[bytes], limit: int) -> _Output:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return _Output(reader, transport)
