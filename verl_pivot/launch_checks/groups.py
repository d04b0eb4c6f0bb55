"""Chosen config groups -> an error if one of them does not apply to the method."""

from collections.abc import Mapping
from typing import Any

from verl_pivot.errors import ConfigError

_APPLY_TO = {
    "stage": ("grpo_roc",),
    "tool_format": ("tool_rollout", "grpo_roc"),
    "tail": ("pivotrl", "tool_rollout", "grpo_roc"),
}
"""{config group: methods that it belongs to}"""


def check_choices(choices: Mapping[str, Any]) -> None:
    """Refuse a stage, a tool format or a tail beside a method that has none, or without a method.

    Args:
        choices: {config group: chosen option} of Hydra.

    Raises:
        ConfigError: Naming the methods that the group belongs to.
    """
    method = choices.get("method")
    for group, methods in _APPLY_TO.items():
        if group in choices and method not in methods:
            allowed = " or ".join(f"+method={each}" for each in methods)
            got = "no +method" if method is None else f"+method={method}"
            raise ConfigError(f"+{group}={choices[group]} applies to {allowed}, and the command has {got}")


def check_arguments(arguments: Mapping[str, str]) -> None:
    """Refuse the same on a command line whose method is missing altogether, since only a method checks the launch.

    Args:
        arguments: {key without +: value} of the command line.

    Raises:
        ConfigError: Naming the methods that the group belongs to.
    """
    if "method" not in arguments:
        check_choices({group: arguments[group] for group in _APPLY_TO if group in arguments})
