"""Hindsight: a failed rollout -> trajectories of other tasks that it solved on the way, with as few calls as possible.

ECHO (arXiv:2510.10304) asks a model which other goals a failed trajectory reached, and keeps the shorter text per goal
as a memory for prompts. Here the environment says which tasks are solved (`Environment.achieved`). Turns are cut out
as long as the rest, run again, has a `score` of 1.
"""

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import NamedTuple

from pydantic import Field

from verl_pivot.data.json_values import encode_json
from verl_pivot.data.turns import PROVENANCE
from verl_pivot.errors import ToolFailureError
from verl_pivot.synthesis.caller_turns import read_text
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.draws import made_or_refused
from verl_pivot.synthesis.rejection import FewestCallsOptions, fewest_calls
from verl_pivot.synthesis.steps import ChooseStep, choose_step, make_step
from verl_pivot.synthesis.workshop import Workshop
from verl_pivot.tools.contract import AchievedTask
from verl_pivot.tools.rollout_tools import RolloutTools
from verl_pivot.types import JsonObject, Malformed, Message, Role, ToolCall, Trajectory
from verl_pivot.validation import Options

_REQUEST, _ANSWER = 0, 1
"""Numbers of the two questions about a goal, from which their seeds derive."""


class AchievedOptions(Options):
    max_per_trajectory: int = Field(default=2, ge=1)
    """Maximum number of tasks per trajectory; the tasks solved last are preferred, because they need the most work."""
    max_answer_tokens: int = Field(default=256, ge=1)
    """Maximum number of tokens of a request or an answer that a writer writes."""


class _Solved(NamedTuple):
    """A task that a trajectory solved, with the turns that led to it."""

    task: AchievedTask
    turns: tuple[tuple[ToolCall, ...], ...]
    """[num_turns] calls of each turn; the turns without calls are left out."""


class _Rerun(NamedTuple):
    """Results and score of turns that were run again in the environment of a task."""

    results: list[list[str]]
    """[num_turns][num_calls] texts of the results."""
    score: float | None


@make_step("achieved", options=AchievedOptions)
class Achieved:
    """Makes a task and a trajectory with score 1 for each other task that a failed trajectory solved.

    The calls are kept. The policy's other text and thinking is removed, because it is about the original task.
    """

    def __init__(self, options: AchievedOptions) -> None:
        self._options = options

    async def __call__(self, draft: Draft, workshop: Workshop) -> Sequence[Draft]:
        trajectory = draft.trajectory
        if trajectory is None or trajectory.passed is not False:
            return [draft.rejected("not_failed", "hindsight needs a trajectory that failed its task")]
        try:
            solved = await self._solved(trajectory, workshop)
        except ToolFailureError as error:
            return [draft.rejected("system_failed", str(error))]
        if not solved:
            detail = "by the environment, the trajectory solves no other task on the way"
            return [draft.rejected("nothing_achieved", detail)]
        drafts: list[Draft] = []
        for number, each in enumerate(solved[::-1][: self._options.max_per_trajectory]):
            made = draft.made(number)
            making = self._made(made, trajectory, each, workshop, number)
            try:
                drafts.append(await made_or_refused(made, making))
            except ToolFailureError as error:
                drafts.append(made.rejected("system_failed", str(error)))
        return drafts

    async def _solved(self, trajectory: Trajectory, workshop: Workshop) -> list[_Solved]:
        """Tasks in the order in which they were first solved; tasks that are solved at the beginning are left out."""
        turns = [each.tool_calls for each in trajectory.messages if each.tool_calls]
        found: dict[str, _Solved] = {}
        async with _opened(trajectory.metadata, workshop) as tools:
            known = {_goal(task) for task in _achieved(tools)}
            for number, calls in enumerate(turns, start=1):
                await _results(calls, tools)
                for task in _achieved(tools):
                    if (goal := _goal(task)) not in known:
                        found.setdefault(goal, _Solved(task, tuple(turns[:number])))
        return list(found.values())

    async def _made(
        self, draft: Draft, trajectory: Trajectory, solved: _Solved, workshop: Workshop, number: int
    ) -> Draft:
        """The draft with a shortened trajectory that solves the task, or rejected with the reason."""
        task = solved.task
        request = task.request or await self._written(_request_question(solved), workshop, 2 * number + _REQUEST)
        if isinstance(request, Malformed):
            return draft.rejected(request.reason, request.detail)
        first = await _rerun(solved.turns, task, None, workshop)
        answer = await self._written(_answer_question(request, solved, first), workshop, 2 * number + _ANSWER)
        if isinstance(answer, Malformed):
            return draft.rejected(answer.reason, answer.detail)
        message = Message(role=Role.ASSISTANT, content=answer)
        whole = await _rerun(solved.turns, task, message, workshop)
        if whole.score != 1.0:
            detail = f"run again in an environment of the task, the calls score {whole.score} instead of 1"
            return draft.rejected("not_replayed", detail)
        turns, rerun = await _shortened(solved.turns, whole, task, message, workshop)
        system = [each for each in trajectory.messages[:1] if each.role is Role.SYSTEM]
        prompt = [*system, Message(role=Role.USER, content=request)]
        goal = _goal(task)
        made = Trajectory(
            id=draft.id,
            messages=(*prompt, *_messages(turns, rerun.results), message),
            tools=trajectory.tools,
            passed=True,
            verifier=trajectory.verifier,
            verifier_options=trajectory.verifier_options,
            metadata={**task.metadata, PROVENANCE: {"split_by": goal}},
        )
        row: JsonObject = {"prompt": [each.as_dict() for each in prompt], "metadata": encode_json(task.metadata)}
        num_cut = len(solved.turns) - len(turns)
        return replace(draft, trajectory=made, task=row, group=goal).with_values(turns_cut=num_cut)

    async def _written(self, question: str, workshop: Workshop, k: int) -> str | Malformed:
        asked: list[JsonObject] = [{"role": "user", "content": question}]
        return read_text(await workshop.ask(asked, k=k, max_tokens=self._options.max_answer_tokens))


@choose_step("fewest_calls_of_goal", options=FewestCallsOptions, across_items=True)
def fewest_calls_of_goal(options: FewestCallsOptions) -> ChooseStep:
    """Keeps, for each goal, the trajectories with the fewest calls; options as in `fewest_calls`."""
    return fewest_calls(options)


def _goal(task: AchievedTask) -> str:
    """Name of a goal; it is the same whenever a trajectory solves the same task."""
    return f"goal-{sha256(encode_json(task.metadata, sort_keys=True).encode()).hexdigest()[:16]}"


def _achieved(tools: RolloutTools) -> list[AchievedTask]:
    """Tasks that the calls so far solve, without the provenance that an environment copied from its own metadata."""
    return [
        replace(task, metadata={key: value for key, value in task.metadata.items() if key != PROVENANCE})
        for task in tools.achieved()
    ]


def _opened(metadata: JsonObject, workshop: Workshop) -> RolloutTools:
    return workshop.toolset("runs calls again").open({"metadata": encode_json(metadata)})


async def _results(calls: Sequence[ToolCall], tools: RolloutTools) -> list[str]:
    """Results of the calls of a turn.

    Raises:
        ToolFailureError: If a system that the tools need fails.
        UserCodeError: If the code of an environment fails.
    """
    return [(await tools.toolbox.run_one(call, number)).observed().text for number, call in enumerate(calls)]


async def _rerun(
    turns: Sequence[Sequence[ToolCall]], task: AchievedTask, answer: Message | None, workshop: Workshop
) -> _Rerun:
    """Run turns in an environment of the task, and score the outcome."""
    async with _opened(task.metadata, workshop) as tools:
        results = [await _results(calls, tools) for calls in turns]
        verdict = await tools.score(answer)
    return _Rerun(results, None if verdict is None else verdict.score)


async def _shortened(
    turns: Sequence[tuple[ToolCall, ...]], whole: _Rerun, task: AchievedTask, answer: Message, workshop: Workshop
) -> tuple[tuple[tuple[ToolCall, ...], ...], _Rerun]:
    """The turns that a score of 1 needs; each turn is left out on trial, from the last to the first."""
    left, rerun = tuple(turns), whole
    for number in reversed(range(len(turns))):
        shorter = left[:number] + left[number + 1 :]
        tried = await _rerun(shorter, task, answer, workshop)
        if tried.score == 1.0:
            left, rerun = shorter, tried
    return left, rerun


def _messages(turns: Sequence[Sequence[ToolCall]], results: Sequence[Sequence[str]]) -> list[Message]:
    messages: list[Message] = []
    for calls, texts in zip(turns, results, strict=True):
        messages.append(Message(role=Role.ASSISTANT, tool_calls=tuple(calls)))
        messages += [
            Message(role=Role.TOOL, content=text, name=call.name, tool_call_id=call.id)
            for call, text in zip(calls, texts, strict=True)
        ]
    return messages


def _shown(solved: _Solved) -> str:
    return "\n".join(encode_json([call.as_dict()["function"] for call in calls]) for calls in solved.turns)


def _request_question(solved: _Solved) -> str:
    return (
        "An assistant with tools made these calls, one line for each turn:\n"
        f"{_shown(solved)}\n\nThey solve this task, whose data are:\n{encode_json(solved.task.metadata)}\n\n"
        "Write what a user would say who wants exactly this and nothing else, with every value that the calls need. "
        "Do not name tools. Answer with the user's words alone."
    )


def _answer_question(request: str, solved: _Solved, rerun: _Rerun) -> str:
    results = "\n".join(encode_json([*texts]) for texts in rerun.results)
    return (
        f"A user said to an assistant with tools:\n{request}\n\nThe assistant made these calls, one line for each "
        f"turn:\n{_shown(solved)}\n\nThe results, one line for each turn:\n{results}\n\n"
        "Write the assistant's last message to the user: what was done or found, from these results alone, in one or "
        "two sentences. Answer with that message alone."
    )
