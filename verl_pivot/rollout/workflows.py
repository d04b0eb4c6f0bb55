"""Workflow: the calls by which a trajectory reached its goal, as an example for others, and the task of a row."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from verl_pivot.types import Json, JsonObject

Template: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
"""[num_steps] (tool, names of its arguments in alphabetical order) of each step."""
SITE_COLUMN = "site"
"""Column of a row that names the site, or anything else, whose workflows belong together."""
MAX_GOAL_CHARACTERS = 2000
_URL = re.compile(r"https?://([^\s/?#\"'<>)\]]+)", re.IGNORECASE)


class WorkflowStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call of a workflow."""

    tool: str
    arguments: dict[str, Any]
    """JSON values by parameter name; `{name}` in a text stands for a value of the task."""
    note: str = ""
    """Reason for the call, in words; "" if there is none."""

    @property
    def text(self) -> str:
        """The call as a policy reads it."""
        shown = f"{self.tool}({json.dumps(self.arguments, ensure_ascii=False, sort_keys=True)})"
        return f"{self.note}: {shown}" if self.note else shown


class Workflow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Calls that reached a goal.

    Example:
        Workflow(goal="Add 1 and 2.", steps=(WorkflowStep(tool="add", arguments={"a": 1, "b": 2}),))
    """

    goal: str
    steps: tuple[WorkflowStep, ...]
    site: str = ""
    """Site to which the workflow applies; "" for any site."""
    source: str = ""
    """Name of the trajectory that it comes from."""

    @property
    def tools(self) -> frozenset[str]:
        return frozenset(step.tool for step in self.steps)

    @property
    def template(self) -> Template:
        return tuple((step.tool, tuple(sorted(step.arguments))) for step in self.steps)

    @property
    def key(self) -> tuple[str, str]:
        """Site and goal, equal for workflows that solve the same task."""
        return self.site, " ".join(self.goal.casefold().split())

    @property
    def text(self) -> str:
        """The workflow as a policy reads it, in lines."""
        steps = [f"{number}. {step.text}" for number, step in enumerate(self.steps, 1)]
        return "\n".join([f"Workflow: {' '.join(self.goal.split())}", *steps])


class WorkflowTask(msgspec.Struct, frozen=True, kw_only=True):
    """Task of a row, by which workflows are found and named."""

    goal: str
    site: str = ""


class RankedWorkflows(msgspec.Struct, frozen=True, kw_only=True):
    """Workflows for one row, as all rollouts of its group get them."""

    version: int | None
    """Version of the memory that they come from; None if the rollout is to see no workflows."""
    task: WorkflowTask
    ranked: tuple[Workflow, ...] = ()
    """The likeliest first."""


def task_of(prompt: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> WorkflowTask:
    """Goal and site of a row.

    Args:
        prompt: Messages of the row's prompt, of which the user's last message is the goal.
        row: Columns of the row; without a column `site`, the host of the first URL of the goal is the site.
    """
    texts = [each.get("content") for each in prompt if each.get("role") == "user"]
    goal = next((text for text in reversed(texts) if isinstance(text, str)), "").strip()
    named = row.get(SITE_COLUMN)
    url = _URL.search(goal)
    site = named if isinstance(named, str) and named else url[1].casefold() if url else ""
    return WorkflowTask(goal=goal[:MAX_GOAL_CHARACTERS], site=site)


def as_json(workflows: Sequence[Workflow]) -> list[Json]:
    """Workflows as JSON values, which `of_json` turns back into workflows."""
    decoded: list[Json] = msgspec.json.decode(msgspec.json.encode(list(workflows)))
    return decoded


def of_json(values: Json) -> tuple[Workflow, ...]:
    """Workflows from the JSON values that `as_json` made."""
    return msgspec.convert(values, tuple[Workflow, ...])


def step_of(tool: str, arguments: JsonObject) -> WorkflowStep:
    """A step with a call's arguments in the form in which states and prompts hold them, unchanged by reading again.

    Names are in alphabetical order, lone surrogates are replaced, and numbers that JSON does not have are null.

    Raises:
        ValueError: If an integer has more than 64 bits, or values are nested too deeply.
    """
    try:
        text = json.dumps(arguments, ensure_ascii=False).encode(errors="replace").decode()
        plain = msgspec.json.decode(msgspec.json.encode(json.loads(text), order="deterministic"))
    except (OverflowError, RecursionError) as error:
        raise ValueError(f"the arguments of a call of {tool} cannot be stored: {error}") from error
    return WorkflowStep(tool=tool, arguments=plain)
