"""The quickstart's shop as an MCP server on stdin and stdout, in the state with which a task begins.

It implements the protocol in a few lines: each trajectory starts a server, and importing the SDK takes most of a second
of CPU time.
"""

import argparse
import json
import sys
from typing import Any

from examples.quickstart.shop import TOOLS, Shop, open_image
from verl_pivot.types import JsonObject, ToolCall

METHOD_NOT_FOUND = -32601


def listed_tools() -> list[JsonObject]:
    """The shop's tools, as MCP lists them."""
    functions: list[Any] = [tool["function"] for tool in TOOLS]
    return [
        {"name": each["name"], "description": each["description"], "inputSchema": each["parameters"]}
        for each in functions
    ]


def result_of(method: str, params: dict[str, Any], shop: Shop) -> JsonObject | None:
    """Result of a request; None for a method that the server does not know."""
    match method:
        case "initialize":
            version, info = params["protocolVersion"], {"name": "shop", "version": "1"}
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "ping":
            return {}
        case "tools/list":
            return {"tools": [*listed_tools()]}
        case "tools/call":
            called = shop.call(ToolCall(name=params["name"], arguments=params.get("arguments") or {}))
            return {"content": [{"type": "text", "text": called.text}], "isError": not called.ok}
    return None


def main() -> None:
    """Answer the requests of one client, until its input ends."""
    options = argparse.ArgumentParser()
    options.add_argument("--seed", type=int, required=True)
    options.add_argument("--held-out", choices=("true", "false"), required=True)
    task = options.parse_args()
    with Shop(open_image(task.seed, task.held_out == "true")) as shop:
        for line in sys.stdin:
            message = json.loads(line)
            if "id" not in message or "method" not in message:  # a notification, or a response
                continue
            result = result_of(message["method"], message.get("params") or {}, shop)
            unknown = {"code": METHOD_NOT_FOUND, "message": f"there is no method {message['method']}"}
            answer = {"error": unknown} if result is None else {"result": result}
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)


if __name__ == "__main__":
    main()
