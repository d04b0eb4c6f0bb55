"""A player who tosses a coin for each move -> transcripts, with observations of the real environment."""

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path

from examples.blackjack.hands import MOVES, TASK
from verl_pivot.rollout.observations import with_opening
from verl_pivot.tools.toolset import Toolset, load_toolset
from verl_pivot.types import Message, Role, ToolCall, Trajectory

TOOLS = Path(__file__).with_name("tools.yaml")
_CONCURRENCY = 8


def record_transcripts(seeds: Sequence[int]) -> list[Trajectory]:
    """One transcript per seed; equal seeds give equal transcripts.

    Raises:
        RuntimeError: If the environment fails.
    """
    toolset = load_toolset(str(TOOLS))

    async def record_all() -> list[Trajectory]:
        slots = asyncio.Semaphore(_CONCURRENCY)
        async with asyncio.TaskGroup() as group:
            jobs = [group.create_task(_record(seed, toolset, slots)) for seed in seeds]
        return [job.result() for job in jobs]

    return asyncio.run(record_all())


async def _record(seed: int, toolset: Toolset, slots: asyncio.Semaphore) -> Trajectory:
    rng = random.Random(f"coin-{seed}")
    async with slots, toolset.open({"metadata": json.dumps({"seed": seed})}) as tools:
        (prompt,) = with_opening([{"role": "user", "content": TASK.format(seed=seed)}], tools.opening)
        messages = [Message(role=Role.USER, content=str(prompt["content"]))]
        has_ended = False
        while not has_ended:
            call = ToolCall(name="play", arguments={"move": rng.choice(MOVES)}, id=f"call_{len(messages)}")
            (outcome,) = await tools.toolbox.run([call])
            if outcome.observation is None:
                raise RuntimeError(f"the environment failed: {outcome.failure}")
            messages.append(Message(role=Role.ASSISTANT, tool_calls=(call,)))
            result = Message(role=Role.TOOL, content=outcome.observation.text, tool_call_id=call.id, name=call.name)
            messages.append(result)
            has_ended = outcome.observation.end is not None
    return Trajectory(id=f"hand-{seed}", messages=tuple(messages), tools=tuple(toolset.schemas))
