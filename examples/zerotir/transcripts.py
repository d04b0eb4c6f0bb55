"""A programmer who seldom writes code: problems -> transcripts in ZeroTIR's format, with outputs of the real tool."""

import asyncio
import random
import re
from collections.abc import Sequence

from examples.grpo_roc.problems import MAX_NUMBER, Problem, break_code, make_problem
from examples.grpo_roc.transcripts import TOOLS
from verl_pivot.tools.toolset import load_toolset
from verl_pivot.types import Message, Role, ToolCall, Trajectory

MAX_RUNS = 2
"""Most programs of a trajectory, as in the released code; the last turn is the answer."""
OUTPUT = "\n\n```output\n{text}\n```\n\n\n"
"""Text around an output, as in `configs/tool_format/zerotir.yaml`."""
OBSERVED = re.compile(r"(\n\n```output\n.*?\n```\n\n\n)", re.DOTALL)
"""Pattern of an output in an assistant's message, which the policy did not write."""
_CONCURRENCY = 8


def record_transcripts(seeds: Sequence[int], *, code_share: float, carelessness: float) -> list[Trajectory]:
    """One transcript per seed; equal arguments give equal transcripts.

    Args:
        seeds: Seeds of the problems.
        code_share: Share of the transcripts with code; the others answer at once, with a guess.
        carelessness: Chance that a first program fails, which a second one then repairs. A slip in the logic, with
            which a program runs and prints another number, is half as likely.

    Raises:
        RuntimeError: If the sandbox fails.
    """

    async def record_all() -> list[Trajectory]:
        slots = asyncio.Semaphore(_CONCURRENCY)
        async with asyncio.TaskGroup() as group:
            jobs = [group.create_task(_record(seed, code_share, carelessness, slots)) for seed in seeds]
        return [job.result() for job in jobs]

    return asyncio.run(record_all())


def plan(problem: Problem, rng: random.Random, code_share: float, carelessness: float) -> list[str]:
    """Programs that are run one after the other, of which only the last one succeeds; none for a guess."""
    if rng.random() >= code_share:
        return []
    code = problem.slip if rng.random() < carelessness / 2 else problem.code
    return [break_code(code, rng), code] if rng.random() < carelessness else [code]


async def _record(seed: int, code_share: float, carelessness: float, slots: asyncio.Semaphore) -> Trajectory:
    problem, rng = make_problem(seed), random.Random(f"seldom-{seed}")
    programs = plan(problem, rng, code_share, carelessness)
    text, answer = "", str(rng.randint(0, MAX_NUMBER))
    if programs:
        async with slots, load_toolset(str(TOOLS)).open({}) as tools:
            for code in programs:
                (outcome,) = await tools.toolbox.run([ToolCall(name="jupyter_code", arguments={"code": code})])
                if outcome.observation is None:
                    raise RuntimeError(f"the sandbox failed: {outcome.failure}")
                text += f"```python\n{code}\n```\n" + OUTPUT.format(text=outcome.observation.text)
                answer = outcome.observation.text.rpartition(" ")[2]
    messages = (
        Message(role=Role.USER, content=problem.text),
        Message(role=Role.ASSISTANT, content=f"{text}The answer is \\boxed{{{answer}}}."),
    )
    return Trajectory(id=f"problem-{seed}", messages=messages, passed=answer == str(problem.answer))
