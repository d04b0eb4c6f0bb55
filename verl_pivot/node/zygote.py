"""Program -> Result through warm interpreters: the backend over lanes, which replaces a lane that dies."""

import asyncio
import base64
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_pivot.bubblewrap.probe import Tier, probe, require_tier
from verl_pivot.bubblewrap.python_view import PythonView
from verl_pivot.errors import SandboxError, SandboxRequestError, SessionLostError
from verl_pivot.node.backends import BackendSettings
from verl_pivot.node.lane_process import LaneProcess
from verl_pivot.node.languages import Language, load_languages
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

_SESSIONS = ("verl_pivot.lane.repl",)
_STANDARD = (
    *("bisect", "collections", "contextlib", "copy", "dataclasses", "datetime", "decimal", "fractions", "functools"),
    *("heapq", "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "threading", "typing"),
)
_NUM_SLOTS_PER_LANE = 512
_PING_SECONDS = 10.0
_RESTART_SECONDS = 60.0
_MEMORY_SHARE = 0.5
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


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
        self._sessions: dict[str, LaneProcess] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._preload = settings.preload
        self._memory_bytes = settings.memory_bytes or int(_MEMORY_SHARE * memory_of_machine())
        self._imports = {"full": _imports_of(self._preload), "standard": _imports_of(_STANDARD)}

    async def start(self) -> None:
        found = await asyncio.to_thread(probe, self._python)
        require_tier(found, self._min_tier)
        self.tier = max(found.tier, Tier.T2).value  # lanes use no cgroups
        self._settings = self._lane_settings(has_proc=found.tier != Tier.T3)
        self._lanes = [LaneProcess(self._settings) for _ in range(self._num_lanes)]
        await asyncio.gather(*(lane.start() for lane in self._lanes))
        self._keepers = [asyncio.create_task(self._keep(index)) for index in range(self._num_lanes)]

    def _lane_settings(self, *, has_proc: bool) -> Mapping[str, object]:
        return {
            "has_proc": has_proc,
            "zygotes": {"bare": [], "standard": list(_STANDARD), "full": [*_STANDARD, *_SESSIONS, *self._preload]},
            "session_zygote": "full",
            "num_foreground": 4,
            "max_forks": 20_000,
            "memory_bytes": self._memory_bytes // self._num_lanes,
        }

    async def run(self, program: Program) -> Result:
        language = self._languages.get(program.language)
        lane = await self._idlest()
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
        lane = await self._idlest()
        self._sessions[session_id] = lane
        request = {"op": "open", "session": session_id, "limits": _fields(limits), "network": network.value}
        try:
            _raise_unless_served(await lane.ask(request))
        except (SandboxError, asyncio.CancelledError):
            await self.close_session(session_id)
            raise

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
        if files:
            await self._move_files(session_id, epoch, files, ())
        cell = {"op": "cell", "epoch": epoch, "code": code, "wall_seconds": wall_seconds}
        try:
            answer = await self._ask(session_id, cell)
        except asyncio.CancelledError:
            self._sessions[session_id].post({"op": "abandon", "session": session_id})
            raise
        if fetch and answer["session"]["epoch"] == epoch:
            answer |= await self._move_files(session_id, epoch, {}, fetch)
        return self._result(answer)

    async def fork_session(self, session_id: str, branch_id: str, *, epoch: int) -> None:
        lane = self._sessions.get(session_id)
        try:
            await self._ask(session_id, {"op": "fork", "epoch": epoch, "branch": branch_id})
        except asyncio.CancelledError:
            if lane is not None:
                lane.post({"op": "close", "session": branch_id})
            raise
        self._sessions[branch_id] = self._sessions[session_id]

    async def close_session(self, session_id: str) -> None:
        lane = self._sessions.pop(session_id, None)
        if lane is not None:
            lane.post({"op": "close", "session": session_id})

    async def stop(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*(lane.stop() for lane in self._lanes))

    async def _idlest(self) -> LaneProcess:
        """The living lane with the fewest open requests; waits for one where all are starting again."""
        deadline = time.monotonic() + _RESTART_SECONDS
        while not (living := [lane for lane in self._lanes if lane.is_alive]):
            if time.monotonic() > deadline:
                raise SandboxError(f"no lane of this node has started within {_RESTART_SECONDS:.0f} s")
            await asyncio.sleep(0.05)
        return min(living, key=lambda lane: lane.num_open)

    async def _keep(self, index: int) -> None:
        """Replace the lane when it dies or hangs."""
        while True:
            lane = self._lanes[index]
            await self._until_dead(lane)
            await lane.stop()
            lane = LaneProcess(self._settings)
            try:
                await lane.start()
            except (SandboxError, OSError):  # no process is left, for example; calls wait for a lane meanwhile
                await asyncio.sleep(1.0)
                continue
            self._lanes[index] = lane

    async def _until_dead(self, lane: LaneProcess) -> None:
        """Return when it has died, or does not answer."""
        while not await lane.has_ended(seconds=1.0):
            try:
                await asyncio.wait_for(lane.ask({"op": "ping"}), _PING_SECONDS)
            except (TimeoutError, SandboxError):
                return

    async def _ask(self, session_id: str, request: dict[str, Any]) -> dict[str, Any]:
        """The answer of the session's lane."""
        lane = self._sessions.get(session_id)
        if lane is None:
            raise SandboxRequestError(f"there is no session {session_id} on this node")
        try:
            answer = await lane.ask({**request, "session": session_id})
        except SandboxError as error:
            raise SessionLostError(f"the session's variables are gone: {error}") from error
        _raise_unless_served(answer)
        return answer

    async def _move_files(
        self, session_id: str, epoch: int, files: Mapping[str, bytes], fetch: tuple[str, ...]
    ) -> dict[str, Any]:
        encoded = {name: base64.b64encode(content).decode() for name, content in files.items()}
        request = {"op": "files", "epoch": epoch, "files": encoded, "fetch": fetch, "max_file_bytes": MAX_FILE_BYTES}
        answer = await self._ask(session_id, request)
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
                queue_seconds=answer.get("queue_seconds", 0.0),
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


_NOTHING = re.compile(r"(?!)")


def memory_of_machine() -> int:
    """Bytes that this machine, or the container around us, has."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _CGROUP_LIMITS:
        if path.is_file() and (text := path.read_text().strip()).isdigit():
            limits.append(int(text))
    return min(limits)


def _imports_of(modules: tuple[str, ...]) -> re.Pattern[str]:
    """Finds an import of one of them; a miss costs a program the time of its import, and nothing else."""
    if not modules:
        return _NOTHING
    return re.compile(
        rf"^\s*(?:import|from)\s+(?:[\w., ]*,\s*)?(?:{'|'.join(map(re.escape, modules))})\b", re.MULTILINE
    )
