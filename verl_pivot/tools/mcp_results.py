"""Result of an MCP server's tool -> the text that the policy reads."""

import json

from verl_pivot.extras import extra
from verl_pivot.tools.tool_response import shortened

with extra("mcp"):
    from mcp_types import (
        AudioContent,
        CallToolResult,
        ContentBlock,
        EmbeddedResource,
        ImageContent,
        TextContent,
        TextResourceContents,
    )


def result_text(result: CallToolResult, max_characters: int) -> str:
    """Text of a result: its blocks, one below the other, or its structured content if it has no blocks.

    A server that gives structured content says the same in text, as the protocol asks. Images, sounds, files and links
    become a line that names them.

    Args:
        result: Result of `tools/call`.
        max_characters: Most characters of the text; a note replaces the middle of a longer one.
    """
    text = "\n".join(map(_block, result.content))
    if not result.content and result.structured_content is not None:
        text = json.dumps(result.structured_content, ensure_ascii=False)
    return shortened(text, max_characters)


def _block(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            return f"[{block.type} {block.mime_type}, not shown]"
        case EmbeddedResource(resource=TextResourceContents() as resource):
            return resource.text
        case EmbeddedResource(resource=resource):
            return f"[file {resource.uri}, not shown]"
    return f"[link {block.uri}: {block.description or block.title or block.name}]"
