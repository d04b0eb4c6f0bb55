"""An MCP server of a shop whose stock is its state, on stdin and stdout or with `--http PORT [--stateless]`.

`--stock JSON` gives it another stock to begin with.
"""

import asyncio
import json
import os
import sys
from typing import Annotated

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

READ_ONLY = ToolAnnotations(read_only_hint=True)
stock = {"tea": 3}
server = MCPServer("shop")


@server.tool()
def order(item: str, amount: Annotated[int, Field(ge=1)] = 1) -> str:
    """Order an item; return the number that is left."""
    if stock.get(item, 0) < amount:
        raise ToolError(f"there is no {item} left")
    stock[item] -= amount
    return str(stock[item])


@server.tool(annotations=READ_ONLY)
def left(item: str) -> int:
    """How many are left."""
    return stock.get(item, 0)


@server.tool(annotations=READ_ONLY)
def who() -> str:
    """Tell the process id, the variables and the files of the folder."""
    shown = {name: value for name, value in os.environ.items() if name not in ("LC_CTYPE", "PWD")}
    return f"{os.getpid()} {shown} {sorted(os.listdir())}"


@server.tool(name="look.at")
def look_at() -> Image:
    """Return a picture."""
    return Image(data=b"1234", format="png")


@server.tool(annotations=READ_ONLY)
async def wait(seconds: float) -> str:
    """Wait for a number of seconds."""
    await asyncio.sleep(seconds)
    return "waited"


@server.tool(annotations=READ_ONLY)
def long(characters: int) -> str:
    """Return a long text."""
    return "x" * characters


@server.tool()
def die() -> str:
    """End the process."""
    print("the shop burns", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool(annotations=READ_ONLY)
def die_once(marker: str) -> str:
    """End the process at the first call, which leaves a marker file."""
    if os.path.exists(marker):
        return "alive"
    with open(marker, "w"):
        os._exit(3)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--http"]:
        server.run("streamable-http", port=int(sys.argv[2]), stateless_http=sys.argv[3:] == ["--stateless"])
    else:
        if sys.argv[1:2] == ["--stock"]:
            stock = json.loads(sys.argv[2])
        server.run("stdio")
