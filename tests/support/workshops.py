"""A workshop for tests of single steps: writers are functions of the question, and nothing limits them."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TypeVar

from verl_pivot.engines.chat import AnswerFormat, ChatAnswer
from verl_pivot.errors import QuestionRefusedError
from verl_pivot.synthesis.workshop import Inputs, Workshop
from verl_pivot.synthesis.writer import Writer, WriterQuestion

ResultT = TypeVar("ResultT")


@dataclass
class FunctionWriter:
    """A writer whose answers a test computes."""

    respond: Callable[[WriterQuestion], str]
    name: str = "function"
    identity: str = "function"
    answer_format: AnswerFormat = "text"

    def most_tokens(self, question: WriterQuestion) -> int:
        return 0

    async def answer(self, question: WriterQuestion) -> ChatAnswer:
        message = {"role": "assistant", "content": self.respond(question)}
        return ChatAnswer(message=message, finish_reason="stop", num_prompt_tokens=3, num_completion_tokens=2)  # type: ignore[arg-type]

    async def close(self) -> None:
        """Do nothing: a function holds nothing open."""


def refused(question: WriterQuestion) -> str:
    """The answer of an endpoint that refuses every question."""
    raise QuestionRefusedError("the answer is withheld")


class OpenGate:
    """Lets every question pass."""

    async def answer(self, writer: Writer, question: WriterQuestion) -> ChatAnswer:
        return await writer.answer(question)


def workshop(
    respond: Callable[[WriterQuestion], str] = lambda question: "",
    *,
    item: str = "item",
    inputs: Inputs = Inputs(),  # noqa: B008  never changes
) -> Workshop:
    writers = {"writer": FunctionWriter(respond)}
    return Workshop(recipe_seed=0, item=item, step="step", inputs=inputs, writers=writers, gate=OpenGate())


def done(work: Coroutine[None, None, ResultT]) -> ResultT:
    return asyncio.run(work)
