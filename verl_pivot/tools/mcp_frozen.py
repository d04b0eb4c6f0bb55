"""Frozen tools of MCP servers: a file beside the tools file, with which later listings must agree."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from verl_pivot.data.json_values import as_list, as_object, decode_json
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.tools.mcp_schemas import OfferedTool
from verl_pivot.types import Json


def frozen_path(tools_file: str) -> Path:
    """Path of the frozen tools of a tools file: `tools.mcp.json` beside `tools.yaml`."""
    return Path(tools_file).with_suffix(".mcp.json")


def write_frozen(tools_file: str, servers: Sequence[tuple[str, Sequence[OfferedTool]]]) -> Path:
    """Write the tools of each server.

    Args:
        tools_file: Path of the tools file.
        servers: (label, tools) of each server, in the order of the file.

    Returns:
        Path of the written file.

    Raises:
        ConfigError: If the file cannot be written; an older one stays as it is.
    """
    path = frozen_path(tools_file)
    frozen = [{"server": label, "tools": [asdict(tool) for tool in tools]} for label, tools in servers]
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        unfinished.write_text(json.dumps(frozen, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}; free some space there, or copy the tools file to a folder of "
            "yours (an existing file is unchanged)"
        ) from error
    return path


def check_frozen(tools_file: str, index: int, label: str, tools: Sequence[OfferedTool]) -> None:
    """Refuse a server whose tools differ from the frozen ones, if there are any.

    Args:
        tools_file: Path of the tools file.
        index: Number of the server among those of the file, from 0.
        label: Name of the server in messages.
        tools: Tools that it offers now.

    Raises:
        ConfigError: If a tool differs, or the frozen file is of other servers or holds no frozen tools.
    """
    path = frozen_path(tools_file)
    if not path.is_file():
        return
    remedy = f"run `verl-pivot mcp freeze {tools_file}` again"
    try:
        listed = as_list(decode_json(path.read_text(encoding="utf-8")), "the file")
        servers = [as_object(each, "a frozen server") for each in listed]
    except (DataError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} holds no frozen tools ({error}); {remedy}") from error
    if index >= len(servers) or servers[index].get("server") != label:
        raise ConfigError(f"MCP server {label} is not the one that {path} has for this entry; {remedy}")
    frozen = _by_name(servers[index].get("tools"))
    offered = _by_name([asdict(tool) for tool in tools])
    names = (*offered, *frozen)
    if different := next((name for name in names if frozen.get(name) != offered.get(name)), None):
        change = f"tool {different!r} was changed, added or removed after {path} was written"
        raise ConfigError(f"MCP server {label}: {change}; {remedy}")


def _by_name(tools: Json) -> dict[str, Json]:
    listed = tools if isinstance(tools, list) else []
    return {str(tool.get("name")): tool for tool in listed if isinstance(tool, dict)}
