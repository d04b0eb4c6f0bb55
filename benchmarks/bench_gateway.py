"""Milliseconds that the model gateway adds to a request, for one conversation alone and for 256 at once.

Run by `make bench-gateway`, or with other sizes by `python -m benchmarks.bench_gateway --help`. The engine is scripted
and answers at once, so that only the gateway is measured, with its HTTP client, chat template and tokenizer.
"""

import asyncio
import statistics
import time
from typing import Annotated, Any

import aiohttp
import typer
from rich.table import Table

from tests.support.scripted_engine import make_loop, row
from verl_pivot.commands.tables import table_console
from verl_pivot.rollout.driven_trajectory import DrivenTrajectory
from verl_pivot.rollout.model_gateway import ModelGateway

ANSWER = "The next number is the sum of the two before it."


def main(
    turns: Annotated[int, typer.Option(min=1, help="Requests per conversation.")] = 8,
    conversations: Annotated[int, typer.Option(min=1, help="Conversations at once.")] = 256,
    rounds: Annotated[int, typer.Option(min=1, help="Conversations of the first row, one at a time.")] = 20,
) -> None:
    """Print milliseconds per request, and check that each trajectory is one conversation with all its turns."""
    table = Table(title=f"conversations of {turns} requests, an engine that answers at once")
    for column in ("conversations at once", "ms per request"):
        table.add_column(column, justify="right")
    alone = [asyncio.run(seconds_per_request(1, turns)) for _ in range(rounds + 1)][1:]  # the first one warms up
    table.add_row("1", f"{1000 * statistics.median(alone):.2f} (median of {rounds})")
    table.add_row(str(conversations), f"{1000 * asyncio.run(seconds_per_request(conversations, turns)):.2f}")
    table_console().print(table)


async def seconds_per_request(number: int, turns: int) -> float:
    """Seconds per request, with `number` conversations at once."""
    loops = [make_loop([ANSWER] * turns) for _ in range(number)]
    trajectories = [DrivenTrajectory(loop._parts, {"temperature": 1.0, "logprobs": True}) for loop in loops]
    async with ModelGateway() as gateway, aiohttp.ClientSession() as client:
        await asyncio.gather(*(converse(gateway, client, each, 0) for each in trajectories))  # starts the server
        began = time.perf_counter()
        await asyncio.gather(*(converse(gateway, client, each, turns) for each in trajectories))
        seconds = time.perf_counter() - began
    for trajectory in trajectories:
        (conversation,) = trajectory.conversations
        assert len(conversation.turns) == turns
    return seconds / (number * turns)


async def converse(
    gateway: ModelGateway, client: aiohttp.ClientSession, trajectory: DrivenTrajectory, turns: int
) -> None:
    """Hold one conversation."""
    messages: list[dict[str, Any]] = list(row()["raw_prompt"])
    async with gateway.opened(trajectory) as endpoint:
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        for _ in range(turns):
            url = f"{endpoint.base_url}/chat/completions"
            async with client.post(url, json={"messages": messages}, headers=headers) as answer:
                body = await answer.json()
            messages += [body["choices"][0]["message"], {"role": "user", "content": "Go on."}]


if __name__ == "__main__":
    typer.run(main)
