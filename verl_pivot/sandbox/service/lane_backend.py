"""Program -> Result through forked interpreters: the backend over lanes, which replaces a lane that dies."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping

from verl_pivot.errors import SandboxError, SandboxRequestError, SessionLostError
from verl_pivot.sandbox.bubblewrap.group_tree import groups_of_service, make_groups
from verl_pivot.sandbox.bubblewrap.probe import Tier, probe, require_tier, warn
from verl_pivot.sandbox.bubblewrap.python_view import PythonView
from verl_pivot.sandbox.bubblewrap.user_range import UserRange, take_user_range
from verl_pivot.sandbox.execution import MAX_FILE_BYTES, Limits, Network, OnOutput, Program, Result, Terminal
from verl_pivot.sandbox.host_functions import HostFunction, PassedCalls
from verl_pivot.sandbox.lane.files import decode_files, encode_files
from verl_pivot.sandbox.lane.messages import CellRequest, LaneSettings, PodFields, Refusal, UserIdFields
from verl_pivot.sandbox.service.backend import BackendSettings
from verl_pivot.sandbox.service.egress import PROXY_ENDED, Egress
from verl_pivot.sandbox.service.lane_conversion import (
    FetchedFiles,
    call_limit_fields,
    cell_result,
    function_fields,
    lane_program,
    limit_fields,
    run_result,
    terminal_fields,
    variables,
)
from verl_pivot.sandbox.service.lane_process import LaneProcess
from verl_pivot.sandbox.service.languages import load_languages
from verl_pivot.sandbox.service.machine_size import memory_of_machine, num_slots_of_lane
from verl_pivot.sandbox.service.program_files import check_variables, program_files
from verl_pivot.sandbox.service.task_roots import TaskRoots
from verl_pivot.sandbox.service.zygotes import ZygotePlanner

logger = logging.getLogger(__name__)

_NUM_FOREGROUND = 4
_MAX_FORKS = 20_000
_PING_SECONDS = 10.0
_RESTART_SECONDS = 60.0
_MEMORY_SHARE = 0.5
_ONE_USER = (
    "all programs of the sandbox share one user id, so one of them can use up large pipes and descriptors in flight: "
    "to give each its own, start the service as root, or list ids of its user in /etc/subuid and /etc/subgid"
)
_PLACES = (
    "programs can read in /proc/self/mountinfo where /usr, Python and other folders that they see lie on this machine: "
    "the kernel mounts no overlay over %s"
)


class ZygoteBackend:
    """The default backend: programs are forked from zygotes into pods, in one bubblewrap per lane."""

    def __init__(self, settings: BackendSettings) -> None:
        self._python = PythonView.of()
        self._num_lanes = settings.num_lanes or os.cpu_count() or 1
        self._min_tier = settings.min_tier
        self._languages = load_languages(settings.languages_file, python=self._python)
        self._languages.check_without_devices()
        self._num_prewarmed = -(-self._languages.session.prewarm // self._num_lanes)
        """Number of interpreters that each lane makes before sessions ask for them."""
        self.num_slots = settings.num_slots or self._num_lanes * num_slots_of_lane(self._num_prewarmed)
        self.tier = ""
        self._lanes: list[LaneProcess] = []
        self._user_range: UserRange | None = None
        self._num_made = 0
        """Lanes made so far."""
        self._sessions: dict[str, LaneProcess] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._zygotes = ZygotePlanner(settings.preload, self._languages)
        self._shares_network = settings.shares_network
        self._session_cpu_seconds = settings.session_cpu_seconds
        self._memory_bytes = settings.memory_bytes or int(_MEMORY_SHARE * memory_of_machine())
        self._roots = TaskRoots(settings.roots_folder)
        self._egress = Egress(
            settings.egress, num_pods=self.num_slots, reaches_own_machine=settings.egress_reaches_own_machine
        )
        self._tickets: dict[str, int | None] = {}
        """{session id: ticket for the proxy, taken when the session was opened}."""

    async def start(self) -> None:
        groups = groups_of_service() or make_groups()
        found = await asyncio.to_thread(probe, self._python, has_groups=groups is not None)
        require_tier(found, self._min_tier)
        warn(found)
        self._user_range = take_user_range()
        if self._ids_of_lane(0) == (0, 0):
            logger.warning(_ONE_USER)
        self.tier = found.tier.value
        self._groups = groups
        await self._egress.start()
        self._settings = self._lane_settings(has_proc=found.tier != Tier.T3)
        self._lanes = [self._new_lane() for _ in range(self._num_lanes)]
        await asyncio.gather(*(lane.start() for lane in self._lanes))
        if self._lanes[0].shows_places is not None:
            logger.warning(_PLACES, self._lanes[0].shows_places)
        self._keepers = [asyncio.create_task(self._keep(index)) for index in range(self._num_lanes)]

    def _new_lane(self) -> LaneProcess:
        self._num_made += 1
        groups = None if self._groups is None else self._groups.below(f"lane-{self._num_made}")
        first, num_ids = self._ids_of_lane(self._num_made - 1)
        user_ids: UserIdFields = {"first": first, "num_ids": num_ids}
        return LaneProcess(
            {**self._settings, "user_ids": user_ids},
            groups,
            self._roots.folder,
            self._user_range.fd if self._user_range is not None and num_ids else None,
            self._languages.folders,
            self._egress.fd,
        )

    def _ids_of_lane(self, lane: int) -> tuple[int, int]:
        """First user id and number of ids for the programs of a lane; (0, 0) if all programs share one id."""
        if self._user_range is None:
            return 0, 0
        return self._user_range.of_lane(lane, self._num_lanes, num_at_once=-(-self.num_slots // self._num_lanes))

    def _lane_settings(self, *, has_proc: bool) -> LaneSettings:
        return {
            "has_proc": has_proc,
            "shares_network": self._shares_network,
            "zygotes": self._zygotes.plans,
            "session_zygote": self._zygotes.session_zygote,
            "num_prewarmed": self._num_prewarmed,
            "first_pod": self._usual_pod(),
            "session_cpu_seconds": self._session_cpu_seconds,
            "num_foreground": _NUM_FOREGROUND,
            "max_forks": _MAX_FORKS,
            "memory_bytes": self._memory_bytes // self._num_lanes,
            "user_ids": {"first": 0, "num_ids": 0},
            "folders": [*self._languages.folders],
        }

    def _usual_pod(self) -> PodFields:
        """Pod of a session with the default settings."""
        python = self._languages.available.get("python")
        return {
            "limits": limit_fields(Limits()),
            "network": Network.NONE.value,
            "root": "",
            "folders": [] if python is None else [*python.places],
            "terminal": None,
        }

    async def run(self, program: Program, on_output: OnOutput | None = None) -> Result:
        language = self._languages.get(program.language)
        self._roots.check(program.root, language.tools)
        self._egress.check(program.network)
        program_files(program, language)  # refuses what does not fit
        ticket = self._egress.ticket(program.network)
        lane = await self._idlest()
        answer = await lane.run(lane_program(program, language, self._zygotes.choose(program, language)), on_output)
        if answer["kind"] != "run":
            raise SandboxError(f"the program could not be run: {answer['reason']}")
        if not self._egress.is_valid(ticket):
            raise SandboxError(PROXY_ENDED)
        return run_result(answer, self.tier)

    def type_in(self, on_output: OnOutput, text: str) -> None:
        for lane in self._lanes:
            lane.type_in(on_output, text)

    async def open_session(
        self,
        session_id: str,
        *,
        limits: Limits,
        network: Network,
        root: str,
        environment: dict[str, str],
        folder: str,
        terminal: Terminal | None,
        functions: tuple[HostFunction, ...],
    ) -> bool:
        self._roots.check(root, ())
        self._egress.check(network)
        python = self._languages.get("python")
        check_variables(environment, python)
        lane = await self._idlest()
        self._sessions[session_id] = lane
        self._tickets[session_id] = self._egress.ticket(network)
        try:
            answer = await lane.ask(
                {
                    "op": "open",
                    "session": session_id,
                    "limits": limit_fields(limits),
                    "network": network.value,
                    "root": root,
                    "folders": [*python.places],
                    "environment": {
                        **({} if root else python.environment),
                        **variables(environment, terminal, network),
                    },
                    "folder": folder,
                    "terminal": terminal_fields(terminal),
                    "functions": [function_fields(each) for each in functions],
                }
            )
            if answer["kind"] != "opened":
                raise _session_error(answer)
        except (SandboxError, asyncio.CancelledError):
            await self.close_session(session_id)
            raise
        return answer["is_prewarmed"]

    async def run_cell(
        self,
        session_id: str,
        code: str,
        *,
        epoch: int,
        wall_seconds: float,
        files: dict[str, bytes],
        fetch: tuple[str, ...],
        on_output: OnOutput | None = None,
        calls: PassedCalls | None = None,
    ) -> Result:
        if files:
            await self._write_files(session_id, epoch, files)
        lane = self._lane_of(session_id)
        request: CellRequest = {
            "op": "cell",
            "session": session_id,
            "epoch": epoch,
            "code": code,
            "wall_seconds": wall_seconds,
            "streams": on_output is not None,
            "calls": None if calls is None else call_limit_fields(calls.limits),
        }
        try:
            with _losing_sessions():
                answer = await lane.run_cell(request, on_output, None if calls is None else calls.on_call)
        except (asyncio.CancelledError, SandboxError, SandboxRequestError):
            lane.tell({"op": "abandon", "session": session_id})
            raise
        if answer["kind"] != "cell":
            raise _session_error(answer)
        if not self._egress.is_valid(self._tickets.get(session_id)):
            raise SessionLostError(PROXY_ENDED)
        if answer["session"]["epoch"] != epoch:
            logger.warning("session %s lost its variables because of its own cell: %s", session_id, answer["error"])
        fetched = FetchedFiles()
        if fetch and answer["session"]["epoch"] == epoch:
            fetched = await self._move_files(session_id, epoch, {}, fetch)
        return cell_result(answer, fetched, self.tier)

    async def fork_session(self, session_id: str, branch_id: str, *, epoch: int) -> None:
        lane = self._lane_of(session_id)
        try:
            with _losing_sessions():
                answer = await lane.ask({"op": "fork", "session": session_id, "epoch": epoch, "branch": branch_id})
        except asyncio.CancelledError:
            lane.tell({"op": "close", "session": branch_id})
            raise
        if answer["kind"] != "done":
            raise _session_error(answer)
        self._sessions[branch_id] = lane
        self._tickets[branch_id] = self._tickets.get(session_id)

    async def close_session(self, session_id: str) -> None:
        lane = self._sessions.pop(session_id, None)
        self._tickets.pop(session_id, None)
        if lane is not None:
            lane.tell({"op": "close", "session": session_id})

    async def stop(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*(lane.stop() for lane in self._lanes))
        await self._egress.stop()
        if self._user_range is not None:
            os.close(self._user_range.fd)

    async def _idlest(self) -> LaneProcess:
        """The living lane with the fewest open requests; waits while all lanes are starting again."""
        deadline = time.monotonic() + _RESTART_SECONDS
        while not (living := [lane for lane in self._lanes if lane.is_alive]):
            if time.monotonic() > deadline:
                raise SandboxError(f"no lane of this node has started within {_RESTART_SECONDS:.0f} s")
            await asyncio.sleep(0.05)
        return min(living, key=lambda lane: lane.num_open)

    async def _keep(self, index: int) -> None:
        """Replace a lane whenever it dies or hangs."""
        while True:
            lane = self._lanes[index]
            await self._until_dead(lane)
            await lane.stop()
            lane = self._new_lane()
            try:
                await lane.start()
            except (SandboxError, OSError):  # no process can be made, for example; calls wait for a lane meanwhile
                await asyncio.sleep(1.0)
                continue
            self._lanes[index] = lane

    async def _until_dead(self, lane: LaneProcess) -> None:
        """Return when the lane has died, or does not answer."""
        while not await lane.has_ended(seconds=1.0):
            try:
                await asyncio.wait_for(lane.ask({"op": "ping"}), _PING_SECONDS)
            except (TimeoutError, SandboxError):
                return

    def _lane_of(self, session_id: str) -> LaneProcess:
        lane = self._sessions.get(session_id)
        if lane is None:
            raise SandboxRequestError(f"there is no session {session_id} on this node")
        return lane

    async def _write_files(self, session_id: str, epoch: int, files: Mapping[str, bytes]) -> None:
        moved = await self._move_files(session_id, epoch, files, ())
        refused = set(moved.errors) & set(files)
        if refused:
            name = min(refused)
            raise SandboxRequestError(f"file {name!r} could not be written: {moved.errors[name]}")

    async def _move_files(
        self, session_id: str, epoch: int, files: Mapping[str, bytes], fetch: tuple[str, ...]
    ) -> FetchedFiles:
        """Write files into a session's working directory, then read others."""
        with _losing_sessions():
            answer = await self._lane_of(session_id).ask(
                {
                    "op": "files",
                    "session": session_id,
                    "epoch": epoch,
                    "files": encode_files(files),
                    "fetch": list(fetch),
                    "max_file_bytes": MAX_FILE_BYTES,
                }
            )
        if answer["kind"] != "files":
            raise _session_error(answer)
        return FetchedFiles(contents=decode_files(answer["files"]), errors=answer["file_errors"])


def _session_error(refusal: Refusal) -> SandboxError | SandboxRequestError:
    """Exception for a refusal; its type says whose fault it is."""
    if refusal["kind"] == "refused":
        return SandboxRequestError(refusal["reason"])
    if refusal["kind"] == "lost":
        logger.warning("a session lost its variables: %s", refusal["reason"])
        return SessionLostError(f"the session's variables are gone: {refusal['reason']}")
    return SandboxError(f"the session failed: {refusal['reason']}")


@contextlib.contextmanager
def _losing_sessions() -> Iterator[None]:
    """Turn a SandboxError into a SessionLostError: a lane that fails loses its sessions."""
    try:
        yield
    except SandboxError as error:
        raise SessionLostError(f"the session's variables are gone: {error}") from error
