"""Questions asked at the same time -> answers from one program; a question that it leaves open is asked again alone."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
QuestionT = TypeVar("QuestionT")
AnswerT = TypeVar("AnswerT")

_LINGER_SECONDS = 0.005
"""Seconds for which questions are gathered before they are answered."""


@dataclass(slots=True)
class _Batch(Generic[QuestionT, AnswerT]):
    """Questions that are answered together."""

    questions: list[QuestionT] = field(default_factory=list)
    answering: "asyncio.Task[Sequence[AnswerT | None]] | None" = None


class Gathering(Generic[KeyT, QuestionT, AnswerT]):
    """Gathers questions of one event loop for some milliseconds, and has those with equal keys answered together."""

    def __init__(
        self, answer: Callable[[KeyT, Sequence[QuestionT]], Awaitable[Sequence[AnswerT | None]]], max_questions: int
    ) -> None:
        """Start without questions.

        Args:
            answer: Gives the answers, in order, to several questions with one key. If an answer is None, the question
                is asked again alone. A question that is asked alone must get an answer or an error.
            max_questions: Most questions in one call of `answer`.
        """
        self._answer, self._max_questions = answer, max_questions
        self._open: dict[KeyT, _Batch[QuestionT, AnswerT]] = {}
        self._tasks: set[asyncio.Task[Sequence[AnswerT | None]]] = set()

    async def __aenter__(self) -> "Gathering[KeyT, QuestionT, AnswerT]":
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def ask(self, key: KeyT, question: QuestionT) -> AnswerT:
        """The answer to one question; an error of the program is raised in every caller that waits for it."""
        batch = self._open.get(key)
        if batch is None:
            batch = self._open[key] = _Batch()
            batch.answering = asyncio.create_task(self._answer_soon(key, batch))
            self._tasks.add(batch.answering)
            batch.answering.add_done_callback(self._tasks.discard)
        place = len(batch.questions)
        batch.questions.append(question)
        if len(batch.questions) == self._max_questions:
            del self._open[key]
        assert batch.answering is not None, "a batch is answered from its first question on"
        answer = (await asyncio.shield(batch.answering))[place]
        if answer is None:
            (answer,) = await self._answer(key, [question])
        assert answer is not None, "a question that is alone is answered"
        return answer

    async def _answer_soon(self, key: KeyT, batch: _Batch[QuestionT, AnswerT]) -> Sequence[AnswerT | None]:
        await asyncio.sleep(_LINGER_SECONDS)
        if self._open.get(key) is batch:
            del self._open[key]
        return await self._answer(key, batch.questions)
