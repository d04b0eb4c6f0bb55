"""An MCP server's process -> the streams of messages that the SDK's client reads and writes, all of them bounded.

The SDK's own transport reads a line of any length into memory and reports nothing of stderr or of the exit code.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pydantic import ValidationError

from verl_pivot.child_process import ChildProcess, start_child
from verl_pivot.extras import extra

with extra("mcp"):
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp_types import JSONRPCError, JSONRPCResponse, jsonrpc_message_adapter

_GRACE_SECONDS = 1.0
"""Seconds that a server gets to exit by itself after the end of its standard input, and again after SIGTERM."""
_TAIL_BYTES = 400
"""Number of bytes that a description quotes: the last of stderr, and the first of a line that is no message."""
_MOST_SKIPPED = 1000
"""Number of lines on stdout that are no message, above which the server breaks the protocol."""

Streams: TypeAlias = tuple[Any, Any]
"""Streams of messages from and to the server, as the SDK's transports give them."""


@dataclass(slots=True)
class ServerOutput:
    """What is known about a server's process besides its messages, for descriptions of failures."""

    stderr: bytes = b""
    """Last bytes of stderr."""
    num_skipped: int = 0
    """Lines on stdout that are no messages."""
    first_skipped: str = ""
    broken: str = ""
    """How the server broke the protocol; "" if it did not."""
    exit_code: int | None = field(default=None)
    """Exit code, negative for the signal that ended the process; None while it runs."""

    def describe(self) -> str:
        """Text about the process for a failure's description; "" if there is nothing to say."""
        parts = [self.broken]
        if self.exit_code is not None and not self.broken:
            parts.append(f"its process ended with exit code {self.exit_code}")
        if self.num_skipped:
            parts.append(f"it printed {self.num_skipped} lines that are not messages, the first {self.first_skipped!r}")
        if last := self.stderr.decode(errors="replace").strip():
            parts.append(f"its stderr ends with {last.splitlines()[-1]!r}")
        return "; ".join(part for part in parts if part)


def process_transport(
    command: Sequence[str | bytes],
    *,
    variables: Mapping[str, str],
    max_bytes: int,
    output: ServerOutput,
    own_fds: Sequence[int] = (),
) -> AbstractAsyncContextManager[Streams]:
    """Start a server and exchange messages with it, one JSON text per line; its process group is killed at the end.

    Args:
        command: Program and arguments.
        variables: The whole environment of the process.
        max_bytes: Most bytes of one message, and of all that the server prints between two answers.
        output: Filled with what the process prints on stderr and how it ends.
        own_fds: File descriptors that the process inherits under the same numbers, and that are closed here.

    Raises:
        OSError: If the program cannot be started.
    """
    return _running(command, variables, max_bytes, output, own_fds)


@asynccontextmanager
async def _running(
    command: Sequence[str | bytes],
    variables: Mapping[str, str],
    max_bytes: int,
    output: ServerOutput,
    own_fds: Sequence[int],
) -> AsyncIterator[Streams]:
    try:
        process = await start_child(command, env=variables, limit=max_bytes, pass_fds=own_fds)
    finally:
        for fd in own_fds:
            os.close(fd)
    received, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, to_send = anyio.create_memory_object_stream[SessionMessage](0)
    tasks = [
        asyncio.create_task(_read_messages(process, received, max_bytes, output)),
        asyncio.create_task(_write_messages(process, to_send, received)),
        asyncio.create_task(_read_stderr(process, output)),
    ]
    try:
        yield incoming, outgoing
        await _end_gently(process, outgoing, to_send, incoming, tasks)
    finally:
        for stream in (received, incoming, outgoing, to_send):
            stream.close()
        try:
            if tasks[0].done():  # the server closed stdout, so it may have ended: wait for its exit code
                await _has_ended(process)
            output.exit_code = process.returncode
        finally:
            process.kill_group(signal.SIGKILL)
            for task in tasks:
                task.cancel()
            await _reap(process)


async def _reap(process: ChildProcess) -> None:
    try:
        await _has_ended(process)
    finally:
        process.close()


async def _end_gently(
    process: ChildProcess,
    outgoing: Any,
    to_send: Any,
    incoming: Any,
    tasks: Sequence["asyncio.Task[None]"],
) -> None:
    """Close stdin, wait, send SIGTERM, wait; text that the server still prints is discarded."""
    outgoing.close()
    to_send.close()
    incoming.close()
    tasks[0].cancel()
    process.stdin.close()
    drain = asyncio.create_task(_drain(process))
    try:
        if not await _has_ended(process):
            process.kill_group(signal.SIGTERM)
            await _has_ended(process)
    finally:
        drain.cancel()


async def _has_ended(process: ChildProcess) -> bool:
    """Whether the process ends in time."""
    try:
        await asyncio.wait_for(process.wait(), _GRACE_SECONDS)
    except TimeoutError:
        return False
    return True


async def _drain(process: ChildProcess) -> None:
    with suppress(RuntimeError):  # the reading task has not ended yet
        while await process.stdout.read(65536):
            pass


async def _read_messages(process: ChildProcess, received: Any, max_bytes: int, output: ServerOutput) -> None:
    since_answer = 0
    async with received:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the session has ended
            while True:
                try:
                    line = await process.stdout.readline()
                except ValueError:  # a line over the limit
                    output.broken = f"it printed a line of more than {max_bytes} bytes (max_message_mib)"
                    break
                if not line:
                    break
                message = _message(line, output)
                is_answer = message is not None and isinstance(message.message, JSONRPCResponse | JSONRPCError)
                since_answer = 0 if is_answer else since_answer + len(line)
                if since_answer > max_bytes:
                    output.broken = f"it printed more than {max_bytes} bytes without an answer (max_message_mib)"
                if output.broken:
                    break
                if message is not None:
                    await received.send(message)
    if output.broken:
        process.kill_group(signal.SIGKILL)


def _message(line: bytes, output: ServerOutput) -> SessionMessage | None:
    """The message in a line; None if the line is no message. `output` counts such lines, unless they are blank."""
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValidationError:
        if not line.strip():
            return None
    if not output.num_skipped:
        output.first_skipped = line[:_TAIL_BYTES].decode(errors="replace").strip()
    output.num_skipped += 1
    if output.num_skipped > _MOST_SKIPPED:
        output.broken = f"it printed more than {_MOST_SKIPPED} lines on stdout that are not messages"
    return None


async def _write_messages(process: ChildProcess, to_send: Any, received: Any) -> None:
    try:
        async with to_send:
            async for each in to_send:
                text = each.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode() + b"\n")
                await process.stdin.drain()
    except (OSError, anyio.ClosedResourceError, anyio.BrokenResourceError):  # the server reads no more
        received.close()


async def _read_stderr(process: ChildProcess, output: ServerOutput) -> None:
    while chunk := await process.stderr.read(65536):
        output.stderr = (output.stderr + chunk)[-_TAIL_BYTES:]
