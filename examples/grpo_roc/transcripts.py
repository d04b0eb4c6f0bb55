"""A careless programmer who solves problems: seeds -> transcripts, with observations of the real tool."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

from examples.grpo_roc.problems import Problem, break_code, make_problem
from verl_pivot.tools.calls import Toolbox
from verl_pivot.tools.toolset import load_toolset
from verl_pivot.types import Message, Role, ToolCall, Trajectory

TOOLS = Path(__file__).parent / "tools.yaml"
_TOOL = "jupyter_code"
_CONCURRENCY = 8


def record_transcripts(seeds: Sequence[int], *, carelessness: float) -> list[Trajectory]:
    """One transcript per seed; equal seeds and carelessness give equal transcripts.

    Raises:
        RuntimeError: If the sandbox fails.
    """

    async def record_all() -> list[Trajectory]:
        slots = asyncio.Semaphore(_CONCURRENCY)
        async with asyncio.TaskGroup() as group:
            jobs = [group.create_task(_record(seed, carelessness, slots)) for seed in seeds]
        return [job.result() for job in jobs]

    return asyncio.run(record_all())


def plan(problem: Problem, rng: random.Random, carelessness: float) -> list[str]:
    """Cells that the programmer runs one after the other, of which only the last one succeeds.

    Whether the logic is right and how many cells fail are independent of each other.

    Args:
        carelessness: Chance that the first cell fails. A slip in the logic is half as likely. After each failing cell,
            another one is a third as likely, up to three in all. At 0.0 each problem is solved at once.
    """
    code = problem.slip if rng.random() < carelessness / 2 else problem.code
    cells: list[str] = []
    chance = carelessness
    while rng.random() < chance and len(cells) < 3:
        cells.append(break_code(code, rng))
        chance = carelessness / 3
    return [*cells, code]


async def _record(seed: int, carelessness: float, slots: asyncio.Semaphore) -> Trajectory:
    problem = make_problem(seed)
    cells = plan(problem, random.Random(f"programmer-{seed}"), carelessness)
    messages = [Message(role=Role.USER, content=problem.text)]
    async with slots, load_toolset(str(TOOLS)).open({}) as tools:
        for cell in cells:
            call = ToolCall(name=_TOOL, arguments={"code": cell})
            messages.append(Message(role=Role.ASSISTANT, tool_calls=(call,)))
            messages.append(Message(role=Role.TOOL, content=await _observe(tools.toolbox, call), name=_TOOL))
        schemas = tuple(tools.toolbox.schemas)
    printed = messages[-1].content.rpartition(" ")[2]
    messages.append(Message(role=Role.ASSISTANT, content=f"<answer>\\boxed{{{printed}}}</answer>"))
    passed = printed == str(problem.answer)
    return Trajectory(id=f"problem-{seed}", messages=tuple(messages), tools=schemas, passed=passed)


async def _observe(toolbox: Toolbox, call: ToolCall) -> str:
    (outcome,) = await toolbox.run([call])
    if outcome.observation is None:
        raise RuntimeError(f"the sandbox failed: {outcome.failure}")
    return outcome.observation.text
