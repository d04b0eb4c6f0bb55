"""AnswerGate: a question to a writer -> its answer, from the cache, or by a request within budget and concurrency."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from verl_pivot.engines.answer_cache import AnswerCache
from verl_pivot.engines.chat import ChatAnswer, TokenLogprob
from verl_pivot.engines.retries import Retries, UnavailableError, may_concern_one_question, with_retries
from verl_pivot.errors import ConfigError, EngineError, OutOfBudgetError, QuestionRefusedError
from verl_pivot.playing.endpoint_player import read_answer
from verl_pivot.synthesis.budget import Budget, BudgetLimits
from verl_pivot.synthesis.writer import EndpointWriter, Writer, WriterQuestion

_ANSWERS: Final = "answers"
"""Folder in the output that caches the answers of models for later runs."""
_LEDGER: Final = "budget.txt"


class _KeptAnswer(msgspec.Struct, frozen=True):
    """An answer in the format of the cache."""

    message: dict[str, object]
    finish_reason: str
    num_prompt_tokens: int
    num_completion_tokens: int
    logprobs: tuple[TokenLogprob, ...]
    stop_text: str


class AnswerGate:
    """Answers all questions of a run. Equal questions are asked once, even if several drafts ask them concurrently."""

    def __init__(self, cache: AnswerCache, budget: Budget, retries: Retries, *, concurrency: int) -> None:
        """Keep cache and budget; nothing is asked yet.

        Args:
            cache: Answers of earlier runs and processes; each new answer is added immediately.
            budget: Budget of the requests; answers from the cache cost nothing.
            retries: How requests are retried.
            concurrency: Maximum number of concurrent questions.
        """
        self._cache, self._budget, self._retries = cache, budget, retries
        self._slots = asyncio.Semaphore(concurrency)
        self._asked: dict[str, asyncio.Task[ChatAnswer]] = {}
        """{key: task of the pending answer}"""

    async def answer(self, writer: Writer, question: WriterQuestion) -> ChatAnswer:
        """A writer's answer to a question.

        Raises:
            EngineError: If the endpoint cannot be reached or keeps failing, its answer is no message of the assistant,
                or the cache cannot be written.
            ConfigError: If the endpoint refuses a harmless question, too.
            QuestionRefusedError: If the endpoint refuses this question, or fails at it, and answers a harmless one, or
                if it filters the answer.
            OutOfBudgetError: If the budget does not cover the question.
        """
        form = None if question.schema is None else writer.answer_format
        key = sha256(msgspec.json.encode([writer.identity, form, question], order="sorted")).hexdigest()
        if (kept := self._cache.get(key)) is not None:
            if isinstance(writer, EndpointWriter) and question.tools:
                writer.has_taken_tools = True
            return _kept_answer(kept)
        if key not in self._asked:
            task = asyncio.create_task(self._ask(writer, question, key))
            self._asked[key] = task
            task.add_done_callback(lambda _: self._asked.pop(key))
        return await asyncio.shield(self._asked[key])

    async def _ask(self, writer: Writer, question: WriterQuestion, key: str) -> ChatAnswer:
        async with self._slots:
            try:
                answer = await with_retries(self._retries, lambda: self._attempt(writer, question))
            except (ConfigError, UnavailableError) as error:
                if not may_concern_one_question(error) or not await self._answers_another(writer, question):
                    raise
                raise QuestionRefusedError(f"{error} (other questions are answered)") from error
        self._cache.put(key, msgspec.json.encode(answer))
        return answer

    async def _answers_another(self, writer: Writer, question: WriterQuestion) -> bool:
        """Whether a model answers a harmless question of the same form: one attempt, within the budget, not cached."""
        if not isinstance(writer, EndpointWriter):
            return False
        try:
            await self._attempt(writer, writer.harmless(question))
        except (ConfigError, EngineError):
            return False
        return True

    async def _attempt(self, writer: Writer, question: WriterQuestion) -> ChatAnswer:
        """One request within the budget; if it fails or reports no tokens, its whole reservation is paid."""
        reservation = await self._budget.reserve(writer.most_tokens(question))
        paid = reservation.tokens
        try:
            async with asyncio.timeout(self._budget.seconds_left):
                answer = await writer.answer(question)
            paid = answer.num_prompt_tokens + answer.num_completion_tokens or paid
        except TimeoutError as error:
            raise OutOfBudgetError("the budget of seconds is used up") from error
        finally:
            self._budget.settle(reservation, paid)
        _check(answer, writer.name)
        return answer

    async def close(self) -> None:
        """Cancel the questions that are still pending."""
        for task in (asked := list(self._asked.values())):
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings:
    """Settings of a run's gate."""

    out: Path
    """Folder of the output, which holds the cache of answers."""
    folder: Path
    """Folder of the ledger, which records the spent budget."""
    limits: BudgetLimits
    retries: Retries
    concurrency: int
    """Maximum number of concurrent questions."""


@asynccontextmanager
async def opened_gate(settings: GateSettings, writers: Mapping[str, Writer]) -> AsyncIterator[AnswerGate]:
    """The gate of a run; at the end, the budget's ledger and all writers are closed.

    Raises:
        ConfigError: If the folders cannot be written.
    """
    budget = Budget(settings.limits, settings.folder / _LEDGER)
    gate = AnswerGate(AnswerCache(settings.out / _ANSWERS), budget, settings.retries, concurrency=settings.concurrency)
    try:
        yield gate
    finally:
        await gate.close()
        budget.close()
        for writer in writers.values():
            await writer.close()


def _check(answer: ChatAnswer, writer: str) -> None:
    """Refuse an answer that a content filter withholds or that is no message, since the cache would keep it for good.

    Raises:
        QuestionRefusedError: If the endpoint's content filter withholds the answer.
        EngineError: If the answer is no message of the assistant.
    """
    if answer.is_filtered:
        raise QuestionRefusedError(f"the content filter of the endpoint of {writer} withholds the answer")
    read_answer(answer)


def _kept_answer(line: bytes) -> ChatAnswer:
    kept = msgspec.json.decode(line, type=_KeptAnswer)
    return ChatAnswer(
        message=kept.message,  # type: ignore[arg-type]  # msgspec decodes JSON into JSON's types
        finish_reason=kept.finish_reason,
        num_prompt_tokens=kept.num_prompt_tokens,
        num_completion_tokens=kept.num_completion_tokens,
        logprobs=kept.logprobs,
        stop_text=kept.stop_text,
        is_cached=True,
    )
