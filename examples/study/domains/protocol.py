"""What a domain of the study is: tasks, the world in which a task is worked on, and a clerk who works on it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from verl_pivot.tools.contract import Observation
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTask:
    """One task."""

    id: str
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

    def make_task(self, seed: int, *, held_out: bool) -> StudyTask: ...

    def plan(self, task: StudyTask, rng: random.Random, carelessness: float) -> list[Message]:
        """Actions of a clerk, the last of which is the message to the user.

        Args:
            task: The task, whose answer the clerk knows.
            rng: Chooses among equivalent actions, and where the clerk is careless.
            carelessness: Chance of the domain's fault; 0 for an expert.
        """
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
