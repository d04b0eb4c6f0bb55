"""The tier that follows from observations of a machine, and the exact remedy of each obstacle."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.sandbox_machine import needs_sandbox
from verl_pivot.errors import ConfigError
from verl_pivot.sandbox.bubblewrap.obstacles import Obstacle
from verl_pivot.sandbox.bubblewrap.probe import Attempt, Observed, Probe, Tier, judge, require_tier

OK = Attempt(exit_code=0, stderr="")
MACHINE = Observed(
    bwrap=Path("/usr/bin/bwrap"),
    version=(0, 8, 0),
    is_setuid=False,
    with_proc=OK,
    without_proc=None,
    sysctls={"user.max_user_namespaces": "96365"},
    container="",
    machine="x86_64",
    has_seccomp=True,
    landlock_abi=7,
    has_cgroups=True,
)
PROC = "bwrap: Can't mount proc on /newroot/proc: Operation not permitted\n"
UID_MAP = "bwrap: setting up uid map: Permission denied\n"
LOOPBACK = "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted\n"
NO_USERNS = "bwrap: No permissions to create new namespace, likely because the kernel does not allow it.\n"
TOO_MANY = "bwrap: Creating new namespace failed: No space left on device\n"
SLAVE = "bwrap: Failed to make / slave: Permission denied\n"
UBUNTU = {"kernel.apparmor_restrict_unprivileged_userns": "1"}


def failed(stderr: str, *, proc_is_the_cause: bool = False) -> Observed:
    attempt = Attempt(exit_code=1, stderr=stderr)
    return replace(MACHINE, with_proc=attempt, without_proc=OK if proc_is_the_cause else attempt)


def remedy(observed: Observed) -> str:
    (obstacle,) = judge(observed).obstacles
    return obstacle.remedy


@pytest.mark.parametrize(
    ("observed", "tier"),
    [
        (MACHINE, Tier.T1),
        (replace(MACHINE, has_cgroups=False), Tier.T2),
        (failed(PROC, proc_is_the_cause=True), Tier.T3),
        (failed(UID_MAP), Tier.T4),
        (replace(failed(UID_MAP), landlock_abi=0), Tier.T5),
        (replace(MACHINE, bwrap=None, version=None, with_proc=None), Tier.T4),
        (replace(MACHINE, is_setuid=True, with_proc=None), Tier.T4),
        (replace(MACHINE, version=(0, 5, 0)), Tier.T4),
        (replace(MACHINE, machine="aarch64"), Tier.T1),
        (replace(MACHINE, machine="riscv64", with_proc=None), Tier.T4),
        (replace(MACHINE, has_seccomp=False), Tier.T5),
    ],
)
def test_the_tier_is_what_the_machine_allows(observed: Observed, tier: Tier) -> None:
    assert judge(observed).tier is tier


@pytest.mark.parametrize(
    ("observed", "part"),
    [
        (replace(failed(PROC, proc_is_the_cause=True), container="docker"), "`--security-opt systempaths=unconfined`"),
        (replace(failed(PROC, proc_is_the_cause=True), container="kubernetes"), "procMount: Unmasked"),
        (failed(PROC, proc_is_the_cause=True), "mount /proc without covered parts"),
        (replace(failed(UID_MAP), sysctls=UBUNTU), "`sudo apparmor_parser -r /etc/apparmor.d/bwrap`"),
        (replace(failed(LOOPBACK), sysctls=UBUNTU), "flags=(unconfined) { userns, }` to /etc/apparmor.d/bwrap"),
        (replace(failed(NO_USERNS), sysctls={"kernel.unprivileged_userns_clone": "0"}), "unprivileged_userns_clone=1"),
        (replace(failed(NO_USERNS), container="docker"), "`--security-opt seccomp=unconfined`"),
        (replace(failed(NO_USERNS), container="kubernetes"), "seccompProfile.type: Unconfined"),
        (failed(NO_USERNS), "security policy of this machine"),
        (failed(TOO_MANY), "sudo sysctl -w user.max_user_namespaces=15000"),
        (replace(failed(NO_USERNS), sysctls={"user.max_user_namespaces": "0"}), "user.max_user_namespaces=15000"),
        (replace(failed(SLAVE), container="docker"), "`--security-opt apparmor=unconfined`"),
        (replace(failed(SLAVE), container="kubernetes"), "appArmorProfile.type: Unconfined"),
        (replace(MACHINE, bwrap=None, version=None, with_proc=None), "sudo apt-get install -y bubblewrap"),
        (replace(MACHINE, is_setuid=True, with_proc=None), "sudo chmod u-s /usr/bin/bwrap"),
        (replace(MACHINE, has_cgroups=False), "start the service as root"),
        (failed("verl-pivot: nobody cannot reach /home/ada/python: put it in /opt\n"), "put it in /opt"),
        (failed("bwrap: something new\n"), "run `bwrap --unshare-all --ro-bind / / true`"),
    ],
)
def test_each_obstacle_has_its_remedy(observed: Observed, part: str) -> None:
    assert part in remedy(observed)


def test_the_summary_names_an_old_version_and_why_its_vulnerability_does_not_matter() -> None:
    assert judge(MACHINE).summary == (
        "tier T1, bubblewrap 0.8.0 (CVE-2026-87766: not affected, nothing that a program wrote is ever mounted), "
        "Landlock ABI 7"
    )
    assert judge(replace(MACHINE, version=(0, 12, 0))).summary == "tier T1, bubblewrap 0.12.0, Landlock ABI 7"


def test_a_tier_below_the_one_asked_for_is_refused_with_cause_and_remedy() -> None:
    found = Probe(tier=Tier.T3, summary="", obstacles=(Obstacle(what="parts of /proc are covered", remedy="uncover"),))

    require_tier(found, "T3")
    with pytest.raises(ConfigError, match=r"tier T2, but this machine offers only T3\. parts of /proc .*: uncover"):
        require_tier(found, "T2")


@pytest.mark.parametrize("tier", ["T4", "T5", "T0", "t2", ""])
def test_no_tier_without_a_sandbox_can_be_asked_for(tier: str) -> None:
    with pytest.raises(ConfigError, match="min_tier must be T1, T2 or T3"):
        require_tier(judge(MACHINE), tier)


ASK = """
from verl_pivot.sandbox.bubblewrap.probe import probe
from verl_pivot.sandbox.bubblewrap.python_view import PythonView
found = probe(PythonView.of())
print(found.tier, *(obstacle.what for obstacle in found.obstacles))
"""


def asked_inside(*options: str) -> str:
    """Output of the probe inside a bubblewrap that makes this machine look like another."""
    done = subprocess.run(
        ["bwrap", "--dev-bind", "/", "/", *options, "--", sys.executable, "-c", ASK],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


@needs_sandbox
def test_a_really_covered_proc_gives_tier_3() -> None:
    said = asked_inside("--unshare-pid", "--proc", "/proc", "--tmpfs", "/proc/tty")

    assert said.startswith("T3 parts of /proc are covered (Can't mount proc on /newroot/proc")


@needs_sandbox
def test_really_forbidden_user_namespaces_give_tier_4() -> None:
    said = asked_inside("--unshare-user", "--uid", "1000", "--disable-userns")

    assert said.startswith("T4 no more user namespaces can be created")


@needs_sandbox
def test_a_really_missing_bubblewrap_gives_tier_4() -> None:
    bwrap = Path("/usr/bin/bwrap")
    if not bwrap.exists() or Path("/usr/local/bin/bwrap").exists():
        pytest.skip("bubblewrap is not at /usr/bin alone")

    said = asked_inside("--ro-bind", "/dev/null", str(bwrap))

    assert said.startswith("T4 bubblewrap is not installed")
