"""SessionRequest -> LaneAnswer: the sessions of one lane, and requests that wait until an interpreter starts."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from verl_pivot.sandbox.lane.capture import Capture
from verl_pivot.sandbox.lane.event_loop import EventLoop
from verl_pivot.sandbox.lane.files import decode_files
from verl_pivot.sandbox.lane.files_reply import FilesReply
from verl_pivot.sandbox.lane.lane_session import LaneSession
from verl_pivot.sandbox.lane.output_feed import OutputFeed
from verl_pivot.sandbox.lane.pod_process import PodProcess
from verl_pivot.sandbox.lane.pods import Pod, pod_shape
from verl_pivot.sandbox.lane.running_task import Ending, RunningTask, resource_limits
from verl_pivot.sandbox.lane.runs import FILES_SECONDS
from verl_pivot.sandbox.lane.spares import Spares
from verl_pivot.sandbox.lane.zygote_handle import ZygoteHandle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    from verl_pivot.sandbox.lane.interpreters import OnStarted
    from verl_pivot.sandbox.lane.messages import (
        Done,
        FetchedFields,
        FilesAnswer,
        FilesRequest,
        LaneAnswer,
        OpenRequest,
        Refusal,
        SessionRequest,
        UseRequest,
    )
    from verl_pivot.sandbox.lane.process_messages import FilesTask

    OnAnswer: TypeAlias = Callable[[LaneAnswer], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """An interpreter that is still to be started."""

    session: LaneSession
    answer: "OnStarted"


class PodOfSessions:
    """The sessions that share a pod, in the form that the scheduler watches."""

    def __init__(self, sessions: list[LaneSession]) -> None:
        self._sessions = sessions
        self._pod = next(session.pod for session in sessions if session.pod is not None)

    @property
    def shim_pid(self) -> int:
        return self._pod.pid

    @property
    def buffer_bytes(self) -> int:
        return self._pod.buffer_bytes

    @property
    def pid(self) -> int | None:
        """The interpreter that a zygote forked, if it lives; its branches are children of the shim."""
        return next((session.pid for session in self._sessions if not session.is_branch), None)

    @property
    def memory_bytes(self) -> int:
        return self._sessions[0].limits["memory_bytes"]

    @property
    def shared_bytes(self) -> int:
        return self._sessions[0].shared_bytes

    def kill(self, reason: str) -> None:
        for session in self._sessions:
            session.kill(reason)


class SessionRequests:
    """Serves the requests about the sessions of one lane."""

    def __init__(
        self,
        loop: EventLoop,
        spares: Spares,
        zygote: ZygoteHandle,
        *,
        has_proc: bool,
        folders: list[str],
        cpu_seconds: int,
        on_start: Callable[[], None],
    ) -> None:
        """Begin without sessions.

        Args:
            loop: The lane's event loop.
            spares: Source of processes.
            zygote: The zygote that forks interpreters.
            has_proc: Whether pods mount /proc.
            folders: Folders of the lane that a session sees only if it asks for them.
            cpu_seconds: CPU seconds that each process of a session may use in its whole life.
            on_start: Called after an interpreter was started.
        """
        self._loop = loop
        self._spares = spares
        self._zygote = zygote
        self._has_proc = has_proc
        self._folders = folders
        self._cpu_seconds = cpu_seconds
        self._on_start = on_start
        self._sessions: dict[str, LaneSession] = {}
        self._starts: deque[_Start] = deque()

    @property
    def living(self) -> list["PodOfSessions"]:
        """Pods with their sessions: a session and its branches share one memory limit."""
        pods: dict[int, list[LaneSession]] = {}
        for session in self._sessions.values():
            if session.pod is not None:
                pods.setdefault(session.pod.pid, []).append(session)
        return [PodOfSessions(sessions) for sessions in pods.values()]

    def serve(self, request: "SessionRequest", answer: "OnAnswer", feed: OutputFeed | None = None) -> None:
        """Serve one request; `answer` is called once, now or later, and before that with each call of a cell.

        `feed` takes the output of a cell before its answer.
        """
        if request["op"] == "open":
            self._open(request, answer)
            return
        session = self._sessions.get(request["session"])
        if session is None and request["op"] == "reply":
            return
        if session is None:
            answer({"kind": "lost", "reason": "the session does not exist any more on this node"})
        elif request["op"] == "close":
            del self._sessions[session.id]
            session.kill("it was closed")
            answer({"kind": "done"})
        elif request["op"] == "abandon":
            session.kill("its cell was cancelled")
            self._drop_starts(session)
            answer({"kind": "done"})
        elif request["op"] == "reply":
            session.reply(request)
        else:
            self._use(session, request, answer, feed)

    def pump(self) -> None:
        """Start interpreters once their zygote is ready."""
        while self._starts and self._zygote.is_ready:
            start = self._starts.popleft()
            if self._sessions.get(start.session.id) is not start.session:
                start.answer({"kind": "failed", "reason": "the session was closed before it started"})
                continue
            try:
                process = self._spares.take(self._zygote, start.session.shape)
            except OSError as error:
                start.answer({"kind": "failed", "reason": f"cannot create a process: {error}"})
                continue
            start.session.start(process, start.answer)
            self._spares.prepare(self._zygote, start.session.shape)
            self._on_start()

    def _drop_starts(self, session: LaneSession) -> None:
        """Forget the requests of a session that wait until an interpreter starts."""
        dropped = [start for start in self._starts if start.session is session]
        self._starts = deque(start for start in self._starts if start.session is not session)
        for start in dropped:
            start.answer({"kind": "failed", "reason": "its cell was cancelled"})

    def _open(self, request: "OpenRequest", answer: "OnAnswer") -> None:
        shape = pod_shape(request, folders=self._folders, has_proc=self._has_proc)
        session = LaneSession(
            request["session"],
            request["limits"],
            shape,
            self._loop,
            place={"environment": request["environment"], "folder": request["folder"]},
            terminal=request["terminal"],
            functions=request["functions"],
            total_cpu_seconds=self._cpu_seconds,
        )
        self._sessions[session.id] = session
        self._starts.append(_Start(session=session, answer=partial(self._answer_open, session, answer)))
        self.pump()

    def _answer_open(self, session: LaneSession, answer: "OnAnswer", outcome: "Done | Refusal") -> None:
        process = session.interpreter.process if session.interpreter is not None else None
        if outcome["kind"] == "done" and process is not None:
            answer({"kind": "opened", "is_prewarmed": process.was_ahead})
        else:
            answer(outcome)

    def _use(self, session: LaneSession, request: "UseRequest", answer: "OnAnswer", feed: OutputFeed | None) -> None:
        """Serve a request that needs the interpreter; a session that lost its interpreter gets a fresh one first."""
        if session.is_busy:
            answer({"kind": "refused", "reason": "the session is busy with another cell: await that cell first"})
        elif request["epoch"] != session.epoch:
            told = session.tell_loss(request["epoch"]) if request["op"] == "cell" else None
            answer(told or {"kind": "lost", "reason": session.last_reason})
        elif session.interpreter is None:
            on_started = partial(self._use_started, session, request, answer, feed)
            self._starts.append(_Start(session=session, answer=on_started))
            self.pump()
        else:
            self._use_idle(session, request, answer, feed)

    def _use_started(
        self,
        session: LaneSession,
        request: "UseRequest",
        answer: "OnAnswer",
        feed: OutputFeed | None,
        outcome: "Done | Refusal",
    ) -> None:
        if outcome["kind"] == "done":
            self._use_idle(session, request, answer, feed)
        else:
            answer(outcome)

    def _use_idle(
        self, session: LaneSession, request: "UseRequest", answer: "OnAnswer", feed: OutputFeed | None
    ) -> None:
        if request["op"] == "cell":
            if feed is not None and session.interpreter is not None:
                feed.follow(session.interpreter.outputs)
            session.run_cell(request, answer)
        elif session.terminal is not None and request["op"] == "fork":
            answer({"kind": "refused", "reason": "a session with a terminal cannot be forked: open it without one"})
        elif request["op"] == "fork":
            branch_id = request["branch"]
            self._sessions[branch_id] = session.fork(branch_id, partial(self._answer_fork, branch_id, answer))
        else:
            self._move_files(session, request, answer)

    def _answer_fork(self, branch_id: str, answer: "OnAnswer", outcome: "Done | Refusal") -> None:
        if outcome["kind"] != "done":
            self._sessions.pop(branch_id, None)
        answer(outcome)

    def _move_files(self, session: LaneSession, request: "FilesRequest", answer: "OnAnswer") -> None:
        """Write and read files with the session's own rights, beside its interpreter."""
        pod = session.pod
        assert pod is not None, "files need the pod of a session"
        task: FilesTask = {
            "kind": "files",
            "is_alone": False,
            "files": decode_files(request["files"]),
            "fetch": request["fetch"],
            "max_bytes": request["max_file_bytes"],
            "limits": resource_limits(session.limits),
        }
        process = PodProcess(self._loop, self._zygote, pod, is_first=False)

        reply = FilesReply(self._loop, [*request["files"]], request["fetch"], request["max_file_bytes"])

        def on_end(ending: Ending) -> None:
            answer(answer_of_move(session, pod, reply.close(ending), ending))

        RunningTask(
            self._loop,
            process,
            task,
            wall_seconds=FILES_SECONDS,
            stdin=b"",
            outputs=(Capture(0), Capture(0)),
            on_end=on_end,
            end_pod=partial(session.kill, "its files could not be moved in time"),
            has_proc=self._has_proc,
            control=reply.control,
        )
        reply.on_sent()


def answer_of_move(session: LaneSession, pod: Pod, moved: "FetchedFields", ending: Ending) -> "FilesAnswer | Refusal":
    """Answer after the helper in `pod` has ended; where the system failed, the session ends and is lost."""
    failure = ending.failure if ending.is_systems else "the machine had no core" if ending.had_no_core else None
    if failure is not None:
        session.kill(f"its files could not be moved: {failure}")
    if failure is not None or (session.pod is not pod and session.was_ended_by_system):
        return {"kind": "lost", "reason": session.last_reason}
    return {"kind": "files", **moved}
