"""Tasks of experts, lessons and evaluations -> trajectories of a clerk, and rows of whole tasks for verl."""

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow
import pyarrow.parquet

from examples.study.domains.known import GROUPS
from examples.study.domains.protocol import Clerk, StudyTask
from verl_pivot.data.files import replacing
from verl_pivot.data.json_values import encode_json
from verl_pivot.data.trajectories import trajectory_as_dict
from verl_pivot.errors import DataError
from verl_pivot.types import Message, Role, Trajectory

EXPERTS_USUAL, LESSONS_USUAL = 0.2, 0.8
"""Probability of the usual one of equivalent actions, for the expert and in the base policy's lessons. So the expert
often acts differently from the base policy, as an expert that is another model does."""
_HELD_OUT_OF_A_SEED = 1000
"""Number of task seeds that each seed of the study has for held-out tasks."""
_FIRST_VALIDATION_SEED = 10_000
"""First seed of the validation tasks; those of the lessons begin at 1,000,000."""
_FIRST_EXPERT_SEED = 100_000
"""First seed of the expert's tasks for the study's seed 0; each next seed of the study adds as much."""


async def record(task: StudyTask, clerk: Clerk, *, trusted: bool = True) -> Trajectory:
    """Let a clerk work on a task; every call is executed.

    Args:
        task: The task.
        clerk: The clerk who works on it.
        trusted: Whether calls run without the sandbox; their results are the same.
    """
    domain = GROUPS[task.domain]
    world = domain.open(task.metadata, trusted=trusted)
    messages = list(task.opening)
    try:
        for number, planned in enumerate(domain.plan(task, clerk)):
            calls = tuple(replace(call, id=f"call_{number}_{i}") for i, call in enumerate(planned.tool_calls))
            messages.append(replace(planned, tool_calls=calls))
            for call in calls:
                result = await world.call(call)
                messages.append(Message(role=Role.TOOL, content=result.text, tool_call_id=call.id, name=call.name))
        passed = world.passed(messages[-1])
    finally:
        await world.close()
    verifier, options = domain.verifier(task)
    return Trajectory(
        id=task.id,
        messages=tuple(messages),
        tools=tuple(domain.tools),
        passed=passed,
        verifier=verifier,
        verifier_options=options,
        metadata={**task.metadata, "family": task.family},
    )


async def record_all(
    tasks: Iterable[StudyTask], *, carelessness: float = 0.0, usual: float = EXPERTS_USUAL
) -> list[Trajectory]:
    """One trajectory for each task, by a clerk with these settings; equal tasks give equal trajectories."""
    return [
        await record(task, Clerk(rng=random.Random(f"clerk-{task.id}"), carelessness=carelessness, usual=usual))
        for task in tasks
    ]


def tasks_of(groups: Sequence[str], seeds: range, *, every_family: bool = False) -> list[StudyTask]:
    """One task per seed, from the groups in turn, with names and numbers that training uses."""
    return [
        GROUPS[groups[seed % len(groups)]].make_task(seed, held_out=False, every_family=every_family) for seed in seeds
    ]


def expert_seeds(seed: int, number: int) -> range:
    """Seeds of the expert's tasks, for a seed of the study."""
    first = _FIRST_EXPERT_SEED * (seed + 1)
    return range(first, first + number)


def held_out_tasks(group: str, number: int, seed: int) -> list[StudyTask]:
    """Different held-out tasks of a group: the same for all arms of a seed, and other ones for another seed.

    Raises:
        DataError: If the group has fewer different tasks.
    """
    found: dict[str, StudyTask] = {}
    for each in range(_HELD_OUT_OF_A_SEED * seed, _HELD_OUT_OF_A_SEED * (seed + 1)):
        task = GROUPS[group].make_task(each, held_out=True)
        found.setdefault(_content(task), task)
        if len(found) == number:
            return list(found.values())
    raise DataError(f"{group} has {len(found)} different held-out tasks of a seed, not {number}: ask for fewer")


def _content(task: StudyTask) -> str:
    return json.dumps([task.request, task.metadata], sort_keys=True)


def validation_tasks(group: str, number: int) -> list[StudyTask]:
    """Tasks by which tuning chooses: like those of training, but with seeds that no training and no lesson uses."""
    seeds = range(_FIRST_VALIDATION_SEED, _FIRST_VALIDATION_SEED + number)
    return [GROUPS[group].make_task(seed, held_out=False) for seed in seeds]


def write_trajectories(path: Path, trajectories: Iterable[Trajectory]) -> None:
    """Write lines of trajectories.jsonl, as `verl-pivot import` does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as unfinished:
        unfinished.write_text("".join(f"{encode_json(trajectory_as_dict(each))}\n" for each in trajectories))


def write_tasks(path: Path, tasks: Sequence[StudyTask]) -> Path:
    """Write one row per task for the agent loop with tools; the column `trajectory_id` names the task in dumps."""
    rows = [
        {
            "data_source": task.domain,
            "prompt": [{"role": message.role.value, "content": message.content} for message in task.opening],
            "metadata": json.dumps(task.metadata),
            "trajectory_id": task.id,
            "ability": "agent",
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": number},
        }
        for number, task in enumerate(tasks)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as unfinished:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), unfinished)
    return path
