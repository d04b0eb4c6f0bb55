"""Verifier `process_score`: pays a judge's answer whose score is near the label, or which orders two turns by label."""

from collections.abc import Callable
from typing import Annotated, Self, TypeVar

from pydantic import Field, model_validator

from verl_pivot.rewards.principle_answers import InvalidAnswerError, PairScores, pair_scores, score_of_answer
from verl_pivot.rewards.principles import Form, Principle, PrincipleSet, ShownTurn
from verl_pivot.types import Message, Turn, Verdict
from verl_pivot.validation import Options
from verl_pivot.verifiers.registry import register
from verl_pivot.verifiers.verdicts import Reason, broken_expert, refuse

ScoreT = TypeVar("ScoreT", float, PairScores)
_ROUNDING = 1e-9
"""Margin for rounding, added to the tolerance: 0.8 - 0.7 is a little more than 0.1."""


class OtherTurn(Options):
    """The second turn of a pair."""

    turn: str
    """Text of the turn, which must hold every quotation about it."""
    label: Annotated[float, Field(ge=0.0, le=1.0)]


class ProcessScoreOptions(Options):
    """Options of the verifier `process_score`, which `verl-pivot process label` writes into each row."""

    turn: str
    """Text of the turn that the judge is asked about, which must hold every quotation."""
    form: Form = "principles"
    """Form in which the judge was told to answer."""
    principles: tuple[Principle, ...] = ()
    """Principles that the judge was told to go by; needed in the form `principles`."""
    max_added: Annotated[int, Field(ge=0, le=10)] = 0
    """Most principles of its own that the judge may add."""
    label: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    """The right score; None takes the score in the expert's answer."""
    tolerance: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Largest difference between score and label that is still paid."""
    other: OtherTurn | None = None
    """Second turn, which the judge is asked about in the same question: then the order of the two scores is paid."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.form == "principles" and not self.principles:
            raise ValueError("principles is missing: the form principles needs one or more, each with name and text")
        if self.other is not None and "tolerance" in self.model_fields_set:
            raise ValueError("tolerance does nothing with other, since the order of the scores is paid: leave it out")
        if self.other is not None and self.label in (None, self.other.label):
            raise ValueError("label and other.label must be given and differ, since they give the right order")
        return self


@register("process_score", options=ProcessScoreOptions)
class ProcessScoreVerifier:
    """Pays 1 for a valid answer whose score is within the tolerance of the label, else 0.

    With `other` it pays 1 for valid scores of both turns in the strict order of their labels. Answers are read by the
    same rules as those of a judge in training. A row whose expert's answer would not be paid is undecided.
    """

    def __init__(self, options: ProcessScoreOptions) -> None:
        self._options = options
        self._turn = ShownTurn(text=options.turn)
        self._principle_set = PrincipleSet(
            form=options.form, principles=options.principles, max_added=options.max_added
        )

    async def __call__(self, action: Message, turn: Turn) -> Verdict:
        if self._options.other is not None:
            return self._order(action, turn.expert, self._options.other)
        expert = self._read(turn.expert, self._score)
        if isinstance(expert, Verdict):
            return broken_expert(f"the expert's answer has no valid score: {expert.detail}")
        label = expert if self._options.label is None else self._options.label
        if not self._is_near(expert, label):
            return broken_expert(f"the expert's score of {expert:.3f} is not within the tolerance of {label:.3f}")
        score = self._read(action, self._score)
        if isinstance(score, Verdict):
            return score
        if self._is_near(score, label):
            return Verdict.accept()
        return refuse(Reason.WRONG_VALUE, f"the score is {score:.3f}, but the label is {label:.3f}")

    def _is_near(self, score: float, label: float) -> bool:
        return abs(score - label) <= self._options.tolerance + _ROUNDING

    def _score(self, text: str) -> float:
        return score_of_answer(text, self._turn, self._principle_set)

    def _order(self, action: Message, expert: Message, other: OtherTurn) -> Verdict:
        """Whether an answer puts the two turns in the order of their labels."""
        turns = (self._turn, ShownTurn(text=other.turn))
        is_first = self._options.label is not None and self._options.label > other.label

        def scores_of(text: str) -> PairScores:
            return pair_scores(text, turns, self._principle_set)

        known = self._read(expert, scores_of)
        if isinstance(known, Verdict):
            return broken_expert(f"the expert's answer has no valid scores: {known.detail}")
        if not is_order(known, is_first=is_first):
            return broken_expert(f"the expert's scores of {_shown(known)} have another order than the labels")
        scores = self._read(action, scores_of)
        if isinstance(scores, Verdict):
            return scores
        if is_order(scores, is_first=is_first):
            return Verdict.accept()
        better = "first" if is_first else "second"
        return refuse(Reason.WRONG_VALUE, f"the scores are {_shown(scores)}, but the {better} turn is the better one")

    def _read(self, message: Message, read: Callable[[str], ScoreT]) -> ScoreT | Verdict:
        """Score or scores in an answer, or the verdict that refuses the answer."""
        if message.tool_calls:
            return refuse(Reason.CALL_INSTEAD_OF_MESSAGE)
        try:
            return read(message.content)
        except InvalidAnswerError as error:
            return refuse(Reason.WRONG_FORM, str(error))


def is_order(scores: PairScores, *, is_first: bool) -> bool:
    """Whether the better turn has the higher score; False for a tie.

    Args:
        scores: Scores of the two turns.
        is_first: Whether the first turn is the better one.
    """
    better, worse = scores if is_first else scores[::-1]
    return better > worse + _ROUNDING


def _shown(scores: PairScores) -> str:
    return f"{scores.first:.3f} and {scores.second:.3f}"
