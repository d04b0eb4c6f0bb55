"""The installed verl and the choices of a launch -> the hooks that differ; an error if a choice needs one of them."""

import importlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from verl_pivot.errors import NOTE, ConfigError
from verl_pivot.hooks import HOOKS, Hook

TESTED_RELEASE = "0.9.1"
"""The release of verl that the contract tests compare every hook with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookDifference:
    """A hook that is different in the installed verl from what this package uses."""

    hook: Hook
    what: str
    """What differs, such as "is not there (...)"."""

    def __str__(self) -> str:
        return f"{self.hook} {self.what}"


def hook_differences(hooks: Sequence[Hook] = HOOKS) -> tuple[HookDifference, ...]:
    """Every hook that differs; imports verl's trainer, its agent loops and its router, which takes seconds."""
    with warnings.catch_warnings(action="ignore"):  # verl warns of each engine that is not installed
        found = [(hook, hook.difference()) for hook in hooks]
    return tuple(HookDifference(hook=hook, what=what) for hook, what in found if what is not None)


def describe(differences: Sequence[HookDifference], verl_version: str) -> str:
    """One sentence, such as "verl 0.10.0.dev: 1 of 38 hooks differs: ..."."""
    if not differences:
        return f"verl {verl_version}: all {len(HOOKS)} hooks are as in verl {TESTED_RELEASE}"
    verb = "differs" if len(differences) == 1 else "differ"
    listed = "; ".join(map(str, differences))
    return f"verl {verl_version}: {len(differences)} of {len(HOOKS)} hooks {verb}: {listed}"


def check_hooks(choices: Mapping[str, object]) -> None:
    """Compare the hooks if verl is not the tested release; print what differs, and go on if this launch can.

    Args:
        choices: {config group: option} of the launch; a method is named as this package names it.

    Raises:
        ConfigError: If the method, the router or `+local=cpu` of this launch needs a hook that differs.
    """
    if is_tested_release():
        return
    differences = hook_differences()
    sentence = describe(differences, verl_version())
    chosen = chosen_parts(choices)
    if broken := needed_differences(differences, chosen):
        parts = sorted({chosen[part] for difference in broken for part in difference.hook.needed_by if part in chosen})
        raise ConfigError(f"{sentence}. {' and '.join(parts)} cannot run on it: pip install verl=={TESTED_RELEASE}")
    needless = f"; {' '.join(chosen.values())} needs none of them" if differences else ""
    print(f"{NOTE}{sentence}{needless}", file=sys.stderr)


def chosen_parts(choices: Mapping[str, object]) -> dict[str, str]:
    """{part of a launch that may need hooks: override that chose the part}.

    Example:
        chosen_parts({"method": "pivotrl", "router": "kv_forecast"})
        # {"pivotrl": "+method=pivotrl", "router": "+router=kv_forecast"}
    """
    chosen = {group.lstrip("/").partition("@")[0]: option for group, option in choices.items()}
    methods = {str(option): f"+method={option}" for group, option in chosen.items() if group == "method"}
    groups = {group: f"+{group}={option}" for group, option in chosen.items() if group in ("router", "local")}
    return methods | groups


def needed_differences(differences: Sequence[HookDifference], parts: Mapping[str, str]) -> list[HookDifference]:
    """The differences that break at least one of the parts."""
    return [difference for difference in differences if any(part in parts for part in difference.hook.needed_by)]


def verl_version() -> str:
    """The version of the verl that this process imports, which may be a checkout that pip does not know."""
    return str(importlib.import_module("verl").__version__)


def is_tested_release() -> bool:
    """Whether the verl that this process imports was installed from a package index, in the tested version."""
    try:
        installed = distribution("verl")
    except PackageNotFoundError:
        return False
    imported = Path(str(importlib.import_module("verl").__file__)).parents[1]
    is_from_index = installed.read_text("direct_url.json") is None
    return (
        is_from_index
        and imported == Path(str(installed.locate_file("")))
        and installed.version == verl_version() == TESTED_RELEASE
    )
