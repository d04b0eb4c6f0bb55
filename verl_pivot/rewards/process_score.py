"""Verifier `process_score`: a judge's answer about a turn is right if its score is near the turn's label."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from verl_pivot.rewards.principles import (
    Form,
    InvalidAnswerError,
    Principle,
    PrincipleSet,
    ShownTurn,
    score_of_answer,
)
from verl_pivot.types import Message, Turn, Verdict
from verl_pivot.validation import Options
from verl_pivot.verifiers.registry import register
from verl_pivot.verifiers.verdicts import Reason, broken_expert, refuse

_ROUNDING = 1e-9
"""Beyond the tolerance: 0.8 - 0.7 is a little more than 0.1."""


class ProcessScoreOptions(Options):
    """Options of the verifier `process_score`, which `verl-pivot process label` writes into each row."""

    turn: str
    """Text of the turn that the judge is asked about, which must hold every quotation."""
    form: Form = "principles"
    principles: tuple[Principle, ...] = ()
    """What the judge was told to go by; needed in the form `principles`."""
    max_added: Annotated[int, Field(ge=0, le=10)] = 0
    """Most principles of its own that the judge may add."""
    label: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    """The right score; None for that of the expert's answer."""
    tolerance: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Largest difference from the label that is paid."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.form == "principles" and not self.principles:
            raise ValueError("principles is missing: the form principles needs one or more, each with name and text")
        return self


@register("process_score", options=ProcessScoreOptions)
class ProcessScoreVerifier:
    """Pays 1 for a valid answer whose score is within the tolerance of the label, else 0.

    Answers are read as those of the judge in training. A row whose expert's answer would not be paid is undecided.
    """

    def __init__(self, options: ProcessScoreOptions) -> None:
        self._options = options
        self._turn = ShownTurn(text=options.turn)
        self._principle_set = PrincipleSet(
            form=options.form, principles=options.principles, max_added=options.max_added
        )

    async def __call__(self, action: Message, turn: Turn) -> Verdict:
        expert = self._score(turn.expert)
        if isinstance(expert, Verdict):
            return broken_expert(f"the expert's answer has no score that counts: {expert.detail}")
        label = expert if self._options.label is None else self._options.label
        if not self._is_near(expert, label):
            return broken_expert(f"the expert's score of {expert:.3f} is not within the tolerance of {label:.3f}")
        score = self._score(action)
        if isinstance(score, Verdict):
            return score
        if self._is_near(score, label):
            return Verdict.accept()
        return refuse(Reason.WRONG_VALUE, f"a score of {score:.3f}, and the label is {label:.3f}")

    def _is_near(self, score: float, label: float) -> bool:
        return abs(score - label) <= self._options.tolerance + _ROUNDING

    def _score(self, message: Message) -> float | Verdict:
        """Score of an answer, or the verdict that it has none."""
        if message.tool_calls:
            return refuse(Reason.CALL_INSTEAD_OF_MESSAGE)
        try:
            return score_of_answer(message.content, self._turn, self._principle_set)
        except InvalidAnswerError as error:
            return refuse(Reason.WRONG_FORM, str(error))
