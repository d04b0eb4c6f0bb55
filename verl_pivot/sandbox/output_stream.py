"""Output of a program or cell while it runs -> OutputChunks in text, and the Result at its end."""

import asyncio
import codecs
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

from verl_pivot.errors import SandboxRequestError
from verl_pivot.sandbox.execution import OnOutput, Output, Result

StreamName = Literal["stdout", "stderr"]
_STREAMS: tuple[StreamName, ...] = ("stdout", "stderr")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputChunk:
    """A piece of output, in the order in which it was printed within its stream."""

    stream: StreamName
    text: str


class ChunkDecoder:
    """Output in bytes -> chunks; all chunks of a stream together are the text of that stream in the Result."""

    def __init__(self) -> None:
        make = codecs.getincrementaldecoder("utf-8")
        self._decoders = {name: make("backslashreplace") for name in _STREAMS}
        self._num_characters = dict.fromkeys(_STREAMS, 0)

    def feed(self, output: Output) -> list[OutputChunk]:
        """Chunks of a piece; a character that is cut at its end waits for the next piece."""
        texts = {name: self._decoders[name].decode(getattr(output, name)) for name in _STREAMS}
        return self._chunks(texts)

    def finish(self, result: Result) -> list[OutputChunk]:
        """Chunks of the text in the result that the earlier chunks do not have."""
        return self._chunks({name: getattr(result, name)[self._num_characters[name] :] for name in _STREAMS})

    def _chunks(self, texts: dict[StreamName, str]) -> list[OutputChunk]:
        for name, text in texts.items():
            self._num_characters[name] += len(text)
        return [OutputChunk(stream=name, text=text) for name, text in texts.items() if text]


class OutputStream:
    """A program or cell that runs while its output is read: `Sandbox.stream` and `Session.stream` make one.

    The program begins at `async with`, and is ended if the block is left before its end. A slow reader does not slow it
    down: output that was printed meanwhile comes in fewer and larger chunks, up to the limit on output.

    Example:
        async with sandbox.stream(Program(code="for i in range(3): print(i, flush=True)")) as output:
            async for chunk in output:
                print(chunk.stream, chunk.text, end="")
        assert output.result.stdout == "0\\n1\\n2\\n"
    """

    def __init__(self, run: Callable[[OnOutput], Awaitable[Result]], write: Callable[[str], Awaitable[bool]]) -> None:
        """Start nothing yet.

        Args:
            run: Runs the program with a receiver of its output.
            write: Types text into the program's terminal.
        """
        self._run = run
        self._write = write
        self._decoder = ChunkDecoder()
        self._chunks: asyncio.Queue[OutputChunk | None] = asyncio.Queue()
        self._task: asyncio.Task[Result] | None = None

    async def __aenter__(self) -> "OutputStream":
        self._task = asyncio.create_task(self._serve())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.exception()  # marks it as seen; readers get it at the end or from `result`

    async def __aiter__(self) -> AsyncIterator[OutputChunk]:
        if self._task is None:
            raise SandboxRequestError("the program has not started: read the output inside of `async with`")
        while (chunk := await self._next()) is not None:
            yield chunk
        await self._task

    async def _next(self) -> OutputChunk | None:
        chunk = await self._chunks.get()
        self._chunks.task_done()
        return chunk

    @property
    def result(self) -> Result:
        """Result of the program or cell, as `run` returns it; raises as `run` does, too.

        Raises:
            SandboxRequestError: If the program has not ended, or was ended because the block was left.
        """
        if self._task is None or not self._task.done() or self._task.cancelled():
            raise SandboxRequestError("there is no result: read the output to its end first")
        return self._task.result()

    async def read_all(self) -> Result:
        """Read the rest of the output; returns the result. Raises as `run` does."""
        async for _ in self:
            pass
        return self.result

    async def write(self, text: str) -> bool:
        """Type into the program's terminal; returns whether the program runs. Ctrl-D, "\\x04", ends its input.

        Raises:
            SandboxRequestError: If the program has no terminal.
        """
        return await self._write(text)

    async def _serve(self) -> Result:
        async def put(output: Output) -> None:
            for chunk in self._decoder.feed(output):
                self._chunks.put_nowait(chunk)
            await self._chunks.join()

        try:
            result = await self._run(put)
            for chunk in self._decoder.finish(result):
                self._chunks.put_nowait(chunk)
            return result
        finally:
            self._chunks.put_nowait(None)
