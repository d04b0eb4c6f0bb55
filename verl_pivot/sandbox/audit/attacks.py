"""Attacks of `verl-pivot sandbox audit`: what each wants, what stops it, and where the sandbox promises that."""

from verl_pivot.sandbox.audit import attack_programs as programs
from verl_pivot.sandbox.audit.attack import Attack
from verl_pivot.sandbox.bubblewrap.probe import Tier
from verl_pivot.sandbox.execution import MIB, Limits, Network, Status

_REPORT = "report it as a bug: docs/sandbox.md promises that the sandbox stops it"
_MACHINE = "programs may be able to escape: run the service in a microVM or under gVisor, and report this bug"

ATTACKS = (
    Attack(
        name="see, end or read processes of others", layer="process namespace", code=programs.PROCESSES, remedy=_REPORT,
    ),
    Attack(
        name="find a secret of the service", layer="mounts and an empty environment", code=programs.SECRETS,
        remedy=_REPORT,
    ),
    Attack(name="write to the machine's files", layer="read-only mounts", code=programs.WRITES, remedy=_REPORT),
    Attack(name="reach a network or the service", layer="network namespace", code=programs.NETWORK, remedy=_REPORT),
    Attack(
        name="reach a network through a loopback interface", layer="network namespace", code=programs.NETWORK,
        network=Network.LOOPBACK, remedy=_REPORT,
    ),
    Attack(
        name="gain rights in the kernel", layer="system calls, no capabilities", code=programs.RIGHTS, remedy=_MACHINE,
    ),
    Attack(
        name="make system calls that no program needs", layer="system calls", code=programs.UNKNOWN, remedy=_MACHINE,
    ),
    Attack(
        name="make system calls of 32-bit programs", layer="system calls", code=programs.FOREIGN_CALLS, remedy=_MACHINE,
        statuses=(Status.SIGNALED,),
    ),
    Attack(name="open sockets of other kinds", layer="system calls", code=programs.SOCKETS, remedy=_MACHINE),
    Attack(name="watch what others open", layer="system calls", code=programs.WATCHES, remedy=_REPORT),
    Attack(
        name="read and write others' terminals", layer="terminals of its own", code=programs.TERMINALS,
        honest=programs.HONEST_TERMINAL, remedy=_REPORT,
    ),
    Attack(
        name="take all terminals", layer="terminals of its own", code=programs.ALL_TERMINALS,
        honest=programs.HONEST_TERMINAL,
        limits=Limits(wall_seconds=4.0, memory_bytes=64 * MIB, num_open_files=1024), not_promised_by=("bwrap_exec",),
        remedy="use the zygote backend, which limits the terminals of each program",
    ),
    Attack(
        name="take others' ports and see their sockets", layer="network namespace", code=programs.PORTS,
        honest=programs.HONEST_PORT, remedy="leave --shared-network out",
    ),
    Attack(
        name="use up what the kernel counts for a user", layer="system calls, limits of a process",
        code=programs.COUNTERS, honest=programs.HONEST_COUNTERS, remedy=_REPORT,
    ),
    Attack(
        name="use up descriptors in flight", layer="a user id of its own, where the service may give one",
        code=programs.DESCRIPTORS_IN_FLIGHT, honest=programs.HONEST_DESCRIPTORS, promised=None,
        remedy="start the service as root, or give its user ids in /etc/subuid and /etc/subgid",
    ),
    Attack(
        name="hold more memory in many processes", layer="watchdog, control group",
        code=programs.TREE, promised=Tier.T2,
        statuses=(Status.MEMORY_LIMIT,), remedy="make /proc mountable in the sandbox: see the tiers in docs/sandbox.md",
    ),
    Attack(
        name="hold memory in page tables", layer="watchdog, control group", code=programs.PAGE_TABLES, promised=Tier.T2,
        statuses=(Status.MEMORY_LIMIT,), remedy="make /proc mountable in the sandbox: see the tiers in docs/sandbox.md",
    ),
    Attack(
        name="hold memory in shared maps", layer="control group", code=programs.SHARED_MAPS, promised=Tier.T1,
        statuses=(Status.OK, Status.MEMORY_LIMIT),
        remedy="start the service as root, or with `systemd-run --user --scope -p Delegate=yes`: tier T1",
    ),
    Attack(
        name="hold memory in socket buffers", layer="watchdog, control group", code=programs.BUFFERS, promised=Tier.T2,
        statuses=(Status.OK, Status.MEMORY_LIMIT, Status.SIGNALED, Status.ERROR),
        remedy="make /proc mountable in the sandbox: see the tiers in docs/sandbox.md",
    ),
    Attack(
        name="start processes without end", layer="limits of a process", code=programs.FORKS,
        honest=programs.HONEST_FORKS, remedy=_REPORT,
    ),
    Attack(
        name="fill the disk", layer="size of /tmp", code=programs.FILES, not_promised_by=("bwrap_exec",),
        statuses=(Status.OK, Status.MEMORY_LIMIT), remedy="use the zygote backend, which limits the number of files",
    ),
    Attack(
        name="print without end", layer="the service's own bound",
        code=programs.OUTPUT, statuses=(Status.OUTPUT_LIMIT,), remedy=_REPORT,
    ),
    Attack(
        name="choose to have no result", layer="a process of its own for files", code=programs.NO_RESULT, fetch=("a",),
        remedy=_REPORT,
    ),
    Attack(
        name="claim that a limit ended it", layer="status from the kernel", code="os.kill(os.getpid(), signal.SIGXCPU)",
        statuses=(Status.SIGNALED,), remedy=_REPORT,
    ),
    Attack(name="raise its limits or priority", layer="limits of a process", code=programs.PRIORITY, remedy=_REPORT),
    Attack(
        name="ask to be spared when memory runs out", layer="a read-only /proc", code=programs.SPARED, remedy=_REPORT,
    ),
    Attack(
        name="exchange bits with another program", layer="none", code=programs.LOCKS,
        honest=programs.HOLDS_LOCK, promised=None,
        remedy="run the programs on separate machines: on one, they can also exchange bits through load and caches",
    ),
    Attack(
        name="learn where folders lie on the machine", layer="overlays, where the kernel mounts them",
        code=programs.MOUNTS,
        promised=None, remedy="move the Python environment to a path that reveals nothing, such as /opt",
    ),
)  # fmt: skip
"""All attacks, including those that the sandbox does not promise to stop."""
