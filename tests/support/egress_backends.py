"""Backends of the sandbox whose programs may reach listed addresses of this machine: tests have no other server."""

from dataclasses import replace

from verl_pivot.sandbox.service.backend import BackendSettings
from verl_pivot.sandbox.service.bwrap_backend import BwrapExecBackend
from verl_pivot.sandbox.service.lane_backend import ZygoteBackend


class ReachingZygoteBackend(ZygoteBackend):
    def __init__(self, settings: BackendSettings) -> None:
        super().__init__(replace(settings, egress_reaches_own_machine=True))


class ReachingBwrapBackend(BwrapExecBackend):
    def __init__(self, settings: BackendSettings) -> None:
        super().__init__(replace(settings, egress_reaches_own_machine=True))
