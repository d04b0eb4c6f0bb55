"""Requests about sessions -> answers; which sessions a lane holds."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from verl_pivot.lane.interpreters import Answer
from verl_pivot.lane.jobs import Ending, Job
from verl_pivot.lane.loop import Loop
from verl_pivot.lane.outputs import Capture
from verl_pivot.lane.pods import PodShape
from verl_pivot.lane.processes import Process
from verl_pivot.lane.runs import decoded, fetched_fields, resource_limits
from verl_pivot.lane.sessions import Session
from verl_pivot.lane.spares import Spares
from verl_pivot.lane.zygotes import Zygote

_FILES_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """An interpreter that waits for a pod and its zygote."""

    session: Session
    answer: Answer


class PodOfSessions:
    """The sessions that share a pod, as the scheduler watches them."""

    def __init__(self, sessions: list[Session]) -> None:
        self._sessions = sessions
        self._pod = next(session.pod for session in sessions if session.pod is not None)

    @property
    def shim_pid(self) -> int:
        return self._pod.pid

    @property
    def pid(self) -> int | None:
        """The interpreter that a zygote forked, if it lives; its branches belong to the shim."""
        return next((session.pid for session in self._sessions if not session.is_branch), None)

    @property
    def memory_bytes(self) -> int:
        size: int = self._sessions[0].limits["memory_bytes"]
        return size

    @property
    def shared_bytes(self) -> int:
        return self._sessions[0].shared_bytes

    def kill(self, reason: str) -> None:
        for session in self._sessions:
            session.kill(reason)


class SessionTable:
    """Answers {"missing"}, {"busy"}, {"lost": why, "epoch"}, {"refused": why}, {"failure": why}, or what was asked."""

    def __init__(
        self, loop: Loop, spares: Spares, zygote: Zygote, *, has_proc: bool, on_start: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._spares = spares
        self._zygote = zygote
        self._has_proc = has_proc
        self._on_start = on_start
        self._sessions: dict[str, Session] = {}
        self._starts: deque[_Start] = deque()

    @property
    def living(self) -> list["PodOfSessions"]:
        """Pods, each with the sessions in it: a session and its branches use one memory limit together."""
        pods: dict[int, list[Session]] = {}
        for session in self._sessions.values():
            if session.pod is not None:
                pods.setdefault(session.pod.pid, []).append(session)
        return [PodOfSessions(sessions) for sessions in pods.values()]

    def serve(self, message: dict[str, Any], shape: PodShape, answer: Answer) -> None:
        """Serve one request; `answer` is called once, now or later."""
        session = self._sessions.get(message["session"])
        if message["op"] == "open":
            session = Session(message["session"], message["limits"], shape, self._loop, has_proc=self._has_proc)
            self._sessions[session.id] = session
            self._starts.append(_Start(session=session, answer=answer))
            self.pump()
        elif session is None:
            answer({"missing": True})
        elif message["op"] == "close":
            del self._sessions[session.id]
            session.kill("it was closed")
            answer({})
        elif message["op"] == "abandon":
            session.kill("its cell was cancelled")
            answer({})
        elif session.is_busy:
            answer({"busy": True})
        elif message["epoch"] != session.epoch:
            answer({"lost": session.last_reason, "epoch": session.epoch})
        elif session.interpreter is None:
            again = partial(self._serve_started, session, message, answer)
            self._starts.append(_Start(session=session, answer=again))
            self.pump()
        else:
            self._serve_idle(session, message, answer)

    def pump(self) -> None:
        """Start interpreters once their zygote is ready."""
        while self._starts and self._zygote.is_ready:
            start = self._starts.popleft()
            if self._sessions.get(start.session.id) is not start.session:
                start.answer({"failure": "it was closed before it began"})
                continue
            try:
                process = self._spares.take(self._zygote, start.session.shape)
            except OSError as error:
                start.answer({"failure": f"no process can be made: {error}"})
                continue
            start.session.start(process, start.answer)
            self._spares.prepare(self._zygote, start.session.shape)
            self._on_start()

    def _serve_started(
        self, session: Session, message: dict[str, Any], answer: Answer, outcome: dict[str, Any]
    ) -> None:
        if outcome:
            answer(outcome)
        else:
            self._serve_idle(session, message, answer)

    def _serve_idle(self, session: Session, message: dict[str, Any], answer: Answer) -> None:
        if message["op"] == "cell":
            session.run_cell(message["code"], message["wall_seconds"], answer)
        elif message["op"] == "fork":
            branch_id = message["branch"]
            self._sessions[branch_id] = session.fork(branch_id, partial(self._answer_fork, branch_id, answer))
        else:
            self._move_files(session, message, answer)

    def _answer_fork(self, branch_id: str, answer: Answer, outcome: dict[str, Any]) -> None:
        if outcome:
            self._sessions.pop(branch_id, None)
        answer(outcome)

    def _move_files(self, session: Session, message: dict[str, Any], answer: Answer) -> None:
        """Put and fetch files with the session's own rights, beside its interpreter."""
        pod = session.pod
        assert pod is not None
        task = {
            "kind": "files",
            "alone": False,
            "files": decoded(message["files"]),
            "fetch": message["fetch"],
            "max_bytes": message["max_file_bytes"],
            "limits": resource_limits(session.limits),
        }
        job: Job

        def on_end(ending: Ending) -> None:
            answer(fetched_fields(job.process.payload, ending, [*message["files"], *message["fetch"]]))

        job = Job(
            self._loop,
            Process(self._loop, self._zygote, pod, is_first=False),
            task,
            wall_seconds=_FILES_SECONDS,
            stdin=b"",
            outputs=(Capture(0), Capture(0)),
            on_end=on_end,
            end_pod=partial(session.kill, "its files could not be moved in time"),
            has_proc=self._has_proc,
        )
