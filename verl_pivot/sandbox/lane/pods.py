"""Pods: fresh namespaces for one program or session, each with a shim as PID 1.

The user's program is never PID 1, which ignores signals. It stays a direct child of its zygote, so that its exit status
comes from the kernel alone. Killing the shim makes the kernel kill everything that is left in the pod.
"""

import ctypes
import errno
import mmap
import os
import signal
import socket
from dataclasses import dataclass

from verl_pivot.sandbox.lane import syscalls
from verl_pivot.sandbox.lane.control_groups import GroupPool, PodGroup, group_bytes
from verl_pivot.sandbox.lane.egress import NETWORK_PROXY, EgressDoor
from verl_pivot.sandbox.lane.networks import NetworkPool, PodNetwork, buffer_bytes, num_sockets_of
from verl_pivot.sandbox.lane.procfs import is_exiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from verl_pivot.sandbox.lane.messages import PodFields

NETWORK_NONE, NETWORK_LOOPBACK = "none", "loopback"
"""Values of sandbox.execution.Network, a class that a lane cannot import."""

_NAMESPACES = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWNET
_CLONE_VM, _CLONE_FILES, _CLONE_PIDFD = 0x100, 0x400, 0x1000
_STACK_BYTES, _NUM_STACKS = 1024, 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class PodShape:
    """Properties in which pods differ."""

    tmp_bytes: int
    num_tmp_files: int
    memory_bytes: int
    num_processes: int
    network: str
    """A value of sandbox.execution.Network."""
    has_proc: bool
    root: str = ""
    """Name of the root file system; "" for none."""
    hidden: tuple[str, ...] = ()
    """Paths of the lane's folders that the pod does not see."""
    has_terminal: bool = False

    @property
    def namespaces(self) -> int:
        """Flags of the namespaces that a program joins, besides the pod's pid namespace."""
        return _NAMESPACES

    @property
    def new_namespaces(self) -> int:
        """Flags of the namespaces that are made for the pod; networks of some kinds exist before the pod."""
        return _NAMESPACES & ~(syscalls.CLONE_NEWNET if self.network in (NETWORK_NONE, NETWORK_PROXY) else 0)

    @property
    def has_loopback(self) -> bool:
        """Whether 127.0.0.1 works in its network."""
        return self.network in (NETWORK_LOOPBACK, NETWORK_PROXY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod, known by its shim: the process that is its PID 1."""

    shape: PodShape
    pid: int
    pidfd: int
    user_id: int | None
    """User id of its programs in the lane; None where they share the user id of the lane, which owns the root file
    systems."""
    group: PodGroup | None
    """Control group of its programs; None where the machine gives none."""
    groups: GroupPool | None
    """Pool that gets the group back."""
    network: PodNetwork | None
    """Network from the pool; None for a pod with a network of another kind."""
    networks: NetworkPool | None
    """Pool that gets the network back."""
    listener: socket.socket | None
    """Socket in its network for the proxy; None for a pod without a proxy."""
    door: EgressDoor | None
    """Door that hands the socket over."""

    @property
    def is_alive(self) -> bool:
        """Whether the shim still runs; if it does not, a program in the pod did not cause its own end."""
        return send_signal(self.pidfd, 0) and not (self.shape.has_proc and is_exiting(self.pid))

    @property
    def has_run_out(self) -> bool:
        """Whether the kernel has killed one of its processes because all of them together reached the memory limit."""
        return self.group is not None and self.group.has_run_out()

    @property
    def buffer_bytes(self) -> int:
        """Maximum memory in the buffers of its sockets, without the first few; 0 where a control group counts it.

        Also 0 in a network that all programs of the lane share, where their sockets cannot be told apart.
        """
        if self.group is not None or (self.networks is None and self.shape.network == NETWORK_NONE):
            return 0
        return buffer_bytes(self.network.num_sockets if self.network is not None else num_sockets_of(self.pid))

    def set_frozen(self, *, is_frozen: bool) -> bool:
        """Stop everything in the pod or let it go on; False where its processes have to be signalled instead."""
        return self.group is not None and self.group.set_frozen(is_frozen=is_frozen)

    def open_door(self) -> None:
        """Let the proxy serve the pod, if the pod has a proxy.

        To be called when the program comes, and not before: if the proxy were replaced in between, the pod would have
        none.

        Raises:
            OSError: If the proxy takes no socket.
        """
        if self.listener is not None and self.door is not None:
            self.door.hand_over(self.listener, self.pidfd)

    def end(self) -> None:
        """Kill everything in the pod. To be called once."""
        send_signal(self.pidfd, signal.SIGKILL)
        if self.listener is not None:
            self.listener.close()
        if self.networks is not None and self.network is not None:
            self.networks.give_back(self.network, self.pidfd)
        else:
            os.close(self.pidfd)
        if self.group is not None and self.groups is not None:
            self.groups.give_back(self.group)


def pod_shape(asked: "PodFields", *, folders: list[str], has_proc: bool) -> PodShape:
    """Shape of the pod for one program or session; `folders` are all that the lane has."""
    limits = asked["limits"]
    return PodShape(
        tmp_bytes=limits["tmp_bytes"],
        num_tmp_files=limits["num_tmp_files"],
        memory_bytes=limits["memory_bytes"],
        num_processes=limits["num_processes"],
        network=asked["network"],
        has_proc=has_proc,
        root=asked["root"],
        hidden=tuple(folder for folder in folders if folder not in asked["folders"]),
        has_terminal=asked["terminal"] is not None,
    )


def send_signal(pidfd: int, number: int) -> bool:
    """Send a signal; False if the process has ended."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class UserIds:
    """User ids that the pods of a lane take in turn."""

    first: int
    num_ids: int
    """Number of ids; 0 where programs share the lane's user id."""

    def of(self, number: int) -> int | None:
        """User id of the pod with this number."""
        return self.first + number % self.num_ids if self.num_ids else None


class PodMaker:
    """Starts shims, which share this process's memory and only wait, each on a stack of its own.

    Starting such a shim takes 0.2 ms. A forked one would take 1 ms, mostly to copy page tables that it never uses.
    """

    def __init__(
        self,
        groups: GroupPool | None,
        networks: NetworkPool | None,
        user_ids: UserIds,
        door: EgressDoor | None = None,
    ) -> None:
        """Begin.

        Args:
            groups: Pool of control groups; None where the machine gives none.
            networks: Pool of networks; None to leave pods without a network in the network namespace of the lane.
            user_ids: User ids of pods.
            door: Opens the way to the proxy; None where there is no proxy.
        """
        self._door = door
        self._user_ids = user_ids
        self._groups = groups
        self._networks = networks
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN)  # shims inherit this: the kernel then reaps orphans of a pod
        self._stacks = mmap.mmap(-1, _STACK_BYTES * (_NUM_STACKS + 1))
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._stacks))
        self._num_made = 0

    def make(self, shape: PodShape, *, shared_bytes: int) -> Pod:
        """Start the shim of a new pod.

        Args:
            shape: Properties of the pod.
            shared_bytes: Memory that an interpreter in the pod shares with its zygote.

        Raises:
            OSError: If no process or no control group can be made.
        """
        group = None
        if self._groups is not None:
            limit = group_bytes(shape.memory_bytes, shape.tmp_bytes, shared_bytes)
            group = self._groups.take(memory_bytes=limit, num_processes=shape.num_processes)
        try:
            pid, pidfd, network, listener = self._start_shim(shape)
        except OSError:
            if self._groups is not None and group is not None:
                self._groups.give_back(group)
            raise
        return Pod(
            shape=shape,
            pid=pid,
            pidfd=pidfd,
            user_id=None if shape.root else self._user_ids.of(self._num_made),
            group=group,
            groups=self._groups,
            network=network,
            networks=self._networks,
            listener=listener,
            door=self._door,
        )

    def _start_shim(self, shape: PodShape) -> tuple[int, int, PodNetwork | None, socket.socket | None]:
        """Process id and pidfd of a new shim, its network if it comes from the pool, and its socket for the proxy."""
        if shape.network == NETWORK_PROXY:
            return self._start_with_listener(shape)
        if self._networks is None or shape.network != NETWORK_NONE:
            return (*self._clone(shape), None, None)
        network = self._networks.enter()
        try:
            return (*self._clone(shape), network, None)
        except OSError:
            network.close()
            raise
        finally:
            self._networks.leave()

    def _start_with_listener(self, shape: PodShape) -> tuple[int, int, None, socket.socket]:
        if self._door is None:
            raise OSError(errno.ENONET, "there is no proxy")
        try:
            listener = self._door.enter()
            try:
                return (*self._clone(shape), None, listener)
            except OSError:
                listener.close()
                raise
        finally:
            self._door.leave()

    def _clone(self, shape: PodShape) -> tuple[int, int]:
        self._num_made += 1
        stack = self._base + _STACK_BYTES * (self._num_made % _NUM_STACKS + 1)
        flags = shape.new_namespaces | syscalls.CLONE_NEWPID | _CLONE_VM | _CLONE_FILES | _CLONE_PIDFD | signal.SIGCHLD
        return syscalls.clone_to_pause(stack, flags)
