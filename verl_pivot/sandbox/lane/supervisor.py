"""The main process of a lane: requests of the service -> programs in pods -> answers, as each program ends.

A lane is one hardened bubblewrap that holds this supervisor, its zygotes and their pods. Outside the pods a lane runs
trusted code only, without secrets and without a network. When the lane ends, the kernel ends everything in it.
"""

import fcntl
import json
import os
import resource
import socket
from collections import deque

from verl_pivot.sandbox.lane import syscalls
from verl_pivot.sandbox.lane.control_groups import GroupFolders, GroupPool
from verl_pivot.sandbox.lane.egress import EgressDoor
from verl_pivot.sandbox.lane.event_loop import EventLoop
from verl_pivot.sandbox.lane.frames import READY_NUMBER, Decoder, encode
from verl_pivot.sandbox.lane.host_folders import cover_host_folders
from verl_pivot.sandbox.lane.networks import NetworkPool
from verl_pivot.sandbox.lane.output_feed import OutputFeed
from verl_pivot.sandbox.lane.pods import PodMaker, UserIds, pod_shape
from verl_pivot.sandbox.lane.procfs import raise_oom_score
from verl_pivot.sandbox.lane.runs import Run
from verl_pivot.sandbox.lane.scheduler import Scheduler
from verl_pivot.sandbox.lane.session_requests import SessionRequests
from verl_pivot.sandbox.lane.spares import Spares
from verl_pivot.sandbox.lane.zygote_handle import ZygoteHandle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from verl_pivot.sandbox.lane.messages import (
        AnswerFrame,
        LaneAnswer,
        LaneDescriptors,
        LaneSettings,
        Refusal,
        RequestFrame,
        RunAnswer,
        RunRequest,
        ZygotePlan,
    )

_MAX_REQUEST_BYTES = 128 * 1024**2
_READ_BYTES = 64 * 1024
"""Maximum bytes of one read: for larger reads, memory would be allocated each time."""
_FIRST_HIGH_FD = 64
"""Descriptor number above all fixed numbers that zygotes use."""


class Lane:
    """The parts of a lane wired together, and its side of the conversation with the service."""

    def __init__(
        self,
        channel: socket.socket,
        settings: "LaneSettings",
        outer_proc: int | None,
        groups: GroupPool | None,
        door: EgressDoor | None,
        shows_places: str | None,
    ) -> None:
        self._channel = channel
        self._shows_places = shows_places
        self._decoder: Decoder[RequestFrame] = Decoder(_MAX_REQUEST_BYTES)
        self._outgoing: deque[memoryview] = deque()
        self._feeds: dict[int, OutputFeed] = {}
        """Number of each request that is not answered yet and sends its output -> its feed."""
        self._has_proc = settings["has_proc"]
        self._folders = settings["folders"]
        self._outer_proc = outer_proc
        self._loop = EventLoop()
        networks = None if settings["shares_network"] else NetworkPool(outer_proc)
        self._spares = spares = Spares(self._loop, PodMaker(groups, networks, UserIds(**settings["user_ids"]), door))
        self._zygotes = {
            name: self._start_zygote(plan, settings["max_forks"]) for name, plan in settings["zygotes"].items()
        }
        if settings["num_prewarmed"]:
            shape = pod_shape(settings["first_pod"], folders=self._folders, has_proc=self._has_proc)
            session_zygote = self._zygotes[settings["session_zygote"]]
            spares.keep(session_zygote, shape, num_kept=settings["num_prewarmed"])
        self._scheduler = Scheduler(self._loop, spares, self._zygotes, settings)
        self._sessions = SessionRequests(
            self._loop,
            spares,
            self._zygotes[settings["session_zygote"]],
            has_proc=self._has_proc,
            folders=self._folders,
            cpu_seconds=settings["session_cpu_seconds"],
            on_start=self._scheduler.watch,
        )
        self._scheduler.watched_sessions = lambda: self._sessions.living
        self._loop.on_readable(channel.fileno(), self._on_readable)

    def serve(self) -> None:
        """Serve requests until the service closes the channel, or a zygote does not get ready."""
        while self._loop.is_running:
            self._loop.run_once(1.0)
            self._pump()

    def _pump(self) -> None:
        self._sessions.pump()
        self._scheduler.pump()

    def _start_zygote(self, plan: "ZygotePlan", max_forks: int) -> ZygoteHandle:
        return ZygoteHandle(
            self._loop,
            plan,
            outer_proc=self._outer_proc,
            max_forks=max_forks,
            on_ready=self._on_zygote_ready,
            on_broken=self._on_zygote_broken,
        )

    def _on_zygote_broken(self, reason: str) -> None:
        """Tell the service why the lane is not ready, and end it."""
        self._send(READY_NUMBER, {"kind": "failed", "reason": reason})
        self._loop.is_running = False

    def _on_zygote_ready(self) -> None:
        if all(zygote.is_ready for zygote in self._zygotes.values()):
            self._send(READY_NUMBER, {"kind": "ready", "shows_places": self._shows_places})
            for zygote in self._zygotes.values():
                self._spares.refill(zygote)
        self._pump()

    def _on_readable(self) -> None:
        data = self._channel.recv(_READ_BYTES)
        if not data:
            self._loop.is_running = False
            return
        for frame in self._decoder.feed(data):
            self._serve_request(frame)

    def _serve_request(self, frame: "RequestFrame") -> None:
        number, request = frame["number"], frame["request"]
        if request["op"] == "run":
            self._run(number, request)
        elif request["op"] == "cancel":
            self._scheduler.cancel(request["target"])
        elif request["op"] == "type":
            self._scheduler.type_in(request["target"], request["text"].encode("utf-8", "surrogatepass"))
        elif request["op"] == "more":
            if request["target"] in self._feeds:
                self._feeds[request["target"]].ask()
        elif request["op"] == "ping":
            self._send(number, {"kind": "done"})
        else:
            feed = self._new_feed(number) if request["op"] == "cell" and request["streams"] else None
            self._sessions.serve(request, lambda answer: self._send(number, answer), feed)

    def _new_feed(self, number: int) -> OutputFeed:
        feed = self._feeds[number] = OutputFeed(self._loop, lambda output: self._send(number, output))
        return feed

    def _run(self, number: int, request: "RunRequest") -> None:
        program = request["program"]
        shape = pod_shape(program, folders=self._folders, has_proc=self._has_proc)
        feed = self._new_feed(number) if request["streams"] else None
        self._scheduler.add(Run(number, program, shape=shape, on_end=self._on_run_end, feed=feed))

    def _on_run_end(self, run: Run, answer: "RunAnswer | Refusal | None") -> None:
        self._scheduler.forget(run)
        if answer is None:
            self._scheduler.restart(run)
        else:
            self._send(run.number, answer)

    def _send(self, number: int, answer: "LaneAnswer") -> None:
        if answer["kind"] not in ("output", "call") and number in self._feeds:
            self._feeds.pop(number).end()
        frame: AnswerFrame = {"number": number, "answer": answer}
        self._outgoing.append(memoryview(encode(frame)))
        self._flush()

    def _flush(self) -> None:
        while self._outgoing:
            try:
                sent = self._channel.send(self._outgoing[0], socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._loop.on_writable(self._channel.fileno(), self._flush)
                return
            except BrokenPipeError:
                self._loop.is_running = False
                return
            if sent < len(self._outgoing[0]):
                self._outgoing[0] = self._outgoing[0][sent:]
            else:
                self._outgoing.popleft()
        self._loop.on_writable(self._channel.fileno(), None)


def main(channel_fd: str, settings: str, inherited: str) -> None:
    """Entry point inside bubblewrap.

    Args:
        channel_fd: Descriptor of the socket to the service.
        settings: LaneSettings as JSON.
        inherited: LaneDescriptors as JSON.
    """
    decoded: LaneSettings = json.loads(settings)
    outer_proc = None
    descriptors: LaneDescriptors = json.loads(inherited)
    if descriptors["outer_proc"] is not None:
        outer_proc = _moved_up(descriptors["outer_proc"])
    if descriptors["user_range"] is not None:
        os.close(descriptors["user_range"])
    groups = None
    if descriptors["groups"] is not None:
        version, memory, pids = descriptors["groups"]
        groups = GroupPool(GroupFolders(version=version, memory=_moved_up(memory), pids=_moved_up(pids)))
    shows_places = None  # without /proc no program can read the places
    if decoded["has_proc"]:
        raise_oom_score()
        shows_places = cover_host_folders()
    os.set_inheritable(int(channel_fd), False)  # no zygote may keep the socket open after this process has ended
    # In bubblewrap's network namespace lo is up, and programs of a lane could reach each other through it. In a new
    # network namespace lo is down.
    syscalls.unshare(syscalls.CLONE_NEWNET)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    door = None if descriptors["egress"] is None else EgressDoor(_moved_up(descriptors["egress"]), outer_proc)
    Lane(socket.socket(fileno=int(channel_fd)), decoded, outer_proc, groups, door, shows_places).serve()


def _moved_up(fd: int) -> int:
    """The same file under a higher number, which no zygote inherits."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_HIGH_FD)
    os.close(fd)
    return moved
