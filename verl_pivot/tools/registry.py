"""Names of built-in tools and of other frameworks -> tools and environments, made from options of a tools file."""

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel

from verl_pivot.registry import Registry
from verl_pivot.tools.contract import Tool
from verl_pivot.tools.environments import EnvironmentSource
from verl_pivot.types import JsonObject
from verl_pivot.validation import Options

ToolMakerT = TypeVar("ToolMakerT", bound=Callable[[Any], Tool])
SourceMakerT = TypeVar("SourceMakerT", bound=Callable[[Any], EnvironmentSource])

_CODE = "verl_pivot.tools.code_tools"
_tools: Registry[Tool] = Registry(
    "tool",
    shipped={
        "bash": _CODE,
        "jupyter_code": _CODE,
        "python_code_with_standard_io": _CODE,
        "search": "verl_pivot.tools.search",
        "sql": "verl_pivot.tools.sql",
    },
    remedy="for a tool of your own write `- function: package.module:name`",
)
_frameworks: Registry[EnvironmentSource] = Registry(
    "environment",
    shipped={
        "browser": "verl_pivot.environments.browser_source",
        "gymnasium": "verl_pivot.environments.gymnasium_source",
        "miniwob": "verl_pivot.environments.miniwob",
        "nemo_gym": "verl_pivot.environments.nemo_gym",
        "openenv": "verl_pivot.environments.openenv",
    },
    remedy="for an environment of your own write `- environment: package.module:Class`",
)


def register_tool(name: str, *, options: type[Options]) -> Callable[[ToolMakerT], ToolMakerT]:
    """Register a tool under the name that a tools file uses: `- tool: <name>`.

    Args:
        name: A name that no other tool has.
        options: Type of the tool's options; the decorated class or function takes an instance and makes the tool.
    """
    return _tools.register(name, options=options)


def make_tool(name: str, options: JsonObject) -> Tool:
    """The tool of that name with these options.

    Raises:
        ConfigError: If there is no such tool, or it does not take the options.
    """
    return _tools.make(name, options)


def known_tools() -> tuple[str, ...]:
    """Names of all built-in tools, in alphabetical order."""
    return _tools.names


def tool_options(name: str) -> type[BaseModel] | None:
    """Type of a tool's options.

    Raises:
        ConfigError: If there is no such tool.
    """
    return _tools.find(name).options


def register_framework(name: str, *, options: type[Options]) -> Callable[[SourceMakerT], SourceMakerT]:
    """Register a source of a framework's environments, which tools files name by `- environment: <name>:...`.

    Args:
        name: A name that no other framework has.
        options: Type of the entry; the decorated class takes an instance, in which `environment` is the text after the
            colon.
    """
    return _frameworks.register(name, options=options)


def make_source(framework: str, options: JsonObject) -> EnvironmentSource:
    """Source of the environments of an entry.

    Args:
        framework: One of `known_frameworks`.
        options: The entry, in which `environment` is the text after the colon.

    Raises:
        ConfigError: If the environment cannot be made, or does not take the options.
    """
    return _frameworks.make(framework, options)


def known_frameworks() -> tuple[str, ...]:
    """Names of the frameworks whose environments can be named, in alphabetical order."""
    return _frameworks.names
