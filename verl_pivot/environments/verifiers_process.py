"""An environment of verifiers (up to 0.1.14) as a process of its own Python, with which lines of JSON are exchanged.

It runs where verifiers is installed, and verl-pivot need not be: it imports the standard library and verifiers alone.
`python verifiers_process.py NAME ARGUMENTS rows` prints the environment's data set, a row a line. With `play` it reads
{"id", "task", "base_url", "api_key"} for each trajectory, many of which are under way at once, and answers
{"id", "reward", "metrics", "error"} as each ends; {"cancel": id} ends one before.
"""

import asyncio
import functools
import json
import os
import sys
from typing import Any, TextIO

MODEL = "policy"


def main(name: str, arguments: str, mode: str) -> None:
    wire = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the environment's own code prints is no answer
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if folder != own]  # its files have the names of other frameworks
    import verifiers

    environment = verifiers.load_environment(name, **json.loads(arguments))
    if mode == "rows":
        for row in environment.get_dataset():
            write(wire, {key: value for key, value in row.items() if key in ("prompt", "answer", "info", "example_id")})
    else:
        asyncio.run(serve(environment, wire))


def write(wire: TextIO, value: dict[str, Any]) -> None:
    wire.write(json.dumps(value, default=str) + "\n")


async def serve(environment: Any, wire: TextIO) -> None:
    """Play trajectories until standard input ends."""
    loop = asyncio.get_running_loop()
    running: dict[int, asyncio.Task[None]] = {}
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        if "cancel" in asked:
            if asked["cancel"] in running:
                running[asked["cancel"]].cancel()
            continue
        number = asked["id"]
        running[number] = task = asyncio.create_task(answer(environment, asked, wire))
        task.add_done_callback(functools.partial(forget, running, number))


def forget(running: dict[int, "asyncio.Task[None]"], number: int, _: object) -> None:
    del running[number]


async def answer(environment: Any, asked: dict[str, Any], wire: TextIO) -> None:
    """Play one trajectory and write what came of it; nothing if it is cancelled."""
    try:
        report = await play(environment, asked)
    except Exception as error:  # noqa: BLE001  whatever the environment raises, its trajectory has failed
        report = {"error": f"{type(error).__name__}: {error}"}
    write(wire, {"id": asked["id"], **report})


async def play(environment: Any, asked: dict[str, Any]) -> dict[str, Any]:
    from verifiers.types import ClientConfig

    variable = f"VERL_PIVOT_KEY_{asked['id']}"  # verifiers takes keys from the environment's variables alone
    os.environ[variable] = asked["api_key"]
    try:
        client = ClientConfig(api_key_var=variable, api_base_url=asked["base_url"], max_retries=0)
        output = await environment.run_rollout(asked["task"], client, MODEL, {})
    finally:
        del os.environ[variable]
    if output.get("error") and not output.get("is_truncated"):
        return {"error": str(output["error"])}
    return {"reward": output["reward"], "metrics": output.get("metrics") or {}}


if __name__ == "__main__":
    main(*sys.argv[1:])
