"""A session as its lane sees it: an interpreter that keeps its variables between cells, and can be forked.

A cell that does not end in time is interrupted; if that does not help, its interpreter is killed. The session then
goes on in a fresh interpreter with the next epoch, and a request for the old epoch learns that its variables are gone.
"""

import os
import signal
import time
from functools import partial

from verl_pivot.sandbox.lane.answer_fields import NO_OUTPUT, cell_answer
from verl_pivot.sandbox.lane.answers import AnswerError
from verl_pivot.sandbox.lane.call_receiver import CallReceiver
from verl_pivot.sandbox.lane.capture import Capture, take_output
from verl_pivot.sandbox.lane.event_loop import EventLoop
from verl_pivot.sandbox.lane.fd_passing import send
from verl_pivot.sandbox.lane.fork_reply import ForkReply
from verl_pivot.sandbox.lane.interpreters import KILL_REASONS, Interpreter, SharedPod, new_channel, receive_hello
from verl_pivot.sandbox.lane.pod_process import PodProcess
from verl_pivot.sandbox.lane.pods import Pod, PodShape, send_signal
from verl_pivot.sandbox.lane.procfs import open_schedstat
from verl_pivot.sandbox.lane.running_cell import RunningCell
from verl_pivot.sandbox.lane.running_task import resource_limits
from verl_pivot.sandbox.lane.terminal import TerminalEnd
from verl_pivot.sandbox.lane.zygote_handle import ANSWER_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from verl_pivot.sandbox.lane.interpreters import OnCellAnswer, OnStarted
    from verl_pivot.sandbox.lane.messages import (
        CellAnswer,
        CellRequest,
        Done,
        FunctionFields,
        LimitFields,
        OutputFields,
        Refusal,
        ReplyRequest,
        SessionFields,
        TerminalFields,
    )
    from verl_pivot.sandbox.lane.process_messages import CellsTask, ResourceLimits, StartingPlace

_OWN_REASONS = ("memory_limit", "output_limit")
"""Reasons for a kill that are the session's own fault: limits that it exceeded."""
_SYSTEM_REASONS = ("evicted", "no_reply", "pod_ended")
"""Reasons for a kill that are not the session's fault."""


class LaneSession:
    """One session: at most one interpreter, one epoch, one cell at a time."""

    def __init__(
        self,
        id: str,
        limits: "LimitFields",
        shape: PodShape,
        loop: EventLoop,
        *,
        place: "StartingPlace",
        terminal: "TerminalFields | None",
        functions: "list[FunctionFields]",
        total_cpu_seconds: int,
    ) -> None:
        self.id = id
        self.terminal = terminal
        self.limits = limits
        self.shape = shape
        self.place = place
        self.functions = functions
        self.epoch = 1
        self.num_cells = 0
        self.interpreter: Interpreter | None = None
        self._loop = loop
        self._total_cpu_seconds = total_cpu_seconds
        self._cell: RunningCell | None = None
        self._on_started: OnStarted | None = None
        """Receiver of the answer to the request for which an interpreter is being started."""
        self.last_reason = "the interpreter ended"
        """Reason why the latest interpreter is gone."""
        self._untold_loss: str | None = None
        """The same reason, if the session's own processes ended the interpreter between two cells, and no cell has been
        told yet."""

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
    def was_ended_by_system(self) -> bool:
        """Whether the latest interpreter was ended through no fault of the session, as to make room for others."""
        return self.last_reason in [KILL_REASONS[reason] for reason in _SYSTEM_REASONS]

    @property
    def pod(self) -> Pod | None:
        return self.interpreter.shared.pod if self.interpreter else None

    def start(self, process: PodProcess, answer: "OnStarted") -> None:
        """Begin an interpreter in the new pod of `process`."""
        ours, theirs = new_channel()
        outputs = self._captures()
        limits: ResourceLimits = {**resource_limits(self.limits), "cpu_seconds": self._total_cpu_seconds}
        task: CellsTask = {
            "kind": "cells",
            "files": {},
            "limits": limits,
            "place": self.place,
            "terminal": self.terminal,
            "functions": self.functions,
        }
        self._on_started = answer
        self._zygote = process.zygote
        shared = SharedPod(process.pod)
        interpreter = Interpreter(shared, channel=ours, outputs=outputs, on_end=self._on_end, process=process)
        interpreter.total_cpu_seconds = self._total_cpu_seconds
        self._adopt(interpreter)
        if self.terminal is None:
            process.give(interpreter, task, stdin=b"", outputs=outputs, control=theirs.fileno())
        else:
            interpreter.terminal = TerminalEnd(self._loop, outputs[0], partial(self._on_output, outputs[0]))
            with interpreter.terminal.far_end as far_end:
                control, terminal = theirs.fileno(), far_end.fileno()
                process.give(interpreter, task, stdin=b"", outputs=outputs, control=control, terminal=terminal)
        theirs.close()

    def run_cell(self, request: "CellRequest", answer: "OnCellAnswer") -> None:
        """Run one cell in the idle interpreter; `answer` also receives the cell's calls of host functions."""
        assert self.interpreter is not None, "a cell needs an interpreter"
        self.num_cells += 1
        self.interpreter.used_at = time.monotonic()
        calls, pid = None, self.interpreter.pid
        if request["calls"] is not None and pid is not None:
            names = frozenset(each["name"] for each in self.functions)
            calls = CallReceiver(self._loop, pid, request["calls"], names, on_call=answer, kill=self.kill)
        cell = self._cell = RunningCell(
            self._loop,
            self.interpreter,
            answer,
            wall_seconds=request["wall_seconds"],
            cpu_seconds=self.limits["cpu_seconds"],
            max_bytes=self.limits["output_bytes"],
            calls=calls,
            on_texts=self._on_texts,
            kill=self.kill,
        )
        try:
            cell.send(self.num_cells, request["code"])
        except OSError as error:
            self.kill(f"the interpreter's channel is broken: {error.strerror}")

    def reply(self, request: "ReplyRequest") -> None:
        """Reply to a call of the running cell; ignored if the cell has ended."""
        if self._cell is not None and self._cell.calls is not None:
            self._cell.calls.reply(request["call"], request["value"], request["error"])

    def fork(self, branch_id: str, answer: "OnStarted") -> "LaneSession":
        """A new session that goes on from here, in a copy of the interpreter."""
        assert self.interpreter is not None, "a fork needs an interpreter"
        branch = LaneSession(
            branch_id,
            self.limits,
            self.shape,
            self._loop,
            place=self.place,
            terminal=None,
            functions=self.functions,
            total_cpu_seconds=self._total_cpu_seconds,
        )
        ours, theirs = new_channel()
        outputs = self._captures()
        branch._on_started = answer
        branch._zygote = self._zygote
        branch.num_cells = self.num_cells
        shared = self.interpreter.shared
        shared.num_users += 1
        branch._adopt(Interpreter(shared, channel=ours, outputs=outputs, on_end=branch._on_end))
        reply = ForkReply(self._loop, self.interpreter.pid, branch.refuse)
        fds = (reply.far_end.fileno(), theirs.fileno(), *(output.write_end for output in outputs))
        try:
            send(self.interpreter.channel, ("fork", self.num_cells), fds)
        except OSError as error:
            self.kill(f"the interpreter's channel is broken: {error.strerror}")
        reply.far_end.close()
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
        if self._cell is None and reason in _OWN_REASONS:
            self._untold_loss = KILL_REASONS[reason]
        self.last_reason = KILL_REASONS.get(reason, reason)
        if self.interpreter.shared.num_users > 1 and self.interpreter.pidfd is not None:
            send_signal(self.interpreter.pidfd, signal.SIGKILL)
        self._release(self.interpreter)

    def _on_end(self, interpreter: Interpreter, reason: str) -> None:
        if interpreter is not self.interpreter:
            return
        if not interpreter.shared.pod.is_alive and reason != "evicted":
            reason = "pod_ended"
        if self._cell is None and interpreter.pidfd is not None and reason not in _SYSTEM_REASONS:
            self._untold_loss = reason
        self.kill(reason)

    def _captures(self) -> tuple[Capture, Capture]:
        return Capture(self.limits["output_bytes"]), Capture(self.limits["output_bytes"])

    def _adopt(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self._loop.on_readable(interpreter.channel.fileno(), self._on_channel)
        for output in interpreter.outputs:
            self._loop.on_readable(output.read_end, partial(self._on_output, output))
        self._loop.after(ANSWER_SECONDS, partial(self._check_started, interpreter))

    def _check_started(self, interpreter: Interpreter) -> None:
        if interpreter is self.interpreter and interpreter.pidfd is None:
            self.kill("the interpreter does not start")

    def _on_channel(self) -> None:
        """Take the hello of an interpreter, or learn that it ended before."""
        interpreter = self.interpreter
        assert interpreter is not None, "an interpreter that has ended is not read"
        self._loop.forget(interpreter.channel.fileno())
        try:
            pid = receive_hello(interpreter.channel)
        except (OSError, AnswerError):
            return  # its zygote, or its parent, will report why
        self._on_hello(interpreter, pid)

    def _on_hello(self, interpreter: Interpreter, pid: int) -> None:
        try:
            interpreter.pidfd, interpreter.pid = os.pidfd_open(pid), pid
        except ProcessLookupError:
            self.kill("the interpreter ended")
            return
        interpreter.schedstat = open_schedstat(pid) if self.shape.has_proc else None
        self._loop.on_readable(interpreter.pidfd, partial(self._on_process_end, interpreter, interpreter.pidfd))
        self._answer_start({"kind": "done"})

    def _on_process_end(self, interpreter: Interpreter, pidfd: int) -> None:
        self._loop.forget(pidfd)
        interpreter.expect_end(self._loop, "the interpreter ended")

    def refuse(self, reason: str) -> None:
        """End this branch, which the interpreter of its parent refused to fork; harmless if it has said hello."""
        if self._on_started is None:
            return
        self._answer_start({"kind": "refused", "reason": f"the session cannot be forked: {reason}"})
        self.kill(reason)

    def _answer_start(self, outcome: "Done | Refusal") -> None:
        """Answer the request for which the interpreter is started, if the request still waits."""
        answer, self._on_started = self._on_started, None
        if answer is not None:
            answer(outcome)

    def _on_output(self, output: Capture) -> None:
        output.read()
        if output.at_end:
            self._loop.forget(output.read_end)
        elif output.is_flood:
            self.kill("output_limit")

    def _on_texts(self, value: str | None, error: str | None) -> None:
        interpreter, cell = self.interpreter, self._cell
        assert interpreter is not None, "an interpreter that has ended is not read"
        assert cell is not None, "a cell that has ended is not read"
        if any(output.drained_a_flood() for output in interpreter.outputs):
            self.kill("output_limit")
            return
        ended = "ok" if error is None else "error"
        self._finish_cell(interpreter, cell, cell.killed_by or ended, value=value, error=error)

    def _finish_cell(
        self, interpreter: Interpreter, cell: RunningCell, status: str, *, value: str | None, error: str | None
    ) -> None:
        wall_seconds = cell.wall_seconds
        output = self._close_cell(interpreter, cell)
        cell.answer(
            cell_answer(
                self._state,
                output,
                status=status,
                value=value,
                error=error,
                wall_seconds=wall_seconds,
                had_no_core=cell.had_no_core,
            )
        )

    @property
    def _state(self) -> "SessionFields":
        return {"id": self.id, "epoch": self.epoch, "num_cells": self.num_cells}

    def tell_loss(self, epoch: int) -> "CellAnswer | None":
        """Answer to a cell that comes after the session's own processes ended the interpreter of `epoch`.

        None if the interpreter ended in another way, or a cell was told before.
        """
        loss, self._untold_loss = self._untold_loss, None
        if loss is None or epoch != self.epoch - 1:
            return None
        return cell_answer(self._state, NO_OUTPUT, status="session_killed", value=None, error=loss, wall_seconds=0.0)

    def _close_cell(self, interpreter: Interpreter, cell: RunningCell) -> "OutputFields":
        """Forget the cell, which has ended; returns its output."""
        self._cell = None
        cell.close()
        return take_output(interpreter.outputs)

    def _answer_killed_cell(self, interpreter: Interpreter, cell: RunningCell) -> None:
        reason = cell.killed_by or ""
        if reason in _SYSTEM_REASONS:
            self._close_cell(interpreter, cell)
            cell.answer({"kind": "lost", "reason": KILL_REASONS[reason]})
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
        interpreter.drain()
        if self._cell is not None:
            self._answer_killed_cell(interpreter, self._cell)
        interpreter.close(self._loop)
        failure = self.last_reason
        if interpreter.process is not None:
            failure = interpreter.process.failure() or interpreter.outputs[1].text or failure
            interpreter.process.close()
        self._answer_start({"kind": "failed", "reason": f"the session's interpreter did not start: {failure}"})
