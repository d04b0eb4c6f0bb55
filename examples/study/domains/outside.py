"""Kinds of tasks outside of the domains, which no training sees: adding, copying, sorting and short questions."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from examples.quickstart.shop import ITEMS
from examples.study.domains.protocol import Clerk, StudyTask, say
from verl_pivot.errors import ToolFailureError
from verl_pivot.tools.contract import Observation
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall

_COLOURS: Final = ("red", "blue", "green", "white", "black", "brown")


_SUMS: Final = ("Add {} and {}.", "What is {} plus {}?")
_QUESTIONS: Final = (
    "Which colour has the {}?",
    "What colour is a {}?",
    "Name the colour of the {}.",
    "Of which colour is the {}?",
    "What colour does a {} have?",
    "Say which colour a {} has.",
    "The {} has which colour?",
    "Tell the colour of a {}.",
    "A {} is of what colour?",
)


def _adding(rng: random.Random) -> tuple[str, str]:
    one, other = rng.randint(1, 9), rng.randint(1, 9)
    return rng.choice(_SUMS).format(f"{one:02}", f"{other:02}"), f"{one + other:02}"


def _copying(rng: random.Random) -> tuple[str, str]:
    words = " ".join(rng.sample(ITEMS, 4))
    return f"Copy {words}.", words


def _sorting(rng: random.Random) -> tuple[str, str]:
    numbers = rng.sample(range(10, 30), 3)
    return f"Sort {' '.join(map(str, numbers))}.", " ".join(map(str, sorted(numbers)))


def _asking(rng: random.Random) -> tuple[str, str]:
    """The colour of an item, by a rule that a policy must have memorized."""
    position = rng.randrange(len(ITEMS))
    return rng.choice(_QUESTIONS).format(ITEMS[position]), _COLOURS[5 * position % len(_COLOURS)]


KINDS: Final[Mapping[str, Callable[[random.Random], tuple[str, str]]]] = {
    "adding": _adding,
    "copying": _copying,
    "sorting": _sorting,
    "asking": _asking,
}
"""{name: function of a random generator that makes a question and its answer}"""


class OutsideDomain:
    """Questions of one kind, each of which a single message answers."""

    tools: Sequence[JsonObject] = ()
    fault = ""

    def __init__(self, name: str) -> None:
        self.name = name

    def verifier(self, task: StudyTask) -> tuple[str, JsonObject]:
        return "state", {"environment": "examples.study.environment:StudyEnvironment"}

    def make_task(self, seed: int, *, held_out: bool, every_family: bool = False) -> StudyTask:
        question, answer = KINDS[self.name](random.Random(f"study-{self.name}-{seed}-{held_out}"))
        return StudyTask(
            id=f"{self.name}-{self.name}-{seed}-{held_out}",
            domain=self.name,
            family=self.name,
            request=question,
            metadata={"domain": self.name, "answer": answer},
        )

    def plan(self, task: StudyTask, clerk: Clerk) -> list[Message]:
        return [say(str(task.metadata["answer"]))]

    def open(self, metadata: JsonObject, *, trusted: bool = False) -> "OutsideWorld":
        return OutsideWorld(str(metadata["answer"]))


class OutsideWorld:
    """A world without tools and without state, which only checks the answer."""

    def __init__(self, answer: str) -> None:
        self._answer = answer

    async def call(self, call: ToolCall) -> Observation:
        raise ToolFailureError(f"the task has no tools, and {call.name} was called")

    def passed(self, answer: Message) -> bool:
        is_answer = answer.role is Role.ASSISTANT and not answer.tool_calls
        return is_answer and answer.content.strip() == self._answer

    def state(self) -> Json:
        return None

    def fork(self) -> "OutsideWorld":
        return self

    async def close(self) -> None:
        """Do nothing, since nothing is open."""
