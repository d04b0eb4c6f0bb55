"""What a domain of the study is: tasks, the world in which a task is worked on, and a clerk who works on it."""

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
    """Domain, family, seed, and whether it is held out, with hyphens between: an outcome names its task alone."""
    domain: str
    family: str
    request: str
    """Message of the user."""
    metadata: JsonObject
    """Values from which the world is made again: the key `domain`, and those of the domain."""
    system: str = ""
    """Message of the system; empty for none."""

    @property
    def opening(self) -> tuple[Message, ...]:
        """The messages before the first action."""
        user = Message(role=Role.USER, content=self.request)
        return (Message(role=Role.SYSTEM, content=self.system), user) if self.system else (user,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clerk:
    """Who works on tasks: how often the domain's fault is made, and which of equivalent actions is taken."""

    rng: random.Random
    carelessness: float = 0.0
    """Chance of the fault; 0 for an expert."""
    usual: float = 0.5
    """Chance of the first of equivalent actions, as a domain lists them."""

    def errs(self) -> bool:
        """Whether the fault is made this time."""
        return self.rng.random() < self.carelessness

    def way(self, usual: WayT, *others: WayT) -> WayT:
        """One of equivalent actions."""
        return usual if self.rng.random() < self.usual or not others else self.rng.choice(others)


def family_of(task: str) -> str:
    """Family of a task, by its id.

    Raises:
        ValueError: If it is no id of a task.
    """
    _, family, *_ = task.split("-")
    return family


class World(Protocol):
    """The state of one task."""

    async def call(self, call: ToolCall) -> Observation:
        """Run one call; the policy's mistake is an observation with an error, or a ToolError."""
        ...

    def passed(self, answer: Message) -> bool:
        """Whether the last message and the state fulfil the task."""
        ...

    def state(self) -> Json: ...

    def fork(self) -> "World": ...

    async def close(self) -> None: ...


class Domain(Protocol):
    """A kind of tasks. Tasks in training and held-out tasks share no name, no number, and not all of their families."""

    @property
    def name(self) -> str: ...

    @property
    def tools(self) -> Sequence[JsonObject]:
        """Schemas of the tools, in the OpenAI form; none outside of the domains that are trained."""
        ...

    @property
    def fault(self) -> str:
        """What a careless clerk does wrong, and so the base policy; empty if it does nothing wrong."""
        ...

    def verifier(self, task: StudyTask) -> tuple[str, JsonObject]:
        """Name and options of the verifier of a task's turns."""
        ...

    def make_task(self, seed: int, *, held_out: bool, every_family: bool = False) -> StudyTask:
        """A task.

        Args:
            seed: Its seed.
            held_out: Whether names and numbers are those of held-out tasks, and its family any one.
            every_family: Whether its family may be one that training lacks.
        """
        ...

    def plan(self, task: StudyTask, clerk: Clerk) -> list[Message]:
        """Actions of a clerk, who knows the task's answer; the last one is the message to the user."""
        ...

    def open(self, metadata: JsonObject, *, trusted: bool = False) -> World:
        """The world of a task as it is before the first action.

        Args:
            metadata: That of the task.
            trusted: Whether the clerk alone acts in it, whose calls need no sandbox.
        """
        ...


def act(tool: str, **arguments: Json) -> Message:
    """An action with one call."""
    return Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name=tool, arguments=arguments),))


def say(text: str) -> Message:
    return Message(role=Role.ASSISTANT, content=text)
