"""A careless designer who looks at pages and revises them -> transcripts, with what the real browser showed."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

from examples.render.pages import Layout, careless, page, render_options, request_text, revised
from verl_pivot.data.files import replacing
from verl_pivot.data.json_values import encode_json
from verl_pivot.data.trajectories import read_trajectories, trajectory_as_dict
from verl_pivot.tools.toolset import Toolset, load_toolset
from verl_pivot.types import Message, Role, ToolCall, Trajectory

TOOLS = Path(__file__).with_name("tools.yaml")
MAX_LOOKS = 2
"""Most pages that the designer looks at before it says that it is done."""
DONE = "It is done."
_CONCURRENCY = 4


def record_transcripts(path: Path, asked: Sequence[Layout], seed: int) -> list[Trajectory]:
    """One transcript for each request, from a file if an earlier run wrote it, since the browser takes minutes.

    Raises:
        RuntimeError: If the browser fails.
    """
    if not path.is_file():
        made = asyncio.run(_record_all(asked, seed))
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as unfinished:
            unfinished.write_text("".join(encode_json(trajectory_as_dict(each)) + "\n" for each in made))
    return list(read_trajectories(path))


async def _record_all(asked: Sequence[Layout], seed: int) -> list[Trajectory]:
    toolset, slots = load_toolset(str(TOOLS)), asyncio.Semaphore(_CONCURRENCY)
    made = (_record(f"page-{seed}-{number}", each, toolset, slots) for number, each in enumerate(asked))
    return await asyncio.gather(*made)


async def _record(name: str, wanted: Layout, toolset: Toolset, slots: asyncio.Semaphore) -> Trajectory:
    rng = Random(name)
    messages = [Message(role=Role.USER, content=request_text(wanted))]
    made = careless(wanted, rng)
    async with slots, toolset.open({"metadata": json.dumps({"render": render_options(wanted)})}) as tools:
        for number in range(rng.randint(1, MAX_LOOKS)):
            call = ToolCall(name="look", arguments={"html": page(made)}, id=f"call_{number}")
            (outcome,) = await tools.toolbox.run([call])
            if outcome.observation is None:
                raise RuntimeError(f"the browser failed: {outcome.failure}")
            shown = Message(role=Role.TOOL, content=outcome.observation.text, tool_call_id=call.id, name=call.name)
            messages += [Message(role=Role.ASSISTANT, tool_calls=(call,)), shown]
            made = revised(made, wanted, rng)
    messages.append(Message(role=Role.ASSISTANT, content=DONE))
    return Trajectory(id=name, messages=tuple(messages), tools=tuple(toolset.schemas))
