"""LabelledTurn <-> rows of turns.parquet: what a judge sees of a turn, and the score that it should give."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow
import pyarrow.parquet

from verl_pivot.data.files import read_rows, replacing
from verl_pivot.data.json_values import BadRowError
from verl_pivot.errors import DataError
from verl_pivot.rewards.principles import PrincipleSet, ShownTurn, TurnQuestion

LabelSource = Literal["judge", "outcomes", "continuations"]

_SHOWN = pyarrow.struct({"text": pyarrow.string(), "observation": pyarrow.string()})
MESSAGE = pyarrow.struct({"role": pyarrow.string(), "content": pyarrow.string()})
"""Type of one message in a column `messages`."""
SCHEMA = pyarrow.schema(
    {
        "id": pyarrow.string(),
        "task_id": pyarrow.string(),
        "task": pyarrow.string(),
        "earlier": pyarrow.list_(_SHOWN),
        "text": pyarrow.string(),
        "observation": pyarrow.string(),
        "outcome": pyarrow.float64(),
        "label": pyarrow.float64(),
        "spread": pyarrow.float64(),
        "num_samples": pyarrow.int64(),
        "num_valid": pyarrow.int64(),
        "labelled_by": pyarrow.string(),
        "messages": pyarrow.list_(MESSAGE),
        "verifier": pyarrow.string(),
        "verifier_options": pyarrow.string(),
    }
)
"""Columns of turns.parquet; the last three are what `verl-pivot import` reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedTurn:
    """One turn of a rollout that a judge can be asked about.

    Example:
        JudgedTurn(id="1:a_0_0:0", task="Who?", earlier=(), turn=ShownTurn(text="<search>x</search>"), outcome=1.0)
    """

    id: str
    """`<step>:<uid>:<number of the turn from 0>`."""
    task: str
    earlier: tuple[ShownTurn, ...]
    turn: ShownTurn
    outcome: float | None
    """Score of the rollout; None if it is undecided or unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledTurn:
    """A turn with the score that a judge should give."""

    judged: JudgedTurn
    label: float
    """Score in [0, 1]."""
    spread: float
    """Standard deviation of the scores or outcomes that the label comes from."""
    num_samples: int
    """Number of answers of the stronger judge, rollouts with the same turn, or continuations from after the turn."""
    num_valid: int
    """Number of these samples that gave a score or an outcome."""
    labelled_by: LabelSource
    answer: str
    """Judge's answer whose score is equal to the label, or near it."""


def write_turns(
    path: Path,
    turns: Sequence[LabelledTurn],
    questions: Sequence[TurnQuestion],
    principle_set: PrincipleSet,
    tolerance: float,
) -> None:
    """Write a row for each turn.

    Args:
        path: The turns.parquet.
        turns: [num_turns]
        questions: [num_turns] question about each turn.
        principle_set: Principles in the questions, and the form of the answers.
        tolerance: Option `tolerance` of the verifier process_score.
    """
    rows = [_row(turn, question, principle_set, tolerance) for turn, question in zip(turns, questions, strict=True)]
    with replacing(path) as unfinished:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=SCHEMA), unfinished)


def _row(
    turn: LabelledTurn, question: TurnQuestion, principle_set: PrincipleSet, tolerance: float
) -> dict[str, object]:
    judged = turn.judged
    options = {**options_of(judged.turn.text, turn.label, principle_set), "tolerance": tolerance}
    return {
        "id": judged.id,
        "task_id": task_id(judged.task),
        "task": judged.task,
        "earlier": [asdict(each) for each in judged.earlier],
        "text": judged.turn.text,
        "observation": judged.turn.observation,
        "outcome": judged.outcome,
        "label": turn.label,
        "spread": turn.spread,
        "num_samples": turn.num_samples,
        "num_valid": turn.num_valid,
        "labelled_by": turn.labelled_by,
        "messages": [*question.recorded_messages, {"role": "assistant", "content": turn.answer}],
        "verifier": "process_score",
        "verifier_options": msgspec.json.encode(options).decode(),
    }


def options_of(text: str, label: float, principle_set: PrincipleSet) -> dict[str, object]:
    """Options of the verifier process_score for a turn with this text and label, without a tolerance."""
    return {
        "turn": text,
        "form": principle_set.form,
        "principles": [each.model_dump() for each in principle_set.principles],
        "max_added": principle_set.max_added,
        "label": label,
    }


def task_id(task: str) -> str:
    """Digest of a task, which keeps all turns of the task in the same split: training or validation."""
    return sha256(task.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class TurnRow(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of a row that `verl-pivot process bench` needs; a file of your own needs no others."""

    id: str = ""
    task: str
    earlier: tuple[ShownTurn, ...] = ()
    text: str
    observation: str = ""
    label: float


def read_turns(path: Path) -> Iterator[TurnRow]:
    """Read the turns of a file with their labels.

    Raises:
        DataError: If the file cannot be read, or a row lacks a column or has a label outside of [0, 1].
    """
    for row in read_rows(path):
        try:
            turn = msgspec.convert(row.decoded(), TurnRow)
        except (BadRowError, msgspec.ValidationError) as error:
            raise DataError(
                f"{row.place} is not a labelled turn ({error}): give a file of `verl-pivot process label`, or rows "
                "with task, earlier, text, observation and label; pairs of turns need --pairs"
            ) from error
        if not (math.isfinite(turn.label) and 0.0 <= turn.label <= 1.0):
            raise DataError(f"{row.place}: label must lie in [0, 1], got {turn.label}")
        yield turn
