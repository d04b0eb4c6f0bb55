"""The lane: requests of the service on one socket -> programs in pods -> results, as each ends.

A lane is one hardened bubblewrap with this supervisor, its zygotes and their pods. It holds trusted code only, no
secrets and no network; when it ends, the kernel ends everything in it.
"""

import json
import os
import resource
import socket
from collections import deque
from typing import Any

from verl_pivot.lane import kernel
from verl_pivot.lane.frames import Decoder, Message, encode
from verl_pivot.lane.loop import Loop
from verl_pivot.lane.pods import PodMaker, PodShape
from verl_pivot.lane.runs import Run
from verl_pivot.lane.scheduler import Scheduler
from verl_pivot.lane.session_table import SessionTable
from verl_pivot.lane.spares import Spares
from verl_pivot.lane.zygotes import Zygote

_MAX_REQUEST_BYTES = 128 * 1024**2
_READ_BYTES = 64 * 1024
"""More would be memory of its own for each read."""
_OOM_SCORE = 500
"""Lanes go before the trainer when the machine runs out of memory."""


class Lane:
    """Wires the parts together and speaks with the service."""

    def __init__(self, channel: socket.socket, settings: dict[str, Any]) -> None:
        self._channel = channel
        self._decoder = Decoder(_MAX_REQUEST_BYTES)
        self._outgoing: deque[memoryview] = deque()
        self._has_proc = bool(settings["has_proc"])
        self._loop = Loop()
        spares = Spares(self._loop, PodMaker())
        self._zygotes = {
            name: self._start_zygote(tuple(modules), settings) for name, modules in settings["zygotes"].items()
        }
        self._scheduler = Scheduler(self._loop, spares, self._zygotes, settings)
        self._sessions = SessionTable(
            self._loop,
            spares,
            self._zygotes[settings["session_zygote"]],
            has_proc=self._has_proc,
            on_start=self._scheduler.watch,
        )
        self._scheduler.watched_sessions = lambda: self._sessions.living
        self._loop.on_readable(channel.fileno(), self._on_readable)

    def serve(self) -> None:
        """Return when the service has closed the channel."""
        while self._loop.is_running:
            self._loop.run_once(1.0)
            self._pump()

    def _pump(self) -> None:
        self._sessions.pump()
        self._scheduler.pump()

    def _start_zygote(self, modules: tuple[str, ...], settings: dict[str, Any]) -> Zygote:
        return Zygote(
            self._loop,
            modules,
            has_proc=self._has_proc,
            max_forks=settings["max_forks"],
            on_ready=self._on_zygote_ready,
        )

    def _on_zygote_ready(self) -> None:
        if all(zygote.is_ready for zygote in self._zygotes.values()):
            self._send({"event": "ready"})
        self._pump()

    def _on_readable(self) -> None:
        data = self._channel.recv(_READ_BYTES)
        if not data:
            self._loop.is_running = False
            return
        for message in self._decoder.feed(data):
            self._serve_request(message)

    def _serve_request(self, message: dict[str, Any]) -> None:
        number, operation = message["id"], message["op"]
        if operation == "run":
            self._scheduler.add(Run(message, shape=self._shape(message["program"]), on_end=self._on_run_end))
        elif operation == "cancel":
            self._scheduler.cancel(message["target"])
        elif operation == "ping":
            self._send({"id": number})
        else:
            self._sessions.serve(message, self._shape(message), lambda answer: self._send({"id": number, **answer}))

    def _shape(self, message: dict[str, Any]) -> PodShape:
        limits = message.get("limits", {})
        return PodShape(
            tmp_bytes=limits.get("tmp_bytes", 0),
            num_tmp_files=limits.get("num_tmp_files", 0),
            network=message.get("network", "none"),
            has_proc=self._has_proc,
        )

    def _on_run_end(self, run: Run, result: dict[str, Any]) -> None:
        if not self._scheduler.ended(run, is_evicted="evicted" in result):
            self._send({"id": run.id, **result})

    def _send(self, message: Message) -> None:
        self._outgoing.append(memoryview(encode(message)))
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


def main(channel_fd: str, settings: str) -> None:
    """Entry point inside bubblewrap: `settings` is JSON; see node/zygote.py."""
    decoded = json.loads(settings)
    if decoded["has_proc"]:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(_OOM_SCORE))
    os.set_inheritable(int(channel_fd), False)  # the lane ends when the node closes it, whoever is left
    kernel.unshare(kernel.CLONE_NEWNET)  # bubblewrap raises lo in its own; in this one programs cannot meet
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    Lane(socket.socket(fileno=int(channel_fd)), decoded).serve()
