"""Tools and results of MCP servers -> schemas and texts: names, collisions, limits, blocks."""

from pathlib import Path
from typing import Any

import pytest
from mcp_types import (
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from mcp_types import Tool as ListedTool

from verl_pivot.errors import ConfigError
from verl_pivot.tools.mcp_frozen import write_frozen
from verl_pivot.tools.mcp_results import result_text
from verl_pivot.tools.mcp_schemas import OfferedTool, offered_tools

NOTHING: dict[str, Any] = {"type": "object", "properties": {}}


def listed(*names: str, schema: dict[str, Any] = NOTHING, **hints: bool) -> list[ListedTool]:
    annotations = ToolAnnotations(**hints) if hints else None
    return [ListedTool(name=name, description="About.", input_schema=schema, annotations=annotations) for name in names]


def test_a_tool_keeps_its_name_for_the_server_and_gets_a_legal_one_for_the_policy() -> None:
    (tool,) = offered_tools(listed("git.log"), prefix="my_")

    assert tool.name == "git.log"
    assert tool.schema == {
        "type": "function",
        "function": {"name": "my_git_log", "description": "About.", "parameters": NOTHING},
    }


@pytest.mark.parametrize(
    ("hints", "repeated"),
    [
        ({}, False),
        ({"read_only_hint": True}, True),
        ({"idempotent_hint": True}, True),
        ({"destructive_hint": False}, False),
    ],
)
def test_a_call_is_made_again_only_where_the_server_says_that_it_does_no_harm(
    hints: dict[str, bool], repeated: bool
) -> None:
    (tool,) = offered_tools(listed("a", **hints))

    assert tool.may_be_repeated is repeated


@pytest.mark.parametrize(
    ("tools", "only", "message"),
    [
        ([], (), "it offers no tools"),
        (listed("a.b", "a/b"), (), "its tools 'a.b' and 'a/b' are both called 'a_b' here; leave one out"),
        (listed("a", "a"), (), "its tools 'a' and 'a' are both called 'a' here"),
        (listed("a", "b"), ("c",), "`only` names 'c', which it does not offer; it offers a, b"),
        (listed(*map(str, range(129))), (), "it offers 129 tools, which would all be in every prompt"),
        (listed("a" * 65), (), "must have 1 to 64 characters"),
        (listed("a", schema={"type": 7}), (), "its tool 'a' has a schema that cannot be used"),
    ],
)
def test_a_wrong_listing_is_refused_with_its_reason(
    tools: list[ListedTool], only: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        offered_tools(tools, only=only)

    assert message in str(caught.value)


def test_only_leaves_out_tools_that_collide_and_tools_over_the_limit() -> None:
    assert [tool.name for tool in offered_tools(listed("a.b", "a/b"), only=["a/b"])] == ["a/b"]
    assert len(offered_tools(listed(*map(str, range(500))), only=["7", "8"])) == 2


def test_text_is_the_observation_and_images_links_and_files_are_named() -> None:
    result = CallToolResult(
        content=[
            TextContent(text="one"),
            ImageContent(data="aGk=", mime_type="image/png"),
            ResourceLink(name="log", uri="file:///log"),
            EmbeddedResource(resource=TextResourceContents(uri="file:///a", text="two")),
        ],
        structured_content={"not": "shown twice"},
    )

    assert result_text(result, 100) == "one\n[image image/png, not shown]\n[link file:///log: log]\ntwo"


def test_structured_content_is_the_observation_where_there_is_no_block() -> None:
    assert result_text(CallToolResult(content=[], structured_content={"é": 1}), 100) == '{"é": 1}'


def test_a_note_replaces_the_middle_of_a_long_result() -> None:
    result = CallToolResult(content=[TextContent(text="a" * 50 + "b" * 50)])

    assert result_text(result, 20) == "a" * 10 + "\n... [80 characters left out] ...\n" + "b" * 10


def test_frozen_tools_that_cannot_be_written_leave_the_older_ones_as_they_are(tmp_path: Path) -> None:
    path = write_frozen(str(tmp_path / "tools.yaml"), [("shop", [OfferedTool(name="add", schema={})])])
    older = path.read_bytes()
    path.with_name("tools.mcp.json.unfinished").mkdir()

    with pytest.raises(ConfigError) as caught:
        write_frozen(str(tmp_path / "tools.yaml"), [("shop", [])])

    assert str(caught.value) == (
        f"{path} cannot be written: Is a directory; free some space there, or copy the tools file to a folder of yours "
        "(an existing file is unchanged)"
    )
    assert path.read_bytes() == older
