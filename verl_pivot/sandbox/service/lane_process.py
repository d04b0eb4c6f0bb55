"""A lane as the service sees it: a bubblewrap process that takes requests, and answers them in any order."""

import asyncio
import binascii
import contextlib
import json
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast, overload

from verl_pivot.errors import SandboxError
from verl_pivot.sandbox.bubblewrap.command_line import find_bwrap, lane_command
from verl_pivot.sandbox.bubblewrap.group_tree import GroupTree
from verl_pivot.sandbox.bubblewrap.python_view import PythonView
from verl_pivot.sandbox.bubblewrap.run import kill_group
from verl_pivot.sandbox.execution import LIMIT_RANGES, MIB, OnOutput, Output
from verl_pivot.sandbox.host_functions import HostCall, OnCall
from verl_pivot.sandbox.lane.frames import READY_NUMBER, Decoder, FrameError, encode
from verl_pivot.sandbox.lane.messages import (
    AbandonRequest,
    AnswerFrame,
    CallAnswer,
    CancelRequest,
    CellAnswer,
    CellRequest,
    CloseRequest,
    Done,
    FilesAnswer,
    FilesRequest,
    ForkRequest,
    LaneDescriptors,
    LaneProgram,
    LaneRequest,
    LaneSettings,
    MoreRequest,
    Opened,
    OpenRequest,
    OutputAnswer,
    PingRequest,
    Ready,
    Refusal,
    ReplyRequest,
    RequestFrame,
    RunAnswer,
    TypeRequest,
)

_MAX_ANSWER_BYTES = 4 * 6 * int(LIMIT_RANGES["output_bytes"][1]) + 64 * MIB
"""Four texts of the longest output that can be asked for, each byte as 6 in JSON, and the files."""
_READ_BYTES = 1024 * 1024
_START_SECONDS = 180.0
_STOP_SECONDS = 5.0


OnPiece = Callable[[OutputAnswer | CallAnswer], Awaitable[None]]
"""Function that receives the output and the calls that come before the answer to a request."""


class LaneProcess:
    """One lane from its start to its end; when it dies, every open request fails with SandboxError."""

    def __init__(
        self,
        settings: LaneSettings,
        groups: GroupTree | None = None,
        roots: Path | None = None,
        user_range: int | None = None,
        folders: Mapping[str, Path] = MappingProxyType({}),
        egress_fd: int | None = None,
    ) -> None:
        """Begin; nothing is started yet.

        Args:
            settings: Settings of the lane.
            groups: Folders of control groups for this lane alone; None if the machine has no control groups.
            roots: Folder of root file systems; None for none.
            user_range: Descriptor of the user namespace with ids for programs; None if there is none.
            folders: {path in the lane: folder of the host} of all languages.
            egress_fd: Descriptor of the socket to the proxy; None if there is no proxy.
        """
        self._egress_fd = egress_fd
        self._folders = folders
        self._user_range = user_range
        self._roots = roots
        self._groups = groups
        self._settings = settings
        self._answers: dict[int, asyncio.Future[Any]] = {}
        """{number of an open request: future of its answer}."""
        self._pieces: dict[int, asyncio.Queue[OutputAnswer | CallAnswer | None]] = {}
        """{number of an open request that sends output or calls: those that have come, and None at the end}."""
        self._numbers: dict[OnOutput, int] = {}
        """{receiver of a running program's output: number of the program's request}."""
        self._num_requests = READY_NUMBER
        self.is_alive = False
        self.shows_places: str | None = None
        """Why programs can find out where their folders lie on the host; None if they cannot."""

    @property
    def num_open(self) -> int:
        """Requests that are not answered yet."""
        return len(self._answers)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def start(self) -> None:
        """Start the lane; returns when its zygotes are ready to fork.

        Raises:
            SandboxError: If it does not start; the message has the end of its stderr.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with contextlib.ExitStack() as opened:
            opened.callback(theirs.close)
            descriptors = self._descriptors(opened)
            kept = [theirs.fileno(), *_numbers(descriptors)]
            command = lane_command(
                PythonView.of(),
                (str(theirs.fileno()), json.dumps(self._settings), json.dumps(descriptors)),
                bwrap=find_bwrap(),
                keep_fds=kept,
                mount_proc=self._settings["has_proc"],
                roots=self._roots,
                user_range=descriptors["user_range"],
                folders=self._folders,
            )
            opened.callback(command.close)
            self._process = await asyncio.create_subprocess_exec(
                *command.argv,
                env={},
                pass_fds=command.pass_fds,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        ready = self._expect(READY_NUMBER)
        self._stream, self._writer = await asyncio.open_connection(sock=ours, limit=_READ_BYTES)
        self._stderr_reader = asyncio.create_task(self._read_stderr())
        self._answer_reader = asyncio.create_task(self._read_answers())
        try:
            answer: Ready | Refusal = await asyncio.wait_for(asyncio.shield(ready), _START_SECONDS)
        except TimeoutError:
            await self.stop()
            raise SandboxError(f"a lane did not start within {_START_SECONDS:.0f} s") from None
        if answer["kind"] != "ready":
            await self.stop()
            last_words = (await self._stderr_reader).splitlines()[-1:]
            raise SandboxError(": ".join((answer["reason"], *last_words)))
        self.shows_places = answer["shows_places"]
        self.is_alive = True

    async def run(self, program: LaneProgram, on_output: OnOutput | None = None) -> RunAnswer | Refusal:
        """Run a program; cancelling this call ends the program."""
        number = self._send({"op": "run", "program": program, "streams": on_output is not None})
        try:
            if on_output is None:
                return cast(RunAnswer | Refusal, await self._expect(number))
            self._numbers[on_output] = number
            return cast(
                RunAnswer | Refusal, await self._expect_pieces(number, partial(self._output, number, on_output))
            )
        except asyncio.CancelledError:
            self.tell({"op": "cancel", "target": number})
            raise
        finally:
            if on_output is not None:
                self._numbers.pop(on_output, None)

    def type_in(self, on_output: OnOutput, text: str) -> None:
        """Type into the terminal of the program whose output `on_output` receives; ignored if there is none."""
        if on_output in self._numbers:
            self.tell({"op": "type", "target": self._numbers[on_output], "text": text})

    async def run_cell(
        self, request: CellRequest, on_output: OnOutput | None, on_call: OnCall | None
    ) -> CellAnswer | Refusal:
        """Run a cell; cancelling this call does not take the request back."""
        number = self._send(request)

        async def take(piece: OutputAnswer | CallAnswer) -> None:
            if piece["kind"] == "output" and on_output is not None:
                await self._output(number, on_output, piece)
            elif piece["kind"] == "call" and on_call is not None:
                call = HostCall(piece["call"], piece["name"], piece["arguments"])
                value, error = await on_call(call)
                session = request["session"]
                self.tell({"op": "reply", "session": session, "call": call.number, "value": value, "error": error})

        if on_output is None and on_call is None:
            return cast(CellAnswer | Refusal, await self._expect(number))
        return cast(CellAnswer | Refusal, await self._expect_pieces(number, take))

    @overload
    async def ask(self, request: PingRequest) -> Done: ...
    @overload
    async def ask(self, request: OpenRequest) -> Opened | Refusal: ...
    @overload
    async def ask(self, request: ForkRequest) -> Done | Refusal: ...
    @overload
    async def ask(self, request: FilesRequest) -> FilesAnswer | Refusal: ...

    async def ask(self, request: LaneRequest) -> Any:
        """The answer to a request; cancelling this call does not take the request back."""
        return await self._expect(self._send(request))

    def tell(
        self, request: CancelRequest | MoreRequest | TypeRequest | ReplyRequest | AbandonRequest | CloseRequest
    ) -> None:
        """Send a request whose answer nobody reads."""
        self._send(request)

    async def stop(self) -> None:
        """End the lane and everything in it."""
        self.is_alive = False
        self._kill()
        await self._process.wait()
        self._writer.close()
        await asyncio.wait({self._answer_reader, self._stderr_reader}, timeout=_STOP_SECONDS)
        if self._groups is not None:
            await self._groups.removed()

    def _descriptors(self, opened: contextlib.ExitStack) -> LaneDescriptors:
        """Descriptors for the lane, which `opened` closes."""
        outer_proc, groups, user_range = None, None, None
        if not self._settings["has_proc"]:  # pods need a /proc for a moment, to map their user
            outer_proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, outer_proc)
        if self._groups is not None:
            folders = opened.enter_context(self._groups.make().opened())
            groups = (folders.version, folders.memory, folders.pids)
        if self._user_range is not None:
            user_range = os.dup(self._user_range)
            opened.callback(os.close, user_range)
        egress = self._egress_fd  # all lanes share it, so it is not closed here
        return {"outer_proc": outer_proc, "user_range": user_range, "egress": egress, "groups": groups}

    async def has_ended(self, seconds: float) -> bool:
        """Whether the lane dies within this time."""
        done, _ = await asyncio.wait({self._answer_reader}, timeout=seconds)
        return bool(done)

    def _send(self, request: LaneRequest) -> int:
        """Send a request; returns its number."""
        self._num_requests += 1
        frame: RequestFrame = {"number": self._num_requests, "request": request}
        if not self._answer_reader.done():
            self._writer.write(encode(frame))
        return self._num_requests

    def _expect(self, number: int) -> "asyncio.Future[Any]":
        """Future of the answer to a request; messages.py says its type beside that of the request."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if number != READY_NUMBER and self._answer_reader.done():
            answer.set_exception(SandboxError("the lane has died"))
        else:
            self._answers[number] = answer
        return answer

    async def _expect_pieces(self, number: int, take: OnPiece) -> Any:
        """Wait for the answer to a request, and give its output and calls to `take` meanwhile; returns the answer."""
        answer = self._expect(number)
        pieces = self._pieces[number] = asyncio.Queue[OutputAnswer | CallAnswer | None]()
        answer.add_done_callback(lambda _: pieces.put_nowait(None))
        try:
            while (piece := await pieces.get()) is not None:
                await take(piece)
            return await answer
        finally:
            del self._pieces[number]

    async def _output(self, number: int, on_output: OnOutput, piece: OutputAnswer | CallAnswer) -> None:
        """Pass a piece of output on, then ask the lane for the next one."""
        if piece["kind"] == "output":
            stdout, stderr = binascii.a2b_base64(piece["stdout"]), binascii.a2b_base64(piece["stderr"])
            await on_output(Output(stdout=stdout, stderr=stderr))
            self.tell({"op": "more", "target": number})

    def _kill(self) -> None:
        if self._process.returncode is None:
            kill_group(self._process.pid)

    async def _read_stderr(self) -> str:
        """The end of the lane's stderr."""
        assert self._process.stderr is not None, "stderr is a pipe"
        text = b""
        while chunk := await self._process.stderr.read(4096):
            text = (text + chunk)[-4096:]
        return text.decode("utf-8", "replace").strip()

    async def _read_answers(self) -> None:
        decoder: Decoder[AnswerFrame] = Decoder(_MAX_ANSWER_BYTES)
        try:
            while data := await self._stream.read(_READ_BYTES):
                for frame in decoder.feed(data):
                    self._take(frame)
        except (FrameError, ConnectionError):
            self._kill()
        finally:
            self.is_alive = False
            await self._fail_all()

    def _take(self, frame: AnswerFrame) -> None:
        answered = frame["answer"]
        if answered["kind"] == "output" or answered["kind"] == "call":
            if frame["number"] in self._pieces:
                self._pieces[frame["number"]].put_nowait(answered)
            return
        answer = self._answers.pop(frame["number"], None)
        if answer is not None and not answer.done():
            answer.set_result(frame["answer"])

    async def _fail_all(self) -> None:
        stderr = await self._stderr_reader
        error = SandboxError(f"the lane has died{': ' if stderr else ''}{stderr}")
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # marks it as read, as its caller may be gone
        self._answers.clear()


def _numbers(descriptors: LaneDescriptors) -> list[int]:
    single = (descriptors["outer_proc"], descriptors["user_range"], descriptors["egress"])
    groups = descriptors["groups"]
    return [*(fd for fd in single if fd is not None), *([] if groups is None else groups[1:])]
