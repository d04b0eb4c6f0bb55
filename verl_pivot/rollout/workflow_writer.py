"""A trajectory that succeeded -> the workflows that a model finds in it, with only steps that occur in it (AWM)."""

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from verl_pivot.rewards.principle_answers import InvalidAnswerError, decoded_answer
from verl_pivot.rewards.principles import FencedQuestion, Fit, fenced_question, harmless
from verl_pivot.rollout.workflows import Workflow, WorkflowStep
from verl_pivot.validation import Options, first_problem

MIN_STEPS = 2
"""Fewest steps of a workflow, as in the paper."""
_MAX_TRIES = 10_000
"""Most comparisons of a step with a call in one search."""
_MAX_VARIABLES = 2
"""Most variables in one value; this and _MAX_VALUE_CHARACTERS keep each comparison short."""
_MAX_VALUE_CHARACTERS = 1000
_VARIABLE = re.compile(r"\{([A-Za-z_][\w ]{0,40})\}")
_TASK = (
    "You find workflows in a trajectory in which an assistant reached the goal of its task by calls of tools. A "
    "workflow is a series of calls that is of use in other tasks, too."
)
_HOW = (
    f"Each workflow has {MIN_STEPS} or more of the calls, in their order. Leave out calls that did not help. No call "
    "belongs to two workflows. Write names, values and texts that belong to this task alone as variables in braces, "
    "such as {product}: a variable stands for a value or for a part of one, and the same variable always for the same. "
    "All else stays letter by letter, and every call has the arguments that it had. For each step, note in a few words "
    "why it is done. The goal of a workflow says what it does, with the same variables.\n\n"
    'Answer {"workflows": [{"goal": "...", "steps": [{"note": "...", "tool": "...", "arguments": {...}}, ...]}, ...]}, '
    "with an empty list if there is no workflow."
)


class WrittenStep(Options):
    """A step in a model's answer."""

    note: str
    tool: str
    arguments: dict[str, Any]


class WrittenWorkflow(Options):
    """A workflow in a model's answer, whose steps have not been checked."""

    goal: Annotated[str, Field(min_length=1, max_length=1000)]
    steps: list[WrittenStep]


class WorkflowAnswer(Options):
    """A model's answer."""

    workflows: list[WrittenWorkflow]


class InducedWorkflows(NamedTuple):
    """Workflows of an answer, and the reasons for which others are refused."""

    workflows: list[Workflow]
    refused: list[str]


_ANSWER: TypeAdapter[WorkflowAnswer] = TypeAdapter(WorkflowAnswer)


def induction_question(source: Workflow, fit: Fit) -> FencedQuestion:
    """The question for workflows in a trajectory.

    Args:
        source: Goal and calls of the trajectory, as `workflow_by_rule` gives them.
        fit: Cuts texts that are too long: the calls first.
    """
    shown = fit([harmless(source.goal), harmless("\n".join(step.text for step in source.steps))], [1, 0])
    texts = list(zip(("The task:", "The calls:"), shown, strict=True))
    return fenced_question(_TASK, "Answer only with the JSON object that is asked for.", texts, _HOW)


def workflows_of_answer(text: str, source: Workflow) -> InducedWorkflows:
    """Workflows of an answer whose steps occur in the source in order; no step belongs to two workflows.

    Raises:
        InvalidAnswerError: If the answer has another form.
    """
    try:
        written = _ANSWER.validate_python(decoded_answer(text))
    except ValidationError as error:
        raise InvalidAnswerError(first_problem(error)) from error
    except (ValueError, RecursionError) as error:
        raise InvalidAnswerError(f"it cannot be read: {error}") from error
    found = InducedWorkflows([], [])
    taken: set[int] = set()
    for each in written.workflows:
        steps = [
            WorkflowStep(tool=step.tool, arguments=step.arguments, note=harmless(step.note)) for step in each.steps
        ]
        if len(steps) < MIN_STEPS:
            found.refused.append(f"fewer than {MIN_STEPS} steps")
            continue
        places = places_in(steps, source.steps, taken)
        if places is None:
            is_overlap = places_in(steps, source.steps, set()) is not None
            found.refused.append("shares a step with another" if is_overlap else "has a step that its source lacks")
            continue
        taken.update(places)
        goal = harmless(each.goal).strip()
        found.workflows.append(Workflow(goal=goal, steps=tuple(steps), site=source.site, source=source.source))
    return found


def places_in(steps: Sequence[WorkflowStep], source: Sequence[WorkflowStep], taken: set[int]) -> list[int] | None:
    """[num_steps] positions of a workflow's steps among those of its source; None if they do not occur in order.

    Args:
        steps: Steps, in which each variable stands for the same value of the source everywhere.
        source: Steps of the source.
        taken: Positions that belong to another workflow.
    """
    return _Matching(source, taken).places(steps, 0, {})


class _Matching:
    """Search for the calls of a source that steps match; it gives up after _MAX_TRIES comparisons."""

    def __init__(self, source: Sequence[WorkflowStep], taken: set[int]) -> None:
        self._source, self._taken = source, taken
        self._num_tries = 0

    def places(self, steps: Sequence[WorkflowStep], begin: int, values: dict[str, str]) -> list[int] | None:
        """Positions of the steps in the source, from `begin` on, given the known values of variables."""
        if not steps:
            return []
        for place in range(begin, len(self._source)):
            self._num_tries += 1
            if self._num_tries > _MAX_TRIES:
                return None
            if place in self._taken or (bound := _bound(steps[0], self._source[place], values)) is None:
                continue
            rest = self.places(steps[1:], place + 1, bound)
            if rest is not None:
                return [place, *rest]
            if bound == values:  # a later place binds no other values and leaves fewer calls
                return None
        return None


def _bound(step: WorkflowStep, call: WorkflowStep, values: dict[str, str]) -> dict[str, str] | None:
    """The variables' values if a step matches a call; None if it does not."""
    if step.tool != call.tool or step.arguments.keys() != call.arguments.keys():
        return None
    bound = values
    for name, written in step.arguments.items():
        found = _bound_value(written, call.arguments[name], bound)
        if found is None:
            return None
        bound = found
    return bound


def _bound_value(written: object, value: object, values: dict[str, str]) -> dict[str, str] | None:
    """The variables' values if a written value matches a value of the source; None if it does not."""
    if not isinstance(written, str) or not (names := _VARIABLE.findall(written)):
        return values if json.dumps(written, sort_keys=True) == json.dumps(value, sort_keys=True) else None
    if len(names) > _MAX_VARIABLES:
        return None
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    if not isinstance(value, str) and _VARIABLE.fullmatch(written) is None:
        return None
    bound, parts = dict(values), _VARIABLE.split(written)
    pattern, new = "", dict[str, int]()
    for number, part in enumerate(parts):
        if number % 2 == 0 or part in bound:
            pattern += re.escape(bound[part] if number % 2 else part)
        elif part in new:
            pattern += rf"(?P=v{new[part]})"
        else:
            new[part] = number
            pattern += rf"(?P<v{number}>.+?)"
    matched = re.fullmatch(pattern, text, re.DOTALL) if len(text) <= _MAX_VALUE_CHARACTERS else None
    if matched is None:
        return None
    return {**bound, **{name: matched[f"v{number}"] for name, number in new.items()}}
