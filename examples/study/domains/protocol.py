"""Protocol of the study's domains: tasks, the world in which a task is worked on, and the clerk who works on it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from verl_pivot.tools.contract import Observation
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall

WayT = TypeVar("WayT")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTask:
    """One task."""

    id: str
    """Domain, family, seed, and whether it is held out, joined by hyphens; outcomes name a task by this id alone."""
    domain: str
    family: str
    request: str
    """Message of the user."""
    metadata: JsonObject
    """Values from which the world is rebuilt: the key `domain`, and keys of that domain."""
    system: str = ""
    """System message; empty for none."""

    @property
    def opening(self) -> tuple[Message, ...]:
        """The messages before the first action."""
        user = Message(role=Role.USER, content=self.request)
        return (Message(role=Role.SYSTEM, content=self.system), user) if self.system else (user,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clerk:
    """A scripted agent: how often it makes the fault of a domain, and which of several equivalent actions it takes."""

    rng: random.Random
    carelessness: float = 0.0
    """Chance of the fault; 0 for an expert."""
    usual: float = 0.5
    """Chance of the first of several equivalent actions, in the order in which the domain lists them."""

    def errs(self) -> bool:
        """Whether the clerk makes the fault this time."""
        return self.rng.random() < self.carelessness

    def way(self, usual: WayT, *others: WayT) -> WayT:
        """A random one of several equivalent actions."""
        return usual if self.rng.random() < self.usual or not others else self.rng.choice(others)


def family_of(task: str) -> str:
    """Family of a task, from its id.

    Raises:
        ValueError: If `task` is not the id of a task.
    """
    _, family, *_ = task.split("-")
    return family


class World(Protocol):
    """The state of one task."""

    async def call(self, call: ToolCall) -> Observation:
        """Run one call; a mistake of the policy gives an observation with an error, or raises a ToolError."""
        ...

    def passed(self, answer: Message) -> bool:
        """Whether the last message and the state fulfil the task."""
        ...

    def state(self) -> Json: ...

    def fork(self) -> "World": ...

    async def close(self) -> None: ...


class Domain(Protocol):
    """A kind of tasks; tasks of training and held-out tasks share no names, no numbers, and only some families."""

    @property
    def name(self) -> str: ...

    @property
    def tools(self) -> Sequence[JsonObject]:
        """Schemas of the tools, in the OpenAI form; empty for tasks outside of the trained domains."""
        ...

    @property
    def fault(self) -> str:
        """Mistake that a careless clerk makes, and so the base policy; empty if they make none."""
        ...

    def verifier(self, task: StudyTask) -> tuple[str, JsonObject]:
        """Name and options of the verifier of a task's turns."""
        ...

    def make_task(self, seed: int, *, held_out: bool, every_family: bool = False) -> StudyTask:
        """A task.

        Args:
            seed: Seed of the task.
            held_out: Whether the task has names and numbers of held-out tasks, and may be of any family.
            every_family: Whether the task may be of a family that training lacks.
        """
        ...

    def plan(self, task: StudyTask, clerk: Clerk) -> list[Message]:
        """Actions of a clerk, who knows the task's answer; the last one is the message to the user."""
        ...

    def open(self, metadata: JsonObject, *, trusted: bool = False) -> World:
        """The world of a task as it is before the first action.

        Args:
            metadata: Metadata of the task.
            trusted: Whether only the clerk acts in the world; a clerk's calls need no sandbox.
        """
        ...


def act(tool: str, **arguments: Json) -> Message:
    """An action with one call."""
    return Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name=tool, arguments=arguments),))


def say(text: str) -> Message:
    return Message(role=Role.ASSISTANT, content=text)
