"""Program -> Result through warm interpreters: the backend over lanes, which replaces a lane that dies."""

import asyncio
import base64
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_pivot.errors import SandboxError, SandboxRequestError, SessionLostError
from verl_pivot.sandbox.backends import BackendSettings
from verl_pivot.sandbox.execution import (
    MAX_FILE_BYTES,
    Limits,
    Network,
    Program,
    Result,
    SessionState,
    Status,
    Timing,
)
from verl_pivot.sandbox.lane_process import LaneProcess
from verl_pivot.sandbox.languages import Language, load_languages
from verl_pivot.sandbox.probe import Tier, probe, require_tier
from verl_pivot.sandbox.python_view import PythonView

_SCIENCE = ("numpy", "sympy")
_SESSIONS = ("verl_pivot.lane.repl",)
_STANDARD = (
    *("bisect", "collections", "contextlib", "copy", "dataclasses", "datetime", "decimal", "fractions", "functools"),
    *("heapq", "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "threading", "typing"),
)
_NUM_SLOTS_PER_LANE = 512
_IDLE_SESSION_SECONDS = 600.0
_MAX_SESSIONS_PER_LANE = 256
_PING_SECONDS = 10.0
_MEMORY_SHARE = 0.5
"""Of the machine's memory, for all lanes together."""


@dataclass(slots=True)
class _SessionPlace:
    """Where a session lives."""

    lane: LaneProcess
    limits: Limits
    used_at: float
    num_running: int = 0


class ZygoteBackend:
    """The default backend: pods forked from zygotes, in one bubblewrap per lane."""

    def __init__(self, settings: BackendSettings) -> None:
        self._python = PythonView.of()
        self._num_lanes = settings.num_lanes or os.cpu_count() or 1
        self._min_tier = settings.min_tier
        self._languages = load_languages(settings.languages_file, python=self._python)
        self.num_slots = settings.num_slots or self._num_lanes * _NUM_SLOTS_PER_LANE
        self.tier = ""
        self._lanes: list[LaneProcess] = []
        self._sessions: dict[str, _SessionPlace] = {}
        self._lost: dict[str, str] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._imports = {name: _imports_of(modules) for name, modules in (("science", _SCIENCE), ("standard", _STANDARD))}

    async def start(self) -> None:
        found = await asyncio.to_thread(probe, self._python)
        require_tier(found, self._min_tier)
        self.tier = found.tier.value
        self._settings = self._lane_settings(has_proc=found.tier != Tier.T3)
        self._lanes = [LaneProcess(self._settings) for _ in range(self._num_lanes)]
        await asyncio.gather(*(lane.start() for lane in self._lanes))
        self._keepers = [asyncio.create_task(self._keep(index)) for index in range(self._num_lanes)]
        self._keepers.append(asyncio.create_task(self._expire_sessions()))

    def _lane_settings(self, *, has_proc: bool) -> Mapping[str, object]:
        usual = Limits()
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return {
            "has_proc": has_proc,
            "zygotes": {"bare": [], "standard": list(_STANDARD), "science": [*_STANDARD, *_SESSIONS, *_SCIENCE]},
            "session_zygote": "science",
            "tmp_bytes": usual.tmp_bytes,
            "num_tmp_files": usual.num_tmp_files,
            "num_spare_pods": 16,
            "num_foreground": 4,
            "max_forks": 20_000,
            "memory_bytes": int(memory * _MEMORY_SHARE / self._num_lanes),
        }

    async def run(self, program: Program) -> Result:
        language = self._languages.get(program.language)
        lane = self._idlest()
        number, future = lane.post({"op": "run", "program": self._wire(program, language)})
        try:
            answer = await future
        except asyncio.CancelledError:
            lane.post({"op": "cancel", "target": number})
            raise
        if "failure" in answer:
            raise SandboxError(f"the program could not be run: {answer['failure']}")
        return self._result(answer)

    async def open_session(self, session_id: str, *, limits: Limits, network: Network) -> None:
        lane = self._idlest()
        request = {"op": "open", "session": session_id, "limits": _fields(limits), "network": network.value}
        self._sessions[session_id] = _SessionPlace(lane=lane, limits=limits, used_at=time.monotonic())
        _raise_unless_served(await lane.ask(request))

    async def run_cell(
        self,
        session_id: str,
        code: str,
        *,
        epoch: int,
        wall_seconds: float,
        files: dict[str, bytes],
        fetch: tuple[str, ...],
    ) -> Result:
        place = self._place(session_id)
        request = {"session": session_id, "epoch": epoch}
        place.num_running += 1
        try:
            if files:
                await self._move_files(place, request, files, ())
            cell = {**request, "op": "cell", "code": code, "wall_seconds": wall_seconds}
            answer = await place.lane.ask(cell)
            _raise_unless_served(answer)
            if fetch and answer["session"]["epoch"] == epoch:
                answer |= await self._move_files(place, request, {}, fetch)
        finally:
            place.num_running -= 1
            place.used_at = time.monotonic()
        return self._result(answer)

    async def fork_session(self, session_id: str, branch_id: str, *, epoch: int) -> None:
        place = self._place(session_id)
        answer = await place.lane.ask({"op": "fork", "session": session_id, "epoch": epoch, "branch": branch_id})
        _raise_unless_served(answer)
        self._sessions[branch_id] = _SessionPlace(lane=place.lane, limits=place.limits, used_at=time.monotonic())

    async def close_session(self, session_id: str) -> None:
        place = self._sessions.pop(session_id, None)
        if place is not None and place.lane.is_alive:
            await place.lane.ask({"op": "close", "session": session_id})

    async def stop(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*(lane.stop() for lane in self._lanes))

    def _idlest(self) -> LaneProcess:
        living = [lane for lane in self._lanes if lane.is_alive]
        if not living:
            raise SandboxError("every lane of this node is starting")
        return min(living, key=lambda lane: lane.num_open)

    async def _keep(self, index: int) -> None:
        """Replace the lane when it dies or hangs."""
        while True:
            lane = self._lanes[index]
            await self._until_dead(lane)
            for session_id, place in tuple(self._sessions.items()):
                if place.lane is lane:
                    self._lose(session_id, "the lane that held it died")
            await lane.stop()
            lane = LaneProcess(self._settings)
            try:
                await lane.start()
            except SandboxError:
                await asyncio.sleep(1.0)
                continue
            self._lanes[index] = lane

    async def _until_dead(self, lane: LaneProcess) -> None:
        while lane.is_alive:
            try:
                await asyncio.wait_for(lane.ask({"op": "ping"}), _PING_SECONDS)
                await asyncio.wait_for(lane.ended(), 1.0)
            except (TimeoutError, SandboxError):
                pass

    async def _expire_sessions(self) -> None:
        """Idle ones go when they are old, and the longest idle when there are too many."""
        while True:
            await asyncio.sleep(5.0)
            idle = sorted(
                (place.used_at, session_id) for session_id, place in self._sessions.items() if place.num_running == 0
            )
            surplus = len(self._sessions) - _MAX_SESSIONS_PER_LANE * self._num_lanes
            old = time.monotonic() - _IDLE_SESSION_SECONDS
            for number, (used_at, session_id) in enumerate(idle):
                if number < surplus or used_at < old:
                    lane = self._sessions[session_id].lane
                    self._lose(session_id, "it was idle for too long, or too many were open")
                    await lane.ask({"op": "close", "session": session_id})

    def _lose(self, session_id: str, reason: str) -> None:
        del self._sessions[session_id]
        self._lost[session_id] = reason

    def _place(self, session_id: str) -> _SessionPlace:
        if session_id in self._lost:
            raise SessionLostError(f"session {session_id} is gone: {self._lost[session_id]}")
        if session_id not in self._sessions:
            raise SandboxRequestError(f"there is no session {session_id} on this node")
        return self._sessions[session_id]

    async def _move_files(
        self, place: _SessionPlace, request: dict[str, Any], files: Mapping[str, bytes], fetch: tuple[str, ...]
    ) -> dict[str, Any]:
        encoded = {name: base64.b64encode(content).decode() for name, content in files.items()}
        message = {**request, "op": "files", "files": encoded, "fetch": fetch, "max_file_bytes": MAX_FILE_BYTES}
        answer = await place.lane.ask(message)
        _raise_unless_served(answer)
        refused = set(answer["file_errors"]) & set(files)
        if refused:
            name = min(refused)
            raise SandboxRequestError(f"file {name!r} could not be written: {answer['file_errors'][name]}")
        return {"files": answer["files"], "file_errors": answer["file_errors"]}

    def _wire(self, program: Program, language: Language) -> dict[str, Any]:
        """What a lane needs to know of a program."""
        is_python = language.zygote is not None
        extra = language.overhead
        limits = _fields(program.limits)
        limits["memory_bytes"] += extra.memory_bytes
        limits["num_processes"] += extra.num_processes
        limits["num_open_files"] += extra.num_open_files
        zygote = language.zygote or "bare"
        if zygote == "auto":
            zygote = next((name for name, found in self._imports.items() if found.search(program.code)), "bare")
        return {
            "kind": "python" if is_python else "exec",
            "zygote": zygote,
            "file": language.file,
            "code": program.code,
            "argv": [*(() if is_python else language.run), *program.args],
            "compile": language.compile,
            "compile_limits": _fields(language.compile_limits),
            "stdin": program.stdin,
            "files": {name: base64.b64encode(content).decode() for name, content in program.files.items()},
            "fetch": program.fetch,
            "max_file_bytes": MAX_FILE_BYTES,
            "limits": limits,
            "network": program.network.value,
        }

    def _result(self, answer: dict[str, Any]) -> Result:
        session = answer.get("session")
        return Result(
            status=Status(answer["status"]),
            timing=Timing(
                setup_seconds=answer.get("setup_seconds", 0.0),
                wall_seconds=answer["wall_seconds"],
                cpu_seconds=answer.get("cpu_seconds"),
            ),
            files={name: base64.b64decode(content) for name, content in answer.get("files", {}).items()},
            session=None if session is None else SessionState(**session),
            tier=self.tier,
            **{name: answer[name] for name in _COPIED & answer.keys()},
        )


_COPIED = frozenset(
    {
        *("exit_code", "signal", "stdout", "stderr", "stdout_bytes", "stderr_bytes", "stdout_truncated"),
        *("stderr_truncated", "value", "error", "compile_output", "file_errors", "peak_memory_bytes"),
    }
)


def _fields(limits: Limits) -> dict[str, Any]:
    return {name: getattr(limits, name) for name in Limits.__dataclass_fields__}


def _raise_unless_served(answer: dict[str, Any]) -> None:
    """Turn a lane's refusal into the exception that says whose fault it is."""
    if "failure" in answer:
        raise SandboxError(f"the session failed: {answer['failure']}")
    if "lost" in answer:
        raise SessionLostError(f"the session's variables are gone: {answer['lost']}")
    if "refused" in answer:
        raise SandboxRequestError(answer["refused"])
    if "busy" in answer:
        raise SandboxRequestError("the session is busy with another cell: await that one first")
    if "missing" in answer:
        raise SessionLostError("the session is gone from its lane")


def _imports_of(modules: tuple[str, ...]) -> re.Pattern[str]:
    """Finds an import of one of them; a miss costs a program the time of its import, and nothing else."""
    return re.compile(rf"^\s*(?:import|from)\s+(?:[\w., ]*,\s*)?(?:{'|'.join(modules)})\b", re.MULTILINE)
