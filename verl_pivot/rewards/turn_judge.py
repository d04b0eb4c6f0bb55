"""TurnJudge: the turns of a trajectory -> a score for each from a judge behind an OpenAI-compatible endpoint."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self, TypeVar

from verl_pivot.engines.chat import ChatAnswer, response_format
from verl_pivot.engines.text_cut import Tokenizer, fit_together
from verl_pivot.off_loop import run_off_loop
from verl_pivot.rewards.judge_endpoint import JudgeEndpoint
from verl_pivot.rewards.principle_answers import answer_schema, score_of_answer
from verl_pivot.rewards.principles import ShownTurn, TurnQuestion, size_of_turns, turn_question
from verl_pivot.rewards.process_settings import ProcessSettings
from verl_pivot.rewards.valid_answers import AskedForm, ReadAnswer, ValidAnswers, answered_once, as_cached
from verl_pivot.verifiers.asked_once import AskedOnce

ResultT = TypeVar("ResultT")
_MAX_ANSWERS: Final = 4096
"""Number of questions whose judgements are kept in memory, for equal turns of other rollouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnJudgement:
    """Judgement of one turn."""

    score: float | None
    """Score in [0, 1]; None if no answer was valid."""
    reason: str = ""
    """Why the last answer was invalid; "" if it was valid."""
    answers: tuple[ChatAnswer, ...] = ()
    """The answers, the valid one last."""

    def shared(self) -> Self:
        """The same for an equal question of another rollout, which cost no request."""
        return replace(self, answers=as_cached(self.answers))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryJudgement:
    """Judgements of the turns of a trajectory."""

    turns: tuple[TurnJudgement, ...]
    """[num_turns - 1] the last turn is not judged."""
    seconds: float = 0.0


class TurnJudge:
    """Judges turns, many at a time and each once, within one event loop.

    Equal questions share their answer: those asked at the same time, and those of an earlier process. If the judge
    cannot be reached, an error is raised. If it gives no valid answer, the turn has no score.
    """

    def __init__(
        self,
        settings: ProcessSettings,
        tokenizer: Tokenizer,
        *,
        num_workers: int = 1,
        written: Callable[[str], str] | None = None,
    ) -> None:
        """Open the cache; nothing is asked yet.

        Args:
            settings: The judge, its principles and limits.
            tokenizer: Tokenizer that counts the tokens of questions.
            num_workers: Processes that share `max_concurrency`.
            written: Name of a setting -> how users write it, for messages.

        Raises:
            ConfigError: If the principles cannot be read, the cache cannot be opened, or the API key is not set.
        """
        self._settings = settings
        self._tokenizer = tokenizer
        self.principle_set = settings.principle_set()
        schema = answer_schema(self.principle_set.form)
        form = {} if schema is None else response_format(settings.answer_format, "principles", schema)
        self._endpoint = JudgeEndpoint(settings, form, num_workers=num_workers, written=written)
        self._asking = ValidAnswers(self._endpoint, settings.invalid_retries, self._control)
        self._judged: AskedOnce[str, TurnJudgement] = AskedOnce(_MAX_ANSWERS)

    async def close(self) -> None:
        await self._endpoint.close()

    async def judge(self, task: str, turns: Sequence[ShownTurn]) -> TrajectoryJudgement:
        """Judge every turn but the last, all at once.

        Raises:
            VerifierError: If the judge cannot be reached or keeps failing, or the cache cannot be written.
            ConfigError: If it refuses every question.
        """
        began = time.monotonic()
        judged = await all_or_none(
            [self._judge_turn(task, turns[:number], turn) for number, turn in enumerate(turns[:-1])]
        )
        return TrajectoryJudgement(turns=tuple(judged), seconds=time.monotonic() - began)

    async def _judge_turn(self, task: str, earlier: Sequence[ShownTurn], turn: ShownTurn) -> TurnJudgement:
        if not turn.text.strip():  # an empty turn fulfils no principle, and none of its words can be quoted
            return TurnJudgement(score=0.0)
        size = len(task) + size_of_turns((*earlier, turn))
        question = await run_off_loop(size, self.question, task, earlier, turn)
        return await answered_once(self._judged, question.name, lambda: self._ask(question))

    def question(self, task: str, earlier: Sequence[ShownTurn], turn: ShownTurn) -> TurnQuestion:
        """The question about a turn after the turns before it."""
        return turn_question(task, earlier, turn, self.principle_set, self._fit)

    def _fit(self, texts: Sequence[str], order: Sequence[int]) -> Sequence[str]:
        return fit_together(texts, order, self._settings.max_question_tokens, self._tokenizer)

    async def _ask(self, question: TurnQuestion) -> TurnJudgement:
        """Ask until an answer is valid, each time with another seed."""
        temperature = self._endpoint.temperature(0)
        return _judgement(
            await self._asking.ask(question, self._reader(question), AskedForm(), temperature=temperature)
        )

    async def ask_once(self, question: TurnQuestion, seed: int, temperature: float) -> TurnJudgement:
        """The judgement by one answer, valid or not.

        Raises:
            VerifierError: If the judge cannot be reached or keeps failing, or the cache cannot be written.
            ConfigError: If it refuses every question.
        """
        return _judgement(await self._asking.ask_once(question, self._reader(question), AskedForm(), seed, temperature))

    def _reader(self, question: TurnQuestion) -> Callable[[ChatAnswer, str], float]:
        return lambda _, text: score_of_answer(text, question.turn, self.principle_set)

    def _control(self) -> TurnQuestion:
        return self.question("Add 1 and 2.", (), ShownTurn(text="I add 1 and 2, which gives 3."))


def _judgement(found: ReadAnswer[float]) -> TurnJudgement:
    return TurnJudgement(score=found.value, reason=found.reason, answers=found.answers)


async def all_or_none(judging: Sequence[Coroutine[Any, Any, ResultT]]) -> list[ResultT]:
    """Results of all coroutines, run at once; the first error is raised and cancels the others."""
    tasks = [asyncio.create_task(each) for each in judging]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
