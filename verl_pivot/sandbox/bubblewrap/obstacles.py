"""Error text of bubblewrap and settings of the kernel -> the obstacle to sandboxes, with the exact remedy."""

from collections.abc import Mapping
from dataclasses import dataclass

from verl_pivot.sandbox.bubblewrap.privileges import MESSAGE_PREFIX

_FIXED_VERSION = (0, 12, 0)
"""First version of bubblewrap without CVE-2026-87766."""
_SECCOMP_REMEDY = {
    "docker": "start the container with `--security-opt seccomp=unconfined`, or a profile that allows clone "
    "and unshare with CLONE_NEWUSER",
    "kubernetes": "set `securityContext.seccompProfile.type: Unconfined` on the container",
}
_PROC_REMEDY = {
    "docker": "start the container with `--security-opt systempaths=unconfined`",
    "kubernetes": "set `securityContext.procMount: Unmasked` on the container, with `hostUsers: false` on the pod",
    "": "mount /proc without covered parts, as `--security-opt systempaths=unconfined` does in Docker",
}
_APPARMOR_REMEDY = (
    "write `abi <abi/4.0>, profile bwrap /usr/bin/bwrap flags=(unconfined) { userns, }` to /etc/apparmor.d/bwrap, "
    "then `sudo apparmor_parser -r /etc/apparmor.d/bwrap`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """One cause with its remedy."""

    what: str
    """Cause."""
    remedy: str
    """Command or setting that removes the cause."""


def explain(stderr: str, sysctls: Mapping[str, str], container: str) -> Obstacle:
    """Why bubblewrap did not start. Kernel settings that forbid sandboxes outright come before bubblewrap's own text.

    Args:
        stderr: Error text of bubblewrap.
        sysctls: {name: value} of kernel settings that exist.
        container: "docker", "kubernetes" or "".
    """
    message = stderr.strip().splitlines()[-1].removeprefix("bwrap: ") if stderr.strip() else "no error text"
    if message.startswith(MESSAGE_PREFIX):
        what, _, remedy = message.removeprefix(MESSAGE_PREFIX).partition(": ")
        return Obstacle(what=what, remedy=remedy)
    if "mount proc" in message:
        return Obstacle(what=f"parts of /proc are covered ({message})", remedy=_PROC_REMEDY[container])
    return (
        _forbidden(sysctls)
        or _apparmor(message, sysctls, container)
        or _refused(message, container)
        or Obstacle(
            what=f"bubblewrap cannot start ({message})",
            remedy="run `bwrap --unshare-all --ro-bind / / true` to see why",
        )
    )


def old_version_note(version: tuple[int, int, int]) -> str:
    """Note on the vulnerability of an old bubblewrap and why it does not matter here; "" for a fixed version."""
    if version >= _FIXED_VERSION:
        return ""
    return " (CVE-2026-87766: not affected, nothing that a program wrote is ever mounted)"


def _forbidden(sysctls: Mapping[str, str]) -> Obstacle | None:
    """Obstacle if a kernel setting forbids user namespaces."""
    if sysctls.get("user.max_user_namespaces") == "0":
        return _too_many("user.max_user_namespaces is 0")
    if sysctls.get("kernel.unprivileged_userns_clone") == "0":
        return Obstacle(
            what="kernel.unprivileged_userns_clone is 0",
            remedy="sudo sysctl -w kernel.unprivileged_userns_clone=1, and the same in /etc/sysctl.d to keep it",
        )
    return None


def _apparmor(message: str, sysctls: Mapping[str, str], container: str) -> Obstacle | None:
    """Obstacle if AppArmor forbids mounts, or leaves a user namespace no capabilities, as Ubuntu does since 23.10."""
    denied = "setting up uid map: Permission denied" in message or "RTM_NEWADDR: Operation not permitted" in message
    if denied and sysctls.get("kernel.apparmor_restrict_unprivileged_userns", "0") != "0":
        return Obstacle(what=f"AppArmor restricts user namespaces ({message})", remedy=_APPARMOR_REMEDY)
    no_mounts = ("Failed to make / slave", "Failed to mount tmpfs", "pivot_root")
    if container and any(text in message for text in no_mounts):
        remedy = "start the container with `--security-opt apparmor=unconfined`"
        if container == "kubernetes":
            remedy = "set `securityContext.appArmorProfile.type: Unconfined` on the container"
        return Obstacle(what=f"the container may not mount ({message})", remedy=remedy)
    return None


def _refused(message: str, container: str) -> Obstacle | None:
    """Obstacle if the kernel, or a container's seccomp profile, refused a user namespace."""
    if "No space left on device" in message or "max_*_namespaces exceeded" in message:
        return _too_many(message)
    if "No permissions to creat" in message or "Operation not permitted" in message:
        remedy = _SECCOMP_REMEDY.get(container, "allow user namespaces in the security policy of this machine")
        return Obstacle(what=f"user namespaces are not permitted ({message})", remedy=remedy)
    if "does not support user namespaces" in message:
        what = f"the kernel has no user namespaces ({message})"
        return Obstacle(what=what, remedy="boot a kernel with CONFIG_USER_NS=y")
    return None


def _too_many(message: str) -> Obstacle:
    return Obstacle(
        what=f"no more user namespaces can be created ({message})",
        remedy="sudo sysctl -w user.max_user_namespaces=15000, and the same in /etc/sysctl.d to keep it",
    )
