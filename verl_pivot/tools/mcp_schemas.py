"""Tools that an MCP server offers -> schemas in the OpenAI form, under names that chat templates accept."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from verl_pivot.data.json_values import BadRowError, decode_json, encode_json
from verl_pivot.data.tool_schemas import name_of, parse_tools
from verl_pivot.errors import ConfigError
from verl_pivot.extras import extra
from verl_pivot.types import JsonObject

with extra("mcp"):
    from mcp_types import Tool as ListedTool

MOST_TOOLS = 128
"""Number of tools of one server above which a tools file must choose some, since every prompt lists all of them."""
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTool:
    """One tool of a server."""

    name: str
    """Name under which the server knows it."""
    schema: JsonObject
    """Schema in the OpenAI form, under the name that the policy uses."""
    is_read_only: bool = False
    """Whether the server says that its calls change nothing."""
    is_idempotent: bool = False
    """Whether the server says that a second call with the same arguments changes nothing more."""

    @property
    def may_be_repeated(self) -> bool:
        return self.is_read_only or self.is_idempotent


def offered_tools(listed: Sequence[ListedTool], *, only: Sequence[str] = (), prefix: str = "") -> list[OfferedTool]:
    """The tools that the policy gets.

    Args:
        listed: Answer to `tools/list`.
        only: Names of the tools to take, as the server gives them; if empty, all are taken.
        prefix: Put before each name, for servers whose tools have equal names.

    Raises:
        ConfigError: If there are no tools or too many, one of `only` is missing, two have the same name, or a schema is
            wrong.
    """
    names = [tool.name for tool in listed]
    if not names:
        raise ConfigError("it offers no tools")
    if missing := [name for name in only if name not in names]:
        shown = ", ".join(names[:MOST_TOOLS])
        raise ConfigError(f"`only` names {missing[0]!r}, which it does not offer; it offers {shown}")
    chosen = [tool for tool in listed if not only or tool.name in only]
    if len(chosen) > MOST_TOOLS:
        raise ConfigError(
            f"it offers {len(chosen)} tools, which would all be in every prompt; name at most {MOST_TOOLS} of them "
            "with `only: [...]`"
        )
    tools = [_offered(tool, prefix) for tool in chosen]
    taken: dict[str, str] = {}
    for tool in tools:
        other = taken.setdefault(name_of(tool.schema), tool.name)
        if other != tool.name or names.count(tool.name) > 1:
            raise ConfigError(
                f"its tools {other!r} and {tool.name!r} are both called {name_of(tool.schema)!r} here; leave one out "
                "with `only: [...]`"
            )
    return tools


def _offered(tool: ListedTool, prefix: str) -> OfferedTool:
    name = _ILLEGAL.sub("_", prefix + tool.name)
    if not 0 < len(name) <= _LONGEST_NAME:
        raise ConfigError(
            f"the name of its tool {tool.name!r:.80} must have 1 to {_LONGEST_NAME} characters, the prefix {prefix!r} "
            "included"
        )
    description = tool.description or tool.title or ""
    function: JsonObject = {"name": name, "description": description, "parameters": tool.input_schema}
    try:
        # Through JSON, which refuses NaN and lone surrogates: no tokenizer and no trainer accepts them.
        (schema,) = parse_tools(decode_json(encode_json([{"type": "function", "function": function}])))
    except BadRowError as error:
        raise ConfigError(f"its tool {tool.name!r} has a schema that cannot be used: {error}") from error
    hints = tool.annotations
    return OfferedTool(
        name=tool.name,
        schema=schema,
        is_read_only=bool(hints and hints.read_only_hint),
        is_idempotent=bool(hints and hints.idempotent_hint),
    )
