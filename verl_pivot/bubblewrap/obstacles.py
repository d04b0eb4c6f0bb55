"""bubblewrap's complaint and the kernel's settings -> what stands in the way, and the exact remedy."""

from collections.abc import Mapping
from dataclasses import dataclass

from verl_pivot.node.privileges import OUR_WORDS

_FIXED_VERSION = (0, 12, 0)
_SECCOMP_REMEDY = {
    "docker": "start the container with `--security-opt seccomp=unconfined`, or a profile that allows clone "
    "and unshare with CLONE_NEWUSER",
    "kubernetes": "set `securityContext.seccompProfile.type: Unconfined` on the container",
}
_PROC_REMEDY = {
    "docker": "start the container with `--security-opt systempaths=unconfined`",
    "kubernetes": "set `securityContext.procMount: Unmasked` on the container, with `hostUsers: false` on the pod",
    "": "mount /proc without parts of it covered, as `--security-opt systempaths=unconfined` does in Docker",
}
_APPARMOR_REMEDY = (
    "write `abi <abi/4.0>, profile bwrap /usr/bin/bwrap flags=(unconfined) { userns, }` to /etc/apparmor.d/bwrap, "
    "then `sudo apparmor_parser -r /etc/apparmor.d/bwrap`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """One cause with its remedy."""

    what: str
    remedy: str


def explain(stderr: str, sysctls: Mapping[str, str], container: str) -> Obstacle:
    """Why bubblewrap did not start. Settings that forbid it outright are named before its own words are read."""
    told = stderr.strip().splitlines()[-1].removeprefix("bwrap: ") if stderr.strip() else "it said nothing"
    if told.startswith(OUR_WORDS):
        what, _, remedy = told.removeprefix(OUR_WORDS).partition(": ")
        return Obstacle(what=what, remedy=remedy)
    if "mount proc" in told:
        return Obstacle(what=f"parts of /proc are covered ({told})", remedy=_PROC_REMEDY[container])
    return (
        _forbidden(sysctls)
        or _apparmor(told, sysctls, container)
        or _refused(told, container)
        or Obstacle(
            what=f"bubblewrap cannot start ({told})", remedy="run `bwrap --unshare-all --ro-bind / / true` to see why"
        )
    )


def old_version_note(version: tuple[int, int, int]) -> str:
    """What an old bubblewrap leaves open, and why it does not matter here."""
    if version >= _FIXED_VERSION:
        return ""
    return " (CVE-2026-87766: not affected, nothing that a program wrote is ever mounted)"


def _forbidden(sysctls: Mapping[str, str]) -> Obstacle | None:
    if sysctls.get("user.max_user_namespaces") == "0":
        return _too_many("user.max_user_namespaces is 0")
    if sysctls.get("kernel.unprivileged_userns_clone") == "0":
        return Obstacle(
            what="kernel.unprivileged_userns_clone is 0",
            remedy="sudo sysctl -w kernel.unprivileged_userns_clone=1, and the same in /etc/sysctl.d to keep it",
        )
    return None


def _apparmor(told: str, sysctls: Mapping[str, str], container: str) -> Obstacle | None:
    """Ubuntu 23.10 and later let a program make a user namespace, and then take its capabilities."""
    denied = "setting up uid map: Permission denied" in told or "RTM_NEWADDR: Operation not permitted" in told
    if denied and sysctls.get("kernel.apparmor_restrict_unprivileged_userns", "0") != "0":
        return Obstacle(what=f"AppArmor restricts user namespaces ({told})", remedy=_APPARMOR_REMEDY)
    if container and ("Failed to make / slave" in told or "Failed to mount tmpfs" in told or "pivot_root" in told):
        remedy = "start the container with `--security-opt apparmor=unconfined`"
        if container == "kubernetes":
            remedy = "set `securityContext.appArmorProfile.type: Unconfined` on the container"
        return Obstacle(what=f"the container may not mount ({told})", remedy=remedy)
    return None


def _refused(told: str, container: str) -> Obstacle | None:
    if "No space left on device" in told or "max_*_namespaces exceeded" in told:
        return _too_many(told)
    if "No permissions to creat" in told or "Operation not permitted" in told:
        remedy = _SECCOMP_REMEDY.get(container, "allow user namespaces in the security policy of this machine")
        return Obstacle(what=f"user namespaces are not permitted ({told})", remedy=remedy)
    if "does not support user namespaces" in told:
        return Obstacle(what=f"the kernel has no user namespaces ({told})", remedy="boot one with CONFIG_USER_NS=y")
    return None


def _too_many(told: str) -> Obstacle:
    return Obstacle(
        what=f"no further user namespace can be made ({told})",
        remedy="sudo sysctl -w user.max_user_namespaces=15000, and the same in /etc/sysctl.d to keep it",
    )
