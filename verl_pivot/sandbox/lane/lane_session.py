"""A session as its lane sees it: an interpreter that keeps its variables between cells, and can be forked.

A cell that does not end in time is interrupted; if that does not help, its interpreter is killed. The session then
goes on in a fresh interpreter with the next epoch, and a request for the old epoch learns that its variables are gone.
"""

import marshal
import os
import signal
import time
from functools import partial

from verl_pivot.sandbox.lane.capture import Capture, take_output
from verl_pivot.sandbox.lane.event_loop import EventLoop
from verl_pivot.sandbox.lane.fd_passing import memory_file, send
from verl_pivot.sandbox.lane.frames import FrameError
from verl_pivot.sandbox.lane.interpreters import (
    KILL_REASONS,
    Interpreter,
    RunningCell,
    SharedPod,
    new_channel,
    read_words,
    receive_message,
)
from verl_pivot.sandbox.lane.pod_process import PodProcess
from verl_pivot.sandbox.lane.pods import Pod, PodShape, send_signal
from verl_pivot.sandbox.lane.procfs import open_schedstat
from verl_pivot.sandbox.lane.running_task import resource_limits
from verl_pivot.sandbox.lane.zygote_handle import ANSWER_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from verl_pivot.sandbox.lane.interpreters import OnCellAnswer, OnStarted
    from verl_pivot.sandbox.lane.messages import Done, LimitFields, OutputFields, Refusal
    from verl_pivot.sandbox.lane.process_messages import CellsTask

_GRACE_SECONDS = 0.5
"""Seconds from the interrupt of a cell to the end of its interpreter."""


class LaneSession:
    """One session: at most one interpreter, one epoch, one cell at a time."""

    def __init__(self, id: str, limits: "LimitFields", shape: PodShape, loop: EventLoop, *, has_proc: bool) -> None:
        self.id = id
        self.limits = limits
        self.shape = shape
        self.epoch = 1
        self.num_cells = 0
        self.interpreter: Interpreter | None = None
        self._loop = loop
        self._has_proc = has_proc
        self._cell: RunningCell | None = None
        self._on_started: OnStarted | None = None
        """Receiver of the answer to the request that an interpreter is started for."""
        self._forks: dict[int, LaneSession] = {}
        self._num_forks = 0
        self.last_reason = "the interpreter ended"
        """Reason for which the latest interpreter is gone."""

    @property
    def pid(self) -> int | None:
        return self.interpreter.pid if self.interpreter else None

    @property
    def is_branch(self) -> bool:
        """Whether its interpreter was forked from another session's interpreter, and not by a zygote."""
        return self.interpreter is not None and self.interpreter.process is None

    @property
    def shared_bytes(self) -> int:
        return self._zygote.resident_bytes

    @property
    def is_busy(self) -> bool:
        return self._cell is not None or self._on_started is not None

    @property
    def pod(self) -> Pod | None:
        return self.interpreter.shared.pod if self.interpreter else None

    def start(self, process: PodProcess, answer: "OnStarted") -> None:
        """Begin an interpreter in the new pod of `process`."""
        ours, theirs = new_channel()
        outputs = self._captures()
        task: CellsTask = {"kind": "cells", "files": {}, "limits": resource_limits(self.limits)}
        self._on_started = answer
        self._zygote = process.zygote
        shared = SharedPod(process.pod)
        interpreter = Interpreter(shared, channel=ours, outputs=outputs, on_end=self._on_end, process=process)
        self._adopt(interpreter)
        process.give(interpreter, task, stdin=b"", outputs=outputs, control=theirs.fileno())
        theirs.close()

    def run_cell(self, code: str, wall_seconds: float, answer: "OnCellAnswer") -> None:
        """Run one cell in the interpreter, which is idle."""
        assert self.interpreter is not None, "a cell needs an interpreter"
        self.num_cells += 1
        payload = memory_file(marshal.dumps((code, self.limits["output_bytes"])))
        self._cell = RunningCell(
            answer=answer,
            payload=payload,
            wall_seconds=wall_seconds,
            started_at=time.monotonic(),
            starved_before=self._starved(),
            timer=self._loop.after(wall_seconds, self._on_wall),
        )
        self._send(("cell", self.num_cells), (payload,))

    def fork(self, branch_id: str, answer: "OnStarted") -> "LaneSession":
        """A new session that goes on from here, in a copy of the interpreter."""
        assert self.interpreter is not None, "a fork needs an interpreter"
        branch = LaneSession(branch_id, self.limits, self.shape, self._loop, has_proc=self._has_proc)
        ours, theirs = new_channel()
        outputs = self._captures()
        branch._on_started = answer
        branch._zygote = self._zygote
        branch.num_cells = self.num_cells
        shared = self.interpreter.shared
        shared.num_users += 1
        branch._adopt(Interpreter(shared, channel=ours, outputs=outputs, on_end=branch._on_end))
        self._num_forks += 1
        self._forks[-self._num_forks] = branch
        self._send(("fork", -self._num_forks), (theirs.fileno(), *(output.write_end for output in outputs)))
        theirs.close()
        for output in outputs:
            os.close(output.write_end)
        return branch

    def kill(self, reason: str) -> None:
        """End the interpreter; the session can go on in a fresh one, with the next epoch."""
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
            self._loop.on_readable(output.read_end, partial(self._on_output, output))
        self._loop.after(ANSWER_SECONDS, partial(self._check_started, interpreter))

    def _check_started(self, interpreter: Interpreter) -> None:
        if interpreter is self.interpreter and interpreter.pidfd is None:
            self.kill("the interpreter does not start")

    def _send(self, message: tuple[str, int], fds: tuple[int, ...]) -> None:
        assert self.interpreter is not None, "a message needs an interpreter"
        try:
            send(self.interpreter.channel, message, fds)
        except OSError as error:
            self.kill(f"the interpreter's channel is broken: {error.strerror}")

    def _on_message(self) -> None:
        interpreter = self.interpreter
        assert interpreter is not None, "an interpreter that has ended is not read"
        try:
            message = receive_message(interpreter.channel)
        except (OSError, FrameError) as error:
            if interpreter.pidfd is None:
                self._loop.forget(interpreter.channel.fileno())  # its zygote, or its parent, will report why
                return
            self.kill(f"the interpreter ended: {error}")
            return
        if interpreter.pidfd is None:
            self._on_first_message(interpreter, message.pid)
        elif message.number in self._forks:
            branch = self._forks.pop(message.number)
            if message.refusal is not None:
                branch.refuse(message.refusal)
        elif self._cell is not None and message.number == self.num_cells:
            self._answer_cell(interpreter, self._cell)

    def _on_first_message(self, interpreter: Interpreter, pid: int) -> None:
        try:
            interpreter.pidfd, interpreter.pid = os.pidfd_open(pid), pid
        except ProcessLookupError:
            self.kill("the interpreter ended")
            return
        interpreter.schedstat = open_schedstat(pid) if self._has_proc else None
        self._loop.on_readable(interpreter.pidfd, partial(self._on_end, interpreter, "the interpreter ended"))
        self._answer_start({"kind": "done"})

    def refuse(self, reason: str) -> None:
        """End this branch, which the interpreter of its parent refused to fork."""
        self._answer_start({"kind": "refused", "reason": f"the session cannot be forked: {reason}"})
        self.kill(reason)

    def _answer_start(self, outcome: "Done | Refusal") -> None:
        """Answer the request that the interpreter is started for, if that still waits."""
        answer, self._on_started = self._on_started, None
        if answer is not None:
            answer(outcome)

    def _on_wall(self) -> None:
        """Interrupt the cell for its wall limit, unless it is granted the time in which it waited for a core."""
        cell = self._cell
        assert cell is not None, "the timer of a cell that has ended is cancelled"
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
        return self.interpreter.starved_seconds if self.interpreter else 0.0

    def _on_output(self, output: Capture) -> None:
        output.read()
        if output.at_end:
            self._loop.forget(output.read_end)
        elif output.is_flood:
            self.kill("output_limit")

    def _answer_cell(self, interpreter: Interpreter, cell: RunningCell) -> None:
        try:
            words = read_words(cell.payload)
        except FrameError:
            self.kill("the interpreter's answer to the cell could not be read")
            return
        ended = "ok" if words["error"] is None else "error"
        status = "timeout" if cell.killed_by == "timeout" else ended
        self._finish_cell(interpreter, cell, status, value=words["value"], error=words["error"])

    def _finish_cell(
        self, interpreter: Interpreter, cell: RunningCell, status: str, *, value: str | None, error: str | None
    ) -> None:
        cell.answer(
            {
                "kind": "cell",
                **self._close_cell(interpreter, cell),
                "status": status,
                "value": value,
                "error": error,
                "wall_seconds": time.monotonic() - cell.started_at,
                "session": {"id": self.id, "epoch": self.epoch, "num_cells": self.num_cells},
            }
        )

    def _close_cell(self, interpreter: Interpreter, cell: RunningCell) -> "OutputFields":
        """Forget the cell, which has ended; returns its output."""
        self._cell = None
        cell.timer.cancel()
        for output in interpreter.outputs:
            output.drain()
        os.close(cell.payload)
        return take_output(interpreter.outputs)

    def _answer_killed_cell(self, interpreter: Interpreter, cell: RunningCell) -> None:
        reason = cell.killed_by or ""
        if reason == "evicted":
            self._close_cell(interpreter, cell)
            cell.answer({"kind": "lost", "reason": reason})
        else:
            error = KILL_REASONS.get(reason, reason)
            self._finish_cell(interpreter, cell, "session_killed", value=None, error=error)

    def _release(self, interpreter: Interpreter) -> None:
        """Forget an interpreter that has ended or is about to, and answer the requests that wait for it."""
        self.interpreter = None
        self.epoch += 1
        self.num_cells = 0
        self._loop.forget(interpreter.channel.fileno())
        interpreter.channel.close()
        interpreter.shared.num_users -= 1
        if interpreter.shared.num_users == 0:
            interpreter.shared.pod.end()
        if self._cell is not None:
            self._answer_killed_cell(interpreter, self._cell)
        for output in interpreter.outputs:
            output.drain()
            self._loop.forget(output.read_end)
            os.close(output.read_end)
        if interpreter.pidfd is not None:
            self._loop.forget(interpreter.pidfd)
            os.close(interpreter.pidfd)
        if interpreter.schedstat is not None:
            os.close(interpreter.schedstat)
        failure = self.last_reason
        if interpreter.process is not None:
            failure = interpreter.process.failure() or interpreter.outputs[1].text or failure
            interpreter.process.close()
        self._answer_start({"kind": "failed", "reason": f"the session's interpreter did not start: {failure}"})
