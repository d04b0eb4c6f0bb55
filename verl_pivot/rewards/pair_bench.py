"""Pairs of labelled turns, each asked about in both orders -> how often a judge puts the turns in the right order."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import msgspec
from pydantic import ValidationError

from verl_pivot.data.files import read_rows
from verl_pivot.data.json_values import BadRowError
from verl_pivot.engines.chat import ChatAnswer, response_format
from verl_pivot.errors import DataError
from verl_pivot.rewards.judge_endpoint import JudgeEndpoint
from verl_pivot.rewards.principle_answers import PairScores, pair_schema, pair_scores, reason_to_count
from verl_pivot.rewards.principles import FencedQuestion, PrincipleSet, ShownTurn, turn_question
from verl_pivot.rewards.process_score import OtherTurn, ProcessScoreOptions, is_order
from verl_pivot.rewards.process_settings import ProcessSettings
from verl_pivot.rewards.turn_judge import all_or_none
from verl_pivot.rewards.valid_answers import AskedForm, ReadAnswer, ValidAnswers
from verl_pivot.types import JsonObject
from verl_pivot.validation import first_problem


class _PairColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of turns.pairs.parquet that a question and its right answer come from."""

    first: str
    second: str
    messages: list[dict[str, str]]
    verifier_options: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedPair:
    """Two turns in the order in which the judge sees them."""

    first: str
    """Id of the turn that stands first."""
    second: str
    question: FencedQuestion
    options: ProcessScoreOptions
    """Principles and form that the judge was told, with the labels and texts of both turns."""

    @property
    def other(self) -> OtherTurn:
        """The turn that stands second."""
        assert self.options.other is not None, self.first
        return self.options.other

    @property
    def is_first_better(self) -> bool:
        assert self.options.label is not None, self.first
        return self.options.label > self.other.label

    def scores(self, text: str) -> PairScores:
        """Scores of both turns in an answer; raises InvalidAnswerError."""
        told = PrincipleSet(
            form=self.options.form, principles=self.options.principles, max_added=self.options.max_added
        )
        return pair_scores(text, (ShownTurn(text=self.options.turn), ShownTurn(text=self.other.turn)), told)


class BothOrders(NamedTuple):
    """The two rows of one pair."""

    one: OrderedPair
    other: OrderedPair


@dataclass(frozen=True, slots=True, kw_only=True)
class PairReport:
    """How a judge orders pairs of turns, over its valid answers; a tie is not the right order."""

    num_pairs: int
    """Pairs, each of which the judge is asked about in both orders."""
    num_valid: int
    """Valid answers, of two for each pair."""
    invalid: dict[str, int]
    """{reason why an answer was invalid: number of such answers}"""
    num_right: int
    """Answers whose scores have the order of the labels."""
    num_tied: int
    num_first: int
    """Answers that score the first turn higher; the first turn is the better one in half of the questions."""
    num_both_valid: int
    """Pairs with valid answers in both orders."""
    num_both_right: int
    """Pairs whose scores have the order of the labels in both answers."""
    num_cached: int
    """Number of answers from the cache, for which no time is known."""
    seconds_per_answer: float | None
    """Mean time from a question to its answer, at the concurrency of the run; None if all were cached."""
    prompt_tokens_per_answer: float
    completion_tokens_per_answer: float
    """Both token counts are those of the server; 0 where it reports none."""

    @property
    def accuracy(self) -> float | None:
        return _share(self.num_right, self.num_valid)

    @property
    def accuracy_in_both_orders(self) -> float | None:
        return _share(self.num_both_right, self.num_both_valid)

    @property
    def share_first(self) -> float | None:
        """Share of the untied answers that prefer the first turn; 0.5 for a judge that ignores the position."""
        return _share(self.num_first, self.num_valid - self.num_tied)

    def as_dict(self) -> JsonObject:
        shares: JsonObject = {
            "valid_rate": self.num_valid / (2 * self.num_pairs),
            "accuracy": self.accuracy,
            "accuracy_in_both_orders": self.accuracy_in_both_orders,
            "share_first": self.share_first,
        }
        return {**asdict(self), **shares}


def read_pairs(path: Path) -> list[BothOrders]:
    """Pairs of a turns.pairs.parquet, each with the rows of both orders.

    Raises:
        DataError: If the file cannot be read, a row is no pair, or a pair does not stand in both orders.
    """
    of_turns: dict[frozenset[str], list[OrderedPair]] = defaultdict(list)
    for pair in _ordered_pairs(path):
        of_turns[frozenset((pair.first, pair.second))].append(pair)
    for same in of_turns.values():
        if len(same) != 2 or (same[0].first, same[0].second) != (same[1].second, same[1].first):
            raise DataError(
                f"{path}: the turns {same[0].first} and {same[0].second} must be in two rows, once in each order: give "
                "a file that `verl-pivot process label --pairs` wrote"
            )
    return [BothOrders(*same) for same in of_turns.values()]


def _ordered_pairs(path: Path) -> Iterator[OrderedPair]:
    for row in read_rows(path):
        try:
            columns = msgspec.convert(row.decoded(), _PairColumns)
            options = ProcessScoreOptions.model_validate_json(columns.verifier_options)
        except (BadRowError, msgspec.ValidationError) as error:
            raise DataError(_no_pair(row.place, str(error))) from error
        except ValidationError as error:
            raise DataError(_no_pair(row.place, first_problem(error))) from error
        if options.other is None:
            raise DataError(_no_pair(row.place, "its verifier_options have no key other"))
        messages: list[JsonObject] = [{**message} for message in columns.messages[:-1]]  # the last is the answer
        question = FencedQuestion(messages=messages, name=_digest(messages), fence_word="")
        yield OrderedPair(first=columns.first, second=columns.second, question=question, options=options)


def _no_pair(place: object, problem: str) -> str:
    return (
        f"{place} is not a pair of turns ({problem}): give the turns.pairs.parquet of `verl-pivot process label "
        "--pairs`"
    )


def _digest(messages: list[JsonObject]) -> str:
    return sha256(msgspec.json.encode(messages)).hexdigest()


class _TimedAnswer(NamedTuple):
    read: ReadAnswer[PairScores]
    seconds: float


class PairJudge:
    """Asks a judge about pairs of turns, many at a time, within one event loop."""

    def __init__(self, settings: ProcessSettings, *, written: Callable[[str], str] | None = None) -> None:
        """Open the cache; nothing is asked yet.

        Args:
            settings: The judge; its principles stand in the rows.
            written: Name of a setting -> how users write it, for messages.

        Raises:
            ConfigError: If the cache cannot be opened, or the API key is not set.
        """
        self._settings = settings
        self._endpoint = JudgeEndpoint(settings, {}, written=written)
        self._asking = ValidAnswers(self._endpoint, 0, _control)

    async def close(self) -> None:
        await self._endpoint.close()

    async def ask_once(self, pair: OrderedPair, seed: int, temperature: float) -> ReadAnswer[PairScores]:
        """The scores of one answer, valid or not.

        Raises:
            VerifierError: If the judge cannot be reached or keeps failing, or the cache cannot be written.
            ConfigError: If it refuses every question.
        """

        def read(answer: ChatAnswer, text: str) -> PairScores:
            return pair.scores(text)

        schema = pair_schema(pair.options.form)
        form = {} if schema is None else response_format(self._settings.answer_format, "pair", schema)
        return await self._asking.ask_once(pair.question, read, AskedForm(parameters=form), seed, temperature)


def _control() -> FencedQuestion:
    turn = ShownTurn(text="I add 1 and 2, which gives 3.")
    return turn_question("Add 1 and 2.", (), turn, PrincipleSet(form="released", principles=()), lambda texts, _: texts)


async def bench_pairs(
    pairs: Sequence[BothOrders],
    judge: PairJudge,
    *,
    concurrency: int,
    temperature: float,
    seed: int,
    on_pairs: Callable[[int], object],
) -> PairReport:
    """Ask a judge once about each pair in both orders, and compare its order with that of the labels.

    Raises:
        VerifierError: If the judge cannot be reached or keeps failing.
        ConfigError: If it refuses every question.
    """
    slots = asyncio.Semaphore(concurrency)

    async def ask(pair: OrderedPair) -> _TimedAnswer:
        async with slots:
            began = time.monotonic()
            return _TimedAnswer(await judge.ask_once(pair, seed, temperature), time.monotonic() - began)

    async def ask_both(pair: BothOrders) -> list[_TimedAnswer]:
        answers = await all_or_none([ask(each) for each in pair])
        on_pairs(1)
        return answers

    return pair_report(pairs, await all_or_none([ask_both(pair) for pair in pairs]))


def pair_report(pairs: Sequence[BothOrders], answered: Sequence[Sequence[_TimedAnswer]]) -> PairReport:
    """Report on the judge's answers.

    Args:
        pairs: [num_pairs] one or more.
        answered: [num_pairs][2]
    """
    both = [each for orders in zip(pairs, answered, strict=True) for each in zip(*orders, strict=True)]
    scored = [(pair, answer.read.value) for pair, answer in both if answer.read.value is not None]
    right = [
        scores is not None and is_order(scores, is_first=pair.is_first_better)
        for pair, scores in ((pair, answer.read.value) for pair, answer in both)
    ]
    timed = [each.seconds for _, each in both if not any(answer.is_cached for answer in each.read.answers)]
    answers = [answer for _, each in both for answer in each.read.answers]
    reasons = Counter(reason_to_count(each.read.reason) for _, each in both if each.read.value is None)
    return PairReport(
        num_pairs=len(pairs),
        num_valid=len(scored),
        invalid=dict(reasons.most_common()),
        num_right=sum(right),
        num_tied=sum(
            not is_order(scores, is_first=True) and not is_order(scores, is_first=False) for _, scores in scored
        ),
        num_first=sum(is_order(scores, is_first=True) for _, scores in scored),
        num_both_valid=sum(all(each.read.value is not None for each in orders) for orders in answered),
        num_both_right=sum(map(all, zip(right[::2], right[1::2], strict=True))),
        num_cached=sum(answer.is_cached for answer in answers),
        seconds_per_answer=sum(timed) / len(timed) if timed else None,
        prompt_tokens_per_answer=sum(answer.num_prompt_tokens for answer in answers) / len(both),
        completion_tokens_per_answer=sum(answer.num_completion_tokens for answer in answers) / len(both),
    )


def _share(number: int, of: int) -> float | None:
    return number / of if of else None
