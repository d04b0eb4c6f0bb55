"""A session as its lane sees it: an interpreter that keeps its variables between cells, and can be forked.

A cell that does not end is interrupted, then its interpreter is killed. The session then goes on in a fresh one with
the next epoch, so that whoever asks for variables of the old epoch learns that they are gone.
"""

import marshal
import os
import signal
import time
from functools import partial
from typing import Any

from verl_pivot.lane.frames import FrameError
from verl_pivot.lane.interpreters import Answer, Cell, Interpreter, SharedPod, new_channel, read_answer, receive_words
from verl_pivot.lane.loop import Loop
from verl_pivot.lane.outputs import Capture
from verl_pivot.lane.passing import memory_file, send
from verl_pivot.lane.pods import Pod, PodShape, send_signal
from verl_pivot.lane.processes import Process
from verl_pivot.lane.runs import resource_limits
from verl_pivot.lane.watchdog import open_schedstat, starved_seconds
from verl_pivot.lane.zygotes import ANSWER_SECONDS

_GRACE_SECONDS = 0.5
"""Between the interrupt of a cell and the end of its interpreter."""

KILL_REASONS = {
    "timeout": "the cell did not end within its time and would not be interrupted",
    "memory_limit": "the session used more memory than its limit",
    "evicted": "the node ran out of memory",
    "output_limit": "the cell wrote more output than may be read",
}


class Session:
    """One session: at most one interpreter, one epoch, one cell at a time."""

    def __init__(self, session_id: str, limits: dict[str, Any], shape: PodShape, loop: Loop, *, has_proc: bool) -> None:
        self.id = session_id
        self.limits = limits
        self.shape = shape
        self.epoch = 1
        self.num_cells = 0
        self.interpreter: Interpreter | None = None
        self._loop = loop
        self._has_proc = has_proc
        self._cell: Cell | None = None
        self._on_hello: Answer | None = None
        self._forks: dict[int, Session] = {}
        self._num_forks = 0
        self.last_reason = "the interpreter ended"
        """Why the last interpreter is gone."""

    @property
    def pid(self) -> int | None:
        return self.interpreter.pid if self.interpreter else None

    @property
    def is_branch(self) -> bool:
        """Its interpreter was forked from another session's, and is no zygote's child."""
        return self.interpreter is not None and self.interpreter.process is None

    @property
    def shared_bytes(self) -> int:
        return self._zygote.resident_bytes

    @property
    def is_busy(self) -> bool:
        return self._cell is not None or self._on_hello is not None

    @property
    def pod(self) -> Pod | None:
        return self.interpreter.shared.pod if self.interpreter else None

    def start(self, process: Process, answer: Answer) -> None:
        """Begin an interpreter in a fresh pod; `answer` gets {} or {"failure": why}."""
        ours, theirs = new_channel()
        outputs = self._captures()
        task = {"kind": "cells", "files": {}, "limits": resource_limits(self.limits)}
        self._on_hello = answer
        self._zygote = process.zygote
        interpreter = Interpreter(shared=SharedPod(process.pod), channel=ours, outputs=outputs, on_end=self._on_end)
        interpreter.process = process
        self._adopt(interpreter)
        process.give(interpreter, task, stdin=b"", outputs=outputs, control=theirs.fileno())
        theirs.close()

    def run_cell(self, code: str, wall_seconds: float, answer: Answer) -> None:
        """Run one cell in the interpreter, which is idle."""
        assert self.interpreter is not None
        self.num_cells += 1
        payload = memory_file(marshal.dumps((code, self.limits["output_bytes"])))
        self._cell = Cell(
            answer=answer,
            payload=payload,
            wall_seconds=wall_seconds,
            started_at=time.monotonic(),
            starved_before=self._starved(),
            timer=self._loop.after(wall_seconds, self._on_wall),
        )
        self._send(("cell", self.num_cells), (payload,))

    def fork(self, branch_id: str, answer: Answer) -> "Session":
        """A session that goes on from here in a copy of the interpreter; `answer` gets {}, or why there is none."""
        assert self.interpreter is not None
        branch = Session(branch_id, self.limits, self.shape, self._loop, has_proc=self._has_proc)
        ours, theirs = new_channel()
        outputs = self._captures()
        branch._on_hello = answer
        branch._zygote = self._zygote
        branch.num_cells = self.num_cells
        self.interpreter.shared.num_users += 1
        shared = self.interpreter.shared
        branch._adopt(Interpreter(shared=shared, channel=ours, outputs=outputs, on_end=branch._on_end))
        self._num_forks += 1
        self._forks[-self._num_forks] = branch
        self._send(("fork", -self._num_forks), (theirs.fileno(), *(each.write_end for each in outputs)))
        theirs.close()
        for each in outputs:
            os.close(each.write_end)
        return branch

    def kill(self, reason: str) -> None:
        """End the interpreter; the session can go on in a fresh one with the next epoch."""
        if self._cell is not None and self._cell.killed_by is None:
            self._cell.killed_by = reason
        if self.interpreter is None:
            return
        self.last_reason = KILL_REASONS.get(reason, reason)
        if self.interpreter.shared.num_users > 1 and self.interpreter.pidfd is not None:
            send_signal(self.interpreter.pidfd, signal.SIGKILL)
        self._release(self.interpreter)

    def _on_end(self, interpreter: Interpreter, reason: str) -> None:
        if interpreter is self.interpreter:
            self.kill(reason)

    def _captures(self) -> tuple[Capture, Capture]:
        return Capture(self.limits["output_bytes"]), Capture(self.limits["output_bytes"])

    def _adopt(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self._loop.on_readable(interpreter.channel.fileno(), self._on_message)
        for output in interpreter.outputs:
            self._loop.on_readable(output.read_end, partial(self._on_output, interpreter, output))
        self._loop.after(ANSWER_SECONDS, partial(self._expect_hello, interpreter))

    def _expect_hello(self, interpreter: Interpreter) -> None:
        if interpreter is self.interpreter and interpreter.pidfd is None:
            self.kill("the interpreter does not start")

    def _send(self, message: tuple[str, int], fds: tuple[int, ...]) -> None:
        assert self.interpreter is not None
        try:
            send(self.interpreter.channel, message, fds)
        except OSError as error:
            self.kill(f"the interpreter's channel is broken: {error.strerror}")

    def _on_message(self) -> None:
        interpreter = self.interpreter
        assert interpreter is not None
        try:
            message, pid = receive_words(interpreter.channel)
        except (OSError, FrameError) as error:
            if interpreter.pidfd is None:
                self._loop.forget(interpreter.channel.fileno())  # its zygote, or its parent, will tell why
                return
            self.kill(f"the interpreter ended: {error}")
            return
        if interpreter.pidfd is None:
            self._hello(interpreter, pid)
        elif message["id"] in self._forks:
            branch = self._forks.pop(message["id"])
            if "refused" in message:
                branch.refuse(str(message["refused"]))
        elif self._cell is not None and message["id"] == self.num_cells:
            self._answer_cell(interpreter, self._cell)

    def _hello(self, interpreter: Interpreter, pid: int) -> None:
        try:
            interpreter.pidfd, interpreter.pid = os.pidfd_open(pid), pid
        except ProcessLookupError:
            self.kill("the interpreter ended")
            return
        interpreter.schedstat = open_schedstat(pid) if self._has_proc else None
        self._loop.on_readable(interpreter.pidfd, partial(self._on_end, interpreter, "the interpreter ended"))
        answer, self._on_hello = self._on_hello, None
        if answer is not None:
            answer({})

    def refuse(self, reason: str) -> None:
        """This branch will not come to be."""
        answer, self._on_hello = self._on_hello, None
        self.kill(reason)
        if answer is not None:
            answer({"refused": f"the session cannot be forked: {reason}"})

    def _on_wall(self) -> None:
        cell = self._cell
        assert cell is not None
        starved = min(self._starved() - cell.starved_before, cell.wall_seconds)
        missing = cell.wall_seconds - (time.monotonic() - cell.started_at - starved)
        if missing > 0.001:
            cell.timer = self._loop.after(missing, self._on_wall)
            return
        cell.killed_by = "timeout"
        if self.interpreter is not None and self.interpreter.pidfd is not None:
            send_signal(self.interpreter.pidfd, signal.SIGINT)
            cell.timer = self._loop.after(_GRACE_SECONDS, lambda: self.kill("timeout"))

    def _starved(self) -> float:
        schedstat = self.interpreter.schedstat if self.interpreter else None
        return 0.0 if schedstat is None else starved_seconds(schedstat)

    def _on_output(self, interpreter: Interpreter, output: Capture) -> None:
        output.read()
        if output.at_end:
            self._loop.forget(output.read_end)
        elif output.is_flood:
            self.kill("output_limit")

    def _answer_cell(self, interpreter: Interpreter, cell: Cell) -> None:
        try:
            said = read_answer(cell.payload)
        except FrameError:
            self.kill("the interpreter spoke garbage")
            return
        status = "ok" if said["error"] is None else "error"
        if cell.killed_by == "timeout":
            status = "timeout"
        self._finish_cell(interpreter, cell, {"status": status, "value": said["value"], "error": said["error"]})

    def _finish_cell(self, interpreter: Interpreter, cell: Cell, fields: dict[str, Any]) -> None:
        self._cell = None
        cell.timer.cancel()
        for output in interpreter.outputs:
            output.drain()
        os.close(cell.payload)
        stdout, stderr = interpreter.outputs
        cell.answer(
            {
                **fields,
                **stdout.take("stdout"),
                **stderr.take("stderr"),
                "wall_seconds": time.monotonic() - cell.started_at,
                "session": {"id": self.id, "epoch": self.epoch, "num_cells": self.num_cells},
            }
        )

    def _release(self, interpreter: Interpreter) -> None:
        """It is dead or about to be; whoever waits for it is told."""
        self.interpreter = None
        self.epoch += 1
        self.num_cells = 0
        self._loop.forget(interpreter.channel.fileno())
        interpreter.channel.close()
        interpreter.shared.num_users -= 1
        if interpreter.shared.num_users == 0:
            interpreter.shared.pod.end()
        if self._cell is not None:
            reason = self._cell.killed_by or ""
            outcome = {"status": "session_killed", "error": KILL_REASONS.get(reason, reason)}
            self._finish_cell(interpreter, self._cell, {"lost": reason} if reason == "evicted" else outcome)
        for output in interpreter.outputs:
            output.drain()
            self._loop.forget(output.read_end)
            os.close(output.read_end)
        if interpreter.pidfd is not None:
            self._loop.forget(interpreter.pidfd)
            os.close(interpreter.pidfd)
        if interpreter.schedstat is not None:
            os.close(interpreter.schedstat)
        self._fail_hello(interpreter)

    def _fail_hello(self, interpreter: Interpreter) -> None:
        failure = self.last_reason
        if interpreter.process is not None:
            said = interpreter.outputs[1].take("stderr")["stderr"]
            failure = interpreter.process.failure() or said or failure
            interpreter.process.close()
        answer, self._on_hello = self._on_hello, None
        if answer is not None:
            answer({"failure": f"the session's interpreter did not start: {failure}"})
