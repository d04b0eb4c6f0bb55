"""`verl-pivot mcp list` and `freeze`: a tools file -> the tools that its MCP servers offer, as the policy gets them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from verl_pivot.tools.mcp_schemas import OfferedTool
    from verl_pivot.tools.mcp_servers import McpServer
    from verl_pivot.types import Json, JsonObject

mcp_app = typer.Typer(help="Look at the MCP servers of a tools file.", no_args_is_help=True)


@mcp_app.callback()
def mcp() -> None:
    """Look at the MCP servers of a tools file."""


@mcp_app.command("list")
def list_command(tools: Annotated[Path, typer.Argument(help="The tools file.")]) -> None:
    """List the tools of each MCP server: signature and description, and why a server cannot be used.

    Every server is started, asked and ended, as at the beginning of a launch. The exit code is 1 if one of them cannot
    be used.

    \b
    Examples:
    verl-pivot mcp list tools.yaml
    verl-pivot mcp list configs/tools/browser.yaml
    """
    _read(tools, meets_frozen=True, on_server=_print_server)


@mcp_app.command("freeze")
def freeze_command(tools: Annotated[Path, typer.Argument(help="The tools file.")]) -> None:
    """Write the tools of each MCP server beside the tools file: tools.mcp.json beside tools.yaml.

    From then on every launch stops if a server offers other tools, another schema or another description, since the
    prompts would change.

    \b
    Examples:
    verl-pivot mcp freeze tools.yaml
    verl-pivot mcp freeze configs/tools/browser.yaml
    """
    servers: list[McpServer] = []
    _read(tools, meets_frozen=False, on_server=servers.append)
    from verl_pivot.tools.mcp_frozen import write_frozen

    path = write_frozen(str(tools), [(server.entry.label, server.offered) for server in servers])
    typer.echo(f"Wrote {path}: {sum(len(server.offered) for server in servers)} tools of {len(servers)} servers.")


def _read(tools: Path, *, meets_frozen: bool, on_server: "Callable[[McpServer], None]") -> None:
    """Start and ask every MCP server of a tools file, and raise at the end what is wrong with any of them."""
    from verl_pivot.tools.tools_file import read_entries
    from verl_pivot.tools.toolset import Toolset

    toolset = Toolset(str(tools), meets_frozen=meets_frozen)
    numbered = [(number, entry) for number, entry in enumerate(read_entries(str(tools))) if _is_server(entry)]
    if not numbered:
        raise ConfigError(f"{tools} names no MCP server; an entry for one begins with `- mcp:`")
    problems = []
    for number, entry in numbered:
        try:
            toolset.add_entry(entry)
        except ConfigError as error:
            problems.append(f"{tools}, entry {number}: {error}")
        else:
            on_server(toolset.servers[-1])
    if problems:
        raise ConfigError("\n".join(problems))


def _print_server(server: "McpServer") -> None:
    typer.echo(f"{server.entry.label}: {len(server.offered)} tools, session: {server.entry.session.value}")
    for tool in server.offered:
        typer.echo(_shown(tool))


def _is_server(entry: object) -> bool:
    return isinstance(entry, dict) and "mcp" in entry


def _shown(tool: "OfferedTool") -> str:
    """Signature and description of a tool, indented."""
    function = tool.schema["function"]
    assert isinstance(function, dict), tool
    repeated = "  (a failed call is made again)" if tool.may_be_repeated else ""
    about = " ".join(str(function.get("description", "")).split())
    lines = [f"  {function['name']}({_parameters(function.get('parameters'))}){repeated}"]
    return "\n".join([*lines, *([f"      {about}"] if about else [])])


def _parameters(schema: "Json") -> str:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    required = schema.get("required") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return ""
    names = required if isinstance(required, list) else []
    shown = [f"{name}: {_type(value)}" + ("" if name in names else " = ...") for name, value in properties.items()]
    return ", ".join(shown)


def _type(schema: "Json") -> str:
    if not isinstance(schema, dict):
        return "any"
    if isinstance(schema.get("anyOf"), list):
        return " | ".join(map(_type, _alternatives(schema)))
    kind = schema.get("type", "any")
    return " | ".join(map(str, kind)) if isinstance(kind, list) else str(kind)


def _alternatives(schema: "JsonObject") -> "list[Json]":
    alternatives = schema["anyOf"]
    assert isinstance(alternatives, list), schema
    return alternatives
