"""Tools of a row and recorded calls -> the first ReplayDifference, or None if the same calls always do the same.

The verifier `state`, tree search and the checks of synthesized trajectories run calls again, and rely on this.
"""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

from verl_pivot.data.answered_calls import AnsweredCall
from verl_pivot.data.json_values import encode_json, equal
from verl_pivot.tools.rollout_tools import RolloutTools
from verl_pivot.tools.tool_response import is_same_result, without_told_seconds
from verl_pivot.types import Json, JsonObject

_MAX_SHOWN = 160
"""Characters of a value that a difference shows."""


class ReplayDifference(NamedTuple):
    """First difference found when calls were run again.

    Example:
        ReplayDifference(call=2, what="reward", first="1.0", second="0.0", where="in a second run")
    """

    call: int
    """Number of the call after which the difference shows, from 0.

    It is -1 before the first call, and the number of calls at the end.
    """
    what: str
    """Value that differs: opening, result, error, reward, end, state, state_before, progress or score."""
    first: str
    second: str
    where: str
    """Where `second` was found: "in the recording", "in a second run" or "on copies of `fork`"."""

    def __str__(self) -> str:
        return f"{self.what} is {self.first} at first, and {self.second} {self.where}"


_Effects = list[JsonObject]
"""[num_calls + 2] what was found before the calls, after each, and at the end."""


async def replay_difference(
    open_tools: Callable[[], RolloutTools], calls: Sequence[AnsweredCall]
) -> ReplayDifference | None:
    """Run calls twice, and if there is `fork` a third time, each call on a copy; None if all runs are equal.

    Compares the first observation, results, rewards, ends, the values of `state` and `progress` after each call, and
    the score at the end. With copies, it also compares the state of each environment that was copied. Elapsed seconds
    that our own tools report are left out.

    Args:
        open_tools: Makes the tools of one row, new ones at each call.
        calls: Calls in their order, with their recorded results.

    Raises:
        ToolFailureError: If a system that the tools need fails.
        UserCodeError: If the code of an environment or a tool fails.

    Example:
        toolset = load_toolset("tools.yaml")
        assert await replay_difference(lambda: toolset.open(row), answered_calls(trajectory.messages)) is None
    """
    first = await _run(open_tools, calls)
    for number, call in enumerate(calls):
        result = first[number + 1]["result"]
        if call.result is not None and not is_same_result(str(result), recorded := call.result.content):
            return ReplayDifference(number, "result", _shown(result), _shown(recorded), "in the recording")
    found = _first_difference(first, await _run(open_tools, calls), "in a second run")
    if found is None and (copied := await _run(open_tools, calls, on_copies=True)):
        return _first_difference(first, copied, "on copies of `fork`")
    return found


async def _run(
    open_tools: Callable[[], RolloutTools], calls: Sequence[AnsweredCall], *, on_copies: bool = False
) -> _Effects:
    """Effects of the calls; with `on_copies`, each call runs on a copy of the tools. Empty if there is no copy."""
    async with AsyncExitStack() as stack:
        tools = await stack.enter_async_context(open_tools())
        effects: _Effects = [{"opening": tools.opening, "state": tools.states(), "progress": tools.progress()}]
        for answered in calls:
            original, state_before = tools, tools.states()
            if on_copies:
                copy = tools.fork()
                if copy is None:
                    return []
                tools = await stack.enter_async_context(copy)
            effect = await _effect(tools, answered)
            effects.append({"state_before": original.states() if on_copies else state_before, **effect})
        verdict = await tools.score(None)
        score: Json = None if verdict is None else [verdict.score, verdict.reason]
        return [*effects, {"score": score}]


async def _effect(tools: RolloutTools, answered: AnsweredCall) -> JsonObject:
    observation = (await tools.toolbox.run_one(answered.call, answered.number)).observed()
    return {
        "result": without_told_seconds(observation.text),
        "error": observation.error and observation.error.value,
        "reward": observation.reward,
        "end": observation.end and observation.end.value,
        "state": tools.states(),
        "progress": tools.progress(),
    }


def _first_difference(first: _Effects, second: _Effects, where: str) -> ReplayDifference | None:
    for number, (before, after) in enumerate(zip(first, second, strict=True), start=-1):
        for what, value in before.items():
            if not equal(value, after[what]):
                return ReplayDifference(number, what, _shown(value), _shown(after[what]), where)
    return None


def _shown(value: Json) -> str:
    return encode_json(value)[:_MAX_SHOWN]
