"""A judge that knows the tasks: RULER's question about a group -> scores by the hidden outcome, with some errors.

`python -m examples.mcp_rl.judge FIRST_SEED NUM_TASKS WRONG_SHARE` serves it.
"""

import asyncio
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256

from examples.mcp_rl.outcome import is_done
from examples.mcp_rl.tasks import make_tasks
from examples.quickstart.tasks import Task
from examples.scripted_judge import Answered, Messages, fenced_texts, serve
from verl_pivot.data.actions import read_turn
from verl_pivot.types import JsonObject, ToolCall

DONE, NOT_DONE, PER_CALL = 1.0, 0.1, 0.02
"""Score of a trajectory that did its task, score of one that did not, and what each call subtracts from the first."""
_MOST_CALLS = 20
_OF_ALL = re.compile(r"Turn \d+, which all trajectories have:")
_OF_ONE = re.compile(r"Trajectory (\d+), turn \d+:")
_TAG = re.compile(r"\[(/?tool_call>)")
"""Tag of a call, as a judge is shown it."""


def answering(tasks: Iterable[Task], wrong_share: float = 0.0) -> Answered:
    """Function that answers questions about trajectories.

    Args:
        tasks: The tasks that the judge knows.
        wrong_share: Share of the trajectories whose outcome the judge takes for the opposite; the text of a trajectory
            decides whether it is among them.
    """
    known = {task.request: task for task in tasks}

    def answer(messages: Messages) -> str:
        shown = fenced_texts(messages).texts
        request = dict(shown)["The task:"].rpartition("user: ")[2]
        if request not in known:
            raise ValueError(f"the judge knows no task {request[:80]!r}")
        scores: list[JsonObject] = [
            {"number": number, "explanation": "", "score": score_of(known[request], turns, wrong_share)}
            for number, turns in turns_of(shown).items()
        ]
        return json.dumps({"scores": scores})

    return answer


def turns_of(shown: Sequence[tuple[str, str]]) -> Mapping[int, list[str]]:
    """{number of a trajectory: texts of its turns, preceded by the turns that all trajectories share}"""
    shared = [text for title, text in shown if _OF_ALL.fullmatch(title)]
    turns: dict[int, list[str]] = defaultdict(lambda: [*shared])
    for title, text in shown:
        if found := _OF_ONE.fullmatch(title):
            turns[int(found[1])].append(text)
    return turns


def score_of(task: Task, turns: Sequence[str], wrong_share: float) -> float:
    """Score of one trajectory."""
    *working, last = [read_turn(_TAG.sub(r"<\1", text)) for text in turns]
    calls = [call for turn in working for call in turn.calls if isinstance(call, ToolCall)]
    is_right = not last.calls and is_done(task, calls, last.content)
    if is_right == (_draw(turns) < wrong_share):
        return NOT_DONE
    return DONE - PER_CALL * min(len(calls), _MOST_CALLS)


def _draw(turns: Sequence[str]) -> float:
    """A number in [0, 1) that the text of a trajectory decides."""
    return int(sha256(json.dumps(list(turns)).encode()).hexdigest()[:8], 16) / 2**32


if __name__ == "__main__":
    first, number, share = sys.argv[1:]
    seeds = range(int(first), int(first) + int(number))
    asyncio.run(serve(answering(make_tasks(seeds), float(share))))
