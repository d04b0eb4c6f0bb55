"""Files of questions -> a parquet of verl's rows for rollouts with tools, with a count of everything left out."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias, cast

import pyarrow
import pyarrow.parquet

from verl_pivot.data.files import Place, RawRow, read_rows, replacing
from verl_pivot.data.json_values import BadRowError
from verl_pivot.errors import DataError
from verl_pivot.formats.questions import Question, read_question
from verl_pivot.types import Json, JsonObject
from verl_pivot.verifiers.qa_words import l0_words, search_r1_words

Normalisation: TypeAlias = Literal["l0", "search_r1"]
_OWN_REWARD = "searchR1_"
"""Prefix of the names in `data_source` for which verl rewards a row by its exact match."""
_SCORED_DATASETS = frozenset({"nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle"})
"""Names of data sets that verl knows after this prefix."""
_SCHEMA = pyarrow.schema(
    {
        "data_source": pyarrow.string(),
        "prompt": pyarrow.list_(pyarrow.struct({"role": pyarrow.string(), "content": pyarrow.string()})),
        "ability": pyarrow.string(),
        "reward_model": pyarrow.struct(
            {
                "style": pyarrow.string(),
                "ground_truth": pyarrow.struct({"target": pyarrow.list_(pyarrow.string())}),
            }
        ),
        "extra_info": pyarrow.struct({"index": pyarrow.int64(), "id": pyarrow.string(), "question": pyarrow.string()}),
    }
)


@dataclass(slots=True, kw_only=True)
class QuestionCounts:
    """Counts of the rows that were read, by what happened to them."""

    num_read: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """{reason: number of rows}"""
    first_refused: dict[str, str] = field(default_factory=dict)
    """{reason: place of the first row, and what is wrong with it}"""
    num_duplicates: int = 0
    """Rows whose question is also in an earlier row, even if the answers differ."""
    num_beyond_limit: int = 0
    written: Counter[str] = field(default_factory=Counter)
    """{data_source: number of rows}"""
    num_answers_left_out: int = 0
    """Answers that could not be compared, of questions that were kept for their other answers."""

    def refuse(self, place: str, error: BadRowError) -> None:
        """Count a row that holds no question with an answer."""
        self.refused[error.reason] += 1
        self.first_refused.setdefault(error.reason, f"{place}: {error}")


def write_qa_rows(
    files: Sequence[Path],
    out: Path,
    *,
    normalisation: Normalisation,
    instructions: str = "",
    data_source: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    on_rows: Callable[[int], object],
) -> QuestionCounts:
    """Write one row for each different question, in the order of the files.

    Args:
        files: Files of JSON lines, JSON or parquet, in any of the formats of `read_question`.
        out: The parquet file.
        normalisation: Rule by which the verifier `qa` normalises answers; an answer of which it leaves nothing is
            left out.
        instructions: Text after each question in the prompt; empty for the question alone.
        data_source: Name by which verl chooses the reward; None takes the name for verl's exact match.
        limit: Maximum number of rows to write, drawn at random; None writes all.
        seed: Seed of that draw.
        on_rows: Called with the number of rows that have been read since its last call.

    Raises:
        DataError: If a file cannot be read, or no question is left.
    """
    counts = QuestionCounts()
    questions = list(_different(_read(files, normalisation, counts, on_rows), counts))
    if not questions:
        first = next(iter(counts.first_refused.values()), "")
        raise DataError(f"none of {counts.num_read} rows holds a question with an answer; the first: {first}")
    if limit is not None and limit < len(questions):
        counts.num_beyond_limit = len(questions) - limit
        questions = [questions[index] for index in sorted(random.Random(seed).sample(range(len(questions)), limit))]
    rows = [qa_row(each, index, instructions, data_source) for index, each in enumerate(questions)]
    counts.written.update(str(row["data_source"]) for row in rows)
    with replacing(out) as unfinished:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=_SCHEMA), unfinished)
    return counts


def qa_row(question: Question, index: int, instructions: str, data_source: str | None) -> JsonObject:
    """Row of a question in verl's columns, with the answers where verl's exact match reads them."""
    known = question.dataset if question.dataset in _SCORED_DATASETS else "nq"
    content = f"{question.text}\n{instructions}" if instructions else question.text
    return {
        "data_source": data_source or _OWN_REWARD + known,
        "prompt": [{"role": "user", "content": content}],
        "ability": "qa",
        "reward_model": {"style": "rule", "ground_truth": {"target": list(question.answers)}},
        "extra_info": {"index": index, "id": question.id, "question": question.text},
    }


def comparable_answers(answers: Sequence[str], normalisation: Normalisation) -> tuple[str, ...]:
    """The answers of which normalisation leaves something that the verifier `qa` can compare.

    Raises:
        BadRowError: If there is no such answer.
    """
    words_of = l0_words if normalisation == "l0" else search_r1_words
    kept = tuple(each for each in answers if any(map(str.isalnum, "".join(words_of(each).compared))))
    if kept:
        return kept
    if any(map(str.isalnum, "".join(answers))):
        raise BadRowError("lost_letters", f"normalisation {normalisation} loses a letter of {answers[0]!r}")
    raise BadRowError("nothing_left", f"normalisation {normalisation} leaves nothing of {answers[0]!r}")


def _read(
    files: Sequence[Path], normalisation: Normalisation, counts: QuestionCounts, on_rows: Callable[[int], object]
) -> Iterator[Question]:
    for row in (item for path in files for each in read_rows(path) for item in _items(each)):
        on_rows(1)
        counts.num_read += 1
        try:
            question = read_question(row.decoded())
            answers = comparable_answers(question.answers, normalisation)
        except BadRowError as error:
            counts.refuse(str(row.place), error)
            continue
        counts.num_answers_left_out += len(question.answers) - len(answers)
        yield replace(question, answers=answers)


def _items(row: RawRow) -> Iterator[RawRow]:
    """The row itself, or, if the file is one object as in TriviaQA, the items of the object's list `Data`."""
    data = _data(row) if row.place.number == 1 else None
    if data is None:
        yield row
        return
    for number, item in enumerate(data, start=1):
        yield RawRow(
            place=Place(file=f"{row.place.file}, Data", unit="item", number=number), raw=cast("JsonObject", item)
        )


def _data(row: RawRow) -> list[Json] | None:
    try:
        data = row.decoded().get("Data")
    except BadRowError:  # counted where the row is read
        return None
    return data if isinstance(data, list) else None


def _different(questions: Iterator[Question], counts: QuestionCounts) -> Iterator[Question]:
    seen: set[str] = set()
    for question in questions:
        if question.key in seen:
            counts.num_duplicates += 1
        else:
            seen.add(question.key)
            yield question
