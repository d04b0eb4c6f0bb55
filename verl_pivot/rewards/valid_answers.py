"""ValidAnswers: a question and a reader of its answers -> the first valid answer of a judge, or why there is none."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from verl_pivot.engines.chat import ChatAnswer
from verl_pivot.errors import ConfigError
from verl_pivot.rewards.judge_endpoint import JudgeEndpoint
from verl_pivot.rewards.principle_answers import InvalidAnswerError
from verl_pivot.rewards.principles import FencedQuestion
from verl_pivot.types import JsonObject

ValueT = TypeVar("ValueT")
_MAX_REASON: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAnswer(Generic[ValueT]):
    """What a judge's answers to one question say."""

    value: ValueT | None
    """What the valid answer says; None if no answer was valid."""
    reason: str = ""
    """Why the last answer was invalid; "" if it was valid."""
    answers: tuple[ChatAnswer, ...] = ()
    """The answers, the valid one last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedForm:
    """How a question wants to be answered."""

    parameters: JsonObject | None = None
    """Parameters of the request that tell the form; None: those of the endpoint."""
    num_alternatives: int | None = None
    """Likeliest tokens that are to come with the logprob of each token; None: no logprobs."""


class ValidAnswers:
    """Asks a judge again until an answer is valid, each time with another seed."""

    def __init__(self, endpoint: JudgeEndpoint, num_retries: int, control: Callable[[], FencedQuestion]) -> None:
        """Ask nothing yet.

        Args:
            endpoint: The judge.
            num_retries: Times that a question is asked again after an invalid answer.
            control: Makes a harmless question, which tells a refused question from a refused key or model.
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
            read: (answer, its whole text) -> what it says; raises InvalidAnswerError.
            form: How it is to be answered.
            sample: Number of the answer among several valid ones that are wanted, from 0; no two share a seed.
            temperature: Temperature of the first question; a repeated one has 0.7 at least.

        Raises:
            VerifierError: If the judge cannot be reached or keeps failing, or the cache cannot be written.
            ConfigError: If it refuses every question.
        """
        answers: list[ChatAnswer] = []
        reason = ""
        for number in range(self._num_retries + 1):
            seed = sample * (self._num_retries + 1) + number
            degrees = temperature if number == 0 else max(temperature, self._endpoint.temperature(seed))
            found = await self._ask_once(question, read, form, seed, degrees)
            answers += found.answers
            reason = found.reason
            if found.value is not None:
                return ReadAnswer(value=found.value, answers=tuple(answers))
            if not found.answers:  # it was refused, and another seed changes nothing
                break
        return ReadAnswer(value=None, reason=reason, answers=tuple(answers))

    async def _ask_once(
        self,
        question: FencedQuestion,
        read: Callable[[ChatAnswer, str], ValueT],
        form: AskedForm,
        seed: int,
        temperature: float,
    ) -> ReadAnswer[ValueT]:
        try:
            answer = await self._endpoint.ask(
                question.messages, seed, temperature, question.name,
                form=form.parameters, num_alternatives=form.num_alternatives,
            )  # fmt: skip
        except ConfigError as error:  # a refused question, whose text may be the reason
            await self._ask_control_question(error, form)
            return ReadAnswer(value=None, reason=f"the judge refuses the question: {error}"[:_MAX_REASON])
        try:
            value = read(answer, self._endpoint.whole_text(answer))
        except InvalidAnswerError as error:
            reason = f"the judge's answer is invalid: {error}"
            return ReadAnswer(value=None, reason=reason[:_MAX_REASON], answers=(answer,))
        return ReadAnswer(value=value, answers=(answer,))

    async def _ask_control_question(self, refusal: ConfigError, form: AskedForm) -> None:
        """Ask the harmless question in the same form.

        Raises:
            ConfigError: If that is refused too, so that the endpoint and not the question is at fault.
        """
        try:
            await self._endpoint.ask(
                self._control().messages, 0, self._endpoint.temperature(0), None,
                form=form.parameters, num_alternatives=form.num_alternatives,
            )  # fmt: skip
        except ConfigError as error:
            raise ConfigError(f"the judge refuses every question: {error}") from refusal
