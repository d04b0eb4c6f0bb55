"""A trajectory's calls and answer -> whether its task was done, by repeating the calls in a fresh shop.

The state of an MCP server is lost when its process ends, and the protocol has no request that reads it.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from examples.quickstart.tasks import Task, make_task
from verl_pivot.data.rollout_records import RECORD_FIELD, StopReason, parse_record
from verl_pivot.types import Message, Role, ToolCall


def is_done(task: Task, calls: Iterable[ToolCall], answer: str) -> bool:
    """Whether the calls bring the shop into the right state, and the last message gives the right answer."""
    with task.open_shop() as shop:
        for call in calls:
            shop.call(call)
        return task.passed(Message(role=Role.ASSISTANT, content=answer), shop.dump())


def outcome(data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, Any]) -> float:
    """Reward function of verl: 1 if the trajectory did the task of its row, else 0.

    Args:
        data_source: Not read.
        solution_str: Text after the prompt; its last message is the answer.
        ground_truth: `Task.metadata` as JSON.
        extra_info: Has the record of the rollout, with all calls.
    """
    record = parse_record(extra_info[RECORD_FIELD])
    if record.stop_reason is not StopReason.ANSWERED:
        return 0.0
    made_from = json.loads(ground_truth)
    task = make_task(made_from["seed"], held_out=made_from["held_out"])
    calls = [ToolCall(name=each.name, arguments=each.arguments) for each in record.calls if each.arguments is not None]
    return float(is_done(task, calls, solution_str.rpartition("assistant\n")[2]))
