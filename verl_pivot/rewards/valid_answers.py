"""ValidAnswers: a question and a reader of its answers -> the first valid answer of a judge, or why there is none."""

import re
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from verl_pivot.engines.chat import ChatAnswer
from verl_pivot.errors import ConfigError
from verl_pivot.rewards.judge_endpoint import JudgeEndpoint
from verl_pivot.rewards.principle_answers import InvalidAnswerError
from verl_pivot.rewards.principles import FencedQuestion
from verl_pivot.types import JsonObject
from verl_pivot.verifiers.asked_once import AskedOnce

ValueT = TypeVar("ValueT")
AnsweredT = TypeVar("AnsweredT", bound="AnsweredQuestion")
_MAX_REASON: Final = 300
_TOO_LONG: Final = re.compile(r"context[ _](length|window)|prompt is too long", re.IGNORECASE)
"""Pattern in the errors of SGLang, vLLM, OpenAI and others for a question that exceeds the context of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAnswer(Generic[ValueT]):
    """Value of a judge's answers to one question, or the reason why there is none."""

    value: ValueT | None
    """Value of the valid answer; None if no answer was valid."""
    cause: str = ""
    """Fault of the last answer, or text of the refusal of the question; "" if an answer was valid."""
    answers: tuple[ChatAnswer, ...] = ()
    """The answers, the valid one last."""
    is_refused: bool = False
    """Whether the judge refused the question, so that another seed changes nothing."""

    def shared(self) -> Self:
        """The same for an equal question of another rollout, which cost no request."""
        return replace(self, answers=as_cached(self.answers))

    @property
    def reason(self) -> str:
        """Why there is no value, in a sentence; "" if there is one."""
        if self.value is not None:
            return ""
        how = "the judge refuses the question" if self.is_refused else "the judge's answer is invalid"
        return f"{how}: {self.cause}"[:_MAX_REASON]


class AnsweredQuestion(Protocol):
    """What became of a question, with the answers that it cost."""

    def shared(self) -> Self:
        """The same for an equal question of another rollout, which cost no request."""


async def answered_once(
    kept: AskedOnce[str, AnsweredT], name: str, ask: Callable[[], Coroutine[Any, Any, AnsweredT]]
) -> AnsweredT:
    """What became of a question; answers count as cached for every caller but the one that asked it.

    Args:
        kept: Questions of this process that were asked already, or are being asked.
        name: Name of the question, equal for equal questions.
        ask: Function that asks it.
    """
    own: list[str] = []

    def start() -> Coroutine[Any, Any, AnsweredT]:
        own.append(name)
        return ask()

    answered = await kept.get(name, start)
    return answered if own else answered.shared()


def as_cached(answers: Iterable[ChatAnswer]) -> tuple[ChatAnswer, ...]:
    """The answers as those of the cache, for which no request was sent."""
    return tuple(replace(answer, is_cached=True) for answer in answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedForm:
    """Form in which a question is to be answered."""

    parameters: JsonObject | None = None
    """Parameters of the request that tell the form; None: those of the endpoint."""
    num_alternatives: int | None = None
    """Number of likeliest tokens to return with each token's logprob; None: no logprobs."""


class ValidAnswers:
    """Asks a judge again until an answer is valid, each time with another seed."""

    def __init__(self, endpoint: JudgeEndpoint, num_retries: int, control: Callable[[], FencedQuestion]) -> None:
        """Keep the arguments; nothing is asked yet.

        Args:
            endpoint: The judge.
            num_retries: Number of times that a question is asked again after an invalid answer.
            control: Function that makes a harmless question: if it is refused too, the key or the model is at fault.
        """
        self._endpoint = endpoint
        self._num_retries = num_retries
        self._control = control

    async def ask(
        self,
        question: FencedQuestion,
        read: Callable[[ChatAnswer, str], ValueT],
        form: AskedForm,
        *,
        sample: int = 0,
        temperature: float,
    ) -> ReadAnswer[ValueT]:
        """The value of the first valid answer.

        Args:
            question: The question.
            read: Function (answer, its whole text) -> value of the answer; raises InvalidAnswerError.
            form: Form in which the question is to be answered.
            sample: Index of this answer, from 0, if several valid answers are wanted; no two share a seed.
            temperature: Temperature of the first attempt; a repeated question has at least 0.7.

        Raises:
            VerifierError: If the judge cannot be reached or keeps failing, or the cache cannot be written.
            ConfigError: If the judge refuses every question, or this one because its context is too small.
        """
        answers: list[ChatAnswer] = []
        for number in range(self._num_retries + 1):
            seed = sample * (self._num_retries + 1) + number
            degrees = temperature if number == 0 else max(temperature, self._endpoint.temperature(seed))
            found = await self.ask_once(question, read, form, seed, degrees)
            answers += found.answers
            if found.value is not None or found.is_refused:
                break
        return replace(found, answers=tuple(answers))

    async def ask_once(
        self,
        question: FencedQuestion,
        read: Callable[[ChatAnswer, str], ValueT],
        form: AskedForm,
        seed: int,
        temperature: float,
    ) -> ReadAnswer[ValueT]:
        """Value of one answer, or the reason why it is not valid; raises as `ask` does.

        Args:
            question: The question.
            read: Function (answer, its whole text) -> value of the answer; raises InvalidAnswerError.
            form: Form in which the question is to be answered.
            seed: Seed of the answer.
            temperature: Temperature of the answer.
        """
        try:
            answer = await self._endpoint.ask(
                question.messages, seed, temperature, question.name,
                form=form.parameters, num_alternatives=form.num_alternatives,
            )  # fmt: skip
        except ConfigError as error:  # the question was refused, perhaps because of its text
            if _TOO_LONG.search(str(error)):
                raise ConfigError(
                    f"a question is too long for the judge's context, although its texts fit into max_question_tokens: "
                    f"lower max_question_tokens or max_tokens, or raise the judge's context ({error})"
                ) from error
            await self._ask_control_question(error, form)
            return ReadAnswer(value=None, cause=str(error), is_refused=True)
        try:
            value = read(answer, self._endpoint.whole_text(answer))
        except InvalidAnswerError as error:
            return ReadAnswer(value=None, cause=str(error), answers=(answer,))
        return ReadAnswer(value=value, answers=(answer,))

    async def _ask_control_question(self, refusal: ConfigError, form: AskedForm) -> None:
        """Ask the harmless question in the same form.

        Raises:
            ConfigError: If the harmless question is refused too: then the endpoint is at fault, not the question.
        """
        try:
            await self._endpoint.ask(
                self._control().messages, 0, self._endpoint.temperature(0), None,
                form=form.parameters, num_alternatives=form.num_alternatives,
            )  # fmt: skip
        except ConfigError as error:
            raise ConfigError(f"the judge refuses every question: {error}") from refusal
