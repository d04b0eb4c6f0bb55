"""ChecklistJudge: a trajectory -> the checklist of its task, and the progress after each turn, from a judge."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from verl_pivot.engines.chat import ChatAnswer, response_format
from verl_pivot.engines.text_cut import Tokenizer, fit_together
from verl_pivot.off_loop import run_off_loop
from verl_pivot.rewards.checklist import (
    ItemState,
    StateOdds,
    checking_question,
    progress,
    writing_question,
)
from verl_pivot.rewards.checklist_answers import (
    NUM_ALTERNATIVES,
    checking_schema,
    items_of_answer,
    odds_of_answer,
    states_of_answer,
    writing_schema,
)
from verl_pivot.rewards.judge_endpoint import JudgeEndpoint
from verl_pivot.rewards.principles import FencedQuestion, ShownTurn, size_of_turns
from verl_pivot.rewards.process_settings import ProcessSettings
from verl_pivot.rewards.turn_judge import TrajectoryJudgement, TurnJudgement, all_or_none
from verl_pivot.rewards.valid_answers import AskedForm, ReadAnswer, ValidAnswers, answered_once
from verl_pivot.types import JsonObject
from verl_pivot.verifiers.asked_once import AskedOnce

_MAX_ANSWERS: Final = 4096
"""Number of questions whose answers are kept in memory, for equal questions of other rollouts."""
_CONTROL_ITEM: Final = "The sum of 1 and 2 is computed."


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecklistTask:
    """Task that a checklist is about."""

    task: str
    """Task that the policy was given."""
    first_page: str = ""
    """Page that stands after the task in the policy's prompt; "" if there is none."""
    items: tuple[str, ...] | None = None
    """Checklist of the row; None if the judge writes the checklist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecklistJudgement:
    """Judgement of a trajectory's turns by its checklist."""

    items: tuple[str, ...]
    """The checklist; empty if the row has none and the judge wrote no valid one."""
    judged: TrajectoryJudgement
    writing: tuple[ChatAnswer, ...] = ()
    """Answers to the question for the checklist; empty if the row has one."""


class ChecklistJudge:
    """Judges turns by checklists, many at a time, each question once, within one event loop.

    The judge writes one checklist for each task and page. Equal questions share their answer: those asked at the same
    time, those of other workers that share the cache, and those of an earlier process. If the judge cannot be reached,
    an error is raised. If it writes no valid checklist or gives no valid answer, turns have no score.
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
            settings: The judge and its limits.
            tokenizer: Tokenizer that counts the tokens of questions.
            num_workers: Processes that share `max_concurrency`.
            written: Name of a setting -> how users write it, for messages.

        Raises:
            ConfigError: If the cache cannot be opened, or the API key is not set.
        """
        self._settings = settings
        self._tokenizer = tokenizer
        self._form = settings.checklist_form
        self._by_odds = settings.progress_by == "probabilities"
        self._endpoint = JudgeEndpoint(settings, {}, num_workers=num_workers, written=written)
        self._asking = ValidAnswers(self._endpoint, settings.invalid_retries, self._control)
        self._written: AskedOnce[str, ReadAnswer[tuple[str, ...]]] = AskedOnce(_MAX_ANSWERS)
        self._judged: AskedOnce[str, TurnJudgement] = AskedOnce(_MAX_ANSWERS)

    async def close(self) -> None:
        await self._endpoint.close()

    async def judge(self, about: ChecklistTask, turns: Sequence[ShownTurn]) -> ChecklistJudgement:
        """Judge the progress after every turn but the last, all turns at once.

        Raises:
            VerifierError: If the judge cannot be reached or keeps failing, or the cache cannot be written.
            ConfigError: If it refuses every question.
        """
        began = time.monotonic()
        if len(turns) < 2:  # the last turn is not judged
            return ChecklistJudgement(items=about.items or (), judged=TrajectoryJudgement(turns=()))
        found = await self.checklist(about, turns)
        if found.value is None:
            judged = [TurnJudgement(score=None, reason=f"no checklist: {found.reason}") for _ in turns[:-1]]
        else:
            items = found.value
            judged = await all_or_none(
                [self.judge_turn(about, items, turns[: number + 1]) for number in range(len(turns) - 1)]
            )
        return ChecklistJudgement(
            items=found.value or (),
            judged=TrajectoryJudgement(turns=tuple(judged), seconds=time.monotonic() - began),
            writing=found.answers,
        )

    async def checklist(self, about: ChecklistTask, turns: Sequence[ShownTurn]) -> ReadAnswer[tuple[str, ...]]:
        """The row's checklist, or the one that the judge writes.

        Args:
            about: The task.
            turns: Turns of the rollout. If the prompt holds no first page, the observation after the first turn is
                used as the first page.
        """
        if about.items is not None:
            return ReadAnswer(value=about.items)
        page = about.first_page or (turns[0].observation if turns else "")
        shown = page if self._settings.checklist_from == "page" else ""
        size = len(about.task) + len(shown)
        question = await run_off_loop(size, writing_question, about.task, shown, self._form, self._fit)
        form = self._asked_form("checklist", writing_schema(self._form))

        def read(_: ChatAnswer, text: str) -> tuple[str, ...]:
            return items_of_answer(text, self._form)

        temperature = self._endpoint.temperature(0)
        return await answered_once(
            self._written, question.name, lambda: self._asking.ask(question, read, form, temperature=temperature)
        )

    async def judge_turn(
        self, about: ChecklistTask, items: tuple[str, ...], turns: Sequence[ShownTurn]
    ) -> TurnJudgement:
        """Progress after the last of these turns."""
        size = len(about.task) + len(about.first_page) + size_of_turns(turns)
        question = await run_off_loop(
            size, checking_question, about.task, items, about.first_page, turns, self._form, self._fit
        )
        return await answered_once(self._judged, question.name, lambda: self._ask(question, len(items)))

    async def _ask(self, question: FencedQuestion, num_items: int) -> TurnJudgement:
        """Judgement whose score is the mean progress over all valid samples."""
        form = self._asked_form("states", checking_schema(self._form), NUM_ALTERNATIVES if self._by_odds else None)

        def read(answer: ChatAnswer, text: str) -> list[ItemState] | list[StateOdds]:
            states = states_of_answer(text, num_items, self._form)
            return odds_of_answer(answer, states, self._form) if self._by_odds else states

        found = await all_or_none(
            [
                self._asking.ask(question, read, form, sample=sample, temperature=self._settings.temperature)
                for sample in range(self._settings.samples)
            ]
        )
        answers = tuple(answer for each in found for answer in each.answers)
        valid = [each.value for each in found if each.value is not None]
        if not valid:
            return TurnJudgement(score=None, reason=found[-1].reason, answers=answers)
        return TurnJudgement(score=progress(valid), answers=answers)

    def _fit(self, texts: Sequence[str], order: Sequence[int]) -> Sequence[str]:
        return fit_together(texts, order, self._settings.max_question_tokens, self._tokenizer)

    def _asked_form(self, name: str, schema: JsonObject | None, num_alternatives: int | None = None) -> AskedForm:
        parameters = {} if schema is None else response_format(self._settings.answer_format, name, schema)
        return AskedForm(parameters=parameters, num_alternatives=num_alternatives)

    def _control(self) -> FencedQuestion:
        turn = ShownTurn(text="I add 1 and 2, which gives 3.")
        return checking_question("Add 1 and 2.", (_CONTROL_ITEM,), "", (turn,), self._form, self._fit)
