"""This machine -> the isolation tier that it offers, and the obstacles to a better one with their remedies."""

import functools
import logging
import os
import platform
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from verl_pivot.errors import ConfigError
from verl_pivot.sandbox.bubblewrap.command_line import MINIMUM_VERSION, exec_command, find_bwrap, parse_version
from verl_pivot.sandbox.bubblewrap.group_tree import may_have_groups
from verl_pivot.sandbox.bubblewrap.obstacles import Obstacle, explain, old_version_note
from verl_pivot.sandbox.bubblewrap.python_view import PythonView
from verl_pivot.sandbox.execution import MIB
from verl_pivot.sandbox.lane.seccomp import MACHINES, filter_bytes
from verl_pivot.sandbox.lane.syscalls import landlock_abi

logger = logging.getLogger(__name__)

_ATTEMPT_SECONDS = 20.0
_SYSCTLS = (
    "user/max_user_namespaces",
    "kernel/unprivileged_userns_clone",
    "kernel/apparmor_restrict_unprivileged_userns",
)


class Tier(StrEnum):
    """Isolation that a machine offers, strongest first: T1 < T2."""

    T1 = "T1"
    """Namespaces, /proc, seccomp and cgroups."""
    T2 = "T2"
    """T1 with resource limits and a watchdog in place of cgroups."""
    T3 = "T3"
    """T2 without /proc in the sandbox. The weakest isolation in which programs run."""
    T4 = "T4"
    """No user namespaces, only Landlock and seccomp. Programs are not run."""
    T5 = "T5"
    """No user namespaces, and Landlock or seccomp is missing too. Programs are not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Outcome of running `true` under bubblewrap."""

    exit_code: int
    stderr: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Observations of a machine, from which its tier follows."""

    bwrap: Path | None
    """Path of bubblewrap; None if it is not installed."""
    version: tuple[int, int, int] | None
    """Version of bubblewrap."""
    is_setuid: bool
    """Whether bubblewrap is setuid root."""
    with_proc: Attempt | None
    """Attempt with a /proc in the sandbox; None if bubblewrap cannot be used at all."""
    without_proc: Attempt | None
    """Attempt without a /proc; None unless the first attempt failed."""
    sysctls: Mapping[str, str]
    """{name: value} of the kernel settings that exist."""
    container: str
    """"docker", "kubernetes", or "" outside of containers."""
    machine: str
    """Processor architecture."""
    has_seccomp: bool
    """Whether the kernel has system call filters."""
    landlock_abi: int
    """Version of Landlock's interface; 0 without Landlock."""
    has_cgroups: bool
    """Whether each pod can have a control group that counts memory and processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Isolation that a backend can count on, and the obstacles to a better one.

    Example:
        Probe(tier=Tier.T2, summary="tier T2, bubblewrap 0.8.0", obstacles=(Obstacle(what="no cgroup ...", ...),))
    """

    tier: Tier
    summary: str
    """One line for `verl-pivot doctor`."""
    obstacles: tuple[Obstacle, ...]
    """Obstacles to the next better tier."""
    version: tuple[int, int, int] = (0, 0, 0)
    """Version of bubblewrap; zeros if it is not installed."""


def probe(python: PythonView, *, has_groups: bool | None = None) -> Probe:
    """Tier of this machine; tries bubblewrap, which takes under a second if it works.

    Args:
        python: Python that sandboxes show.
        has_groups: Whether this process has made control groups; None asks whether a service could.
    """
    return judge(observe(python, has_groups=may_have_groups() if has_groups is None else has_groups))


def require_tier(found: Probe, min_tier: str) -> None:
    """Check that a machine's tier is `min_tier` or better.

    Raises:
        ConfigError: If it is not, with the obstacles and their remedies; or if `min_tier` is below T3.
    """
    allowed = (Tier.T1, Tier.T2, Tier.T3)
    if min_tier not in allowed:
        raise ConfigError(f"min_tier must be T1, T2 or T3, got {min_tier!r}: below T3 there is no sandbox")
    if found.tier > min_tier:
        causes = "; ".join(f"{obstacle.what}: {obstacle.remedy}" for obstacle in found.obstacles)
        raise ConfigError(f"the sandbox needs tier {min_tier}, but this machine offers only {found.tier}. {causes}")


def warn(found: Probe) -> None:
    """Write to the log what a tier does not bound, with the remedies."""
    for obstacle in found.obstacles:
        logger.warning("the sandbox has tier %s: %s: %s", found.tier, obstacle.what, obstacle.remedy)


def judge(observed: Observed) -> Probe:
    """Tier that follows from observations."""
    unusable = _unusable(observed)
    if unusable is not None or observed.with_proc is None:
        return _without_namespaces(observed, unusable)
    if observed.with_proc.exit_code == 0 and observed.has_cgroups:
        return _result(observed, Tier.T1, ())
    if observed.with_proc.exit_code == 0:
        what = "no control groups: a watchdog limits the memory of programs, but not all kernel memory that they use"
        remedy = "start the service as root, or with `systemd-run --user --scope -p Delegate=yes`"
        return _result(observed, Tier.T2, (Obstacle(what=what, remedy=remedy),))
    obstacle = explain(observed.with_proc.stderr, observed.sysctls, observed.container)
    if observed.without_proc is not None and observed.without_proc.exit_code == 0:
        return _result(observed, Tier.T3, (obstacle,))
    return _without_namespaces(observed, obstacle)


def _unusable(observed: Observed) -> Obstacle | None:
    """Obstacle because of which bubblewrap cannot be used at all; None if there is none."""
    what = remedy = ""
    if observed.bwrap is None:
        what, remedy = "bubblewrap is not installed in /usr/bin or /usr/local/bin", "sudo apt-get install -y bubblewrap"
    elif observed.is_setuid:
        what, remedy = f"{observed.bwrap} is setuid root (CVE-2026-41163)", f"sudo chmod u-s {observed.bwrap}"
    elif observed.version is None or observed.version < MINIMUM_VERSION:
        needed = ".".join(map(str, MINIMUM_VERSION))
        what, remedy = f"{observed.bwrap} is older than {needed}", f"install bubblewrap {needed} or later"
    elif observed.machine not in MACHINES:
        known = " and ".join(MACHINES)
        what = f"the system call filter is for {known}, not {observed.machine}"
        remedy = f"use nodes of {known} for the sandbox"
    elif not observed.has_seccomp:
        what, remedy = "the kernel has no seccomp filters", "boot a kernel with CONFIG_SECCOMP_FILTER=y"
    return Obstacle(what=what, remedy=remedy) if what else None


def _without_namespaces(observed: Observed, obstacle: Obstacle | None) -> Probe:
    tier = Tier.T4 if observed.landlock_abi > 0 and observed.has_seccomp else Tier.T5
    return _result(observed, tier, (obstacle,) if obstacle is not None else ())


def _result(observed: Observed, tier: Tier, obstacles: tuple[Obstacle, ...]) -> Probe:
    version = observed.version or (0, 0, 0)
    summary = f"tier {tier}, bubblewrap {'.'.join(map(str, version))}" if observed.version else f"tier {tier}"
    note = old_version_note(version) if observed.version else ""
    landlock = f", Landlock ABI {observed.landlock_abi}" if observed.landlock_abi else ", no Landlock"
    return Probe(tier=tier, summary=summary + note + landlock, obstacles=obstacles, version=version)


def observe(python: PythonView, *, has_groups: bool) -> Observed:
    """Observe this machine; starts bubblewrap once or twice."""
    bwrap = _bwrap()
    version = _version(bwrap) if bwrap is not None else None
    is_setuid = bwrap is not None and bool(bwrap.stat().st_mode & stat.S_ISUID)
    with_proc = without_proc = None
    if bwrap is not None and version is not None and not is_setuid and platform.machine() in MACHINES:
        attempt = functools.partial(_attempt, python, bwrap, version)
        with_proc = attempt(mount_proc=True)
        without_proc = attempt(mount_proc=False) if with_proc.exit_code != 0 else None
    return Observed(
        bwrap=bwrap,
        version=version,
        is_setuid=is_setuid,
        with_proc=with_proc,
        without_proc=without_proc,
        sysctls=_sysctls(),
        container=_container(),
        machine=platform.machine(),
        has_seccomp=Path("/proc/sys/kernel/seccomp/actions_avail").exists()
        or with_proc == Attempt(exit_code=0, stderr=""),
        landlock_abi=landlock_abi(),
        has_cgroups=has_groups,
    )


def _bwrap() -> Path | None:
    try:
        return find_bwrap()
    except ConfigError:
        return None


def _version(bwrap: Path) -> tuple[int, int, int]:
    run = subprocess.run([bwrap, "--version"], capture_output=True, text=True, check=False, env={})
    return parse_version(run.stdout + run.stderr)


def _attempt(python: PythonView, bwrap: Path, version: tuple[int, int, int], *, mount_proc: bool) -> Attempt:
    """Run `true` under the command line that programs get."""
    command = exec_command(
        python,
        ("/usr/bin/true",),
        bwrap=bwrap,
        version=version,
        tmp_bytes=MIB,
        seccomp=filter_bytes(),
        mount_proc=mount_proc,
    )
    try:
        run = subprocess.run(
            command.argv,
            env={},
            pass_fds=command.pass_fds,
            capture_output=True,
            text=True,
            check=False,
            timeout=_ATTEMPT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Attempt(exit_code=1, stderr=f"bwrap did not end within {_ATTEMPT_SECONDS:.0f} s")
    finally:
        command.close()
    return Attempt(exit_code=run.returncode, stderr=run.stderr)


def _sysctls() -> dict[str, str]:
    paths = {name: Path("/proc/sys", name) for name in _SYSCTLS}
    return {name.replace("/", "."): path.read_text().strip() for name, path in paths.items() if path.exists()}


def _container() -> str:
    """Kind of container around this process; "" outside of containers."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    return "docker" if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists() else ""
