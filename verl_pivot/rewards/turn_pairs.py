"""Labelled turns of one task -> pairs of them, and rows of turns.pairs.parquet that ask which is the better one."""

import random
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow
import pyarrow.parquet

from verl_pivot.data.files import replacing
from verl_pivot.rewards.labelled_turns import MESSAGE, JudgedTurn, LabelledTurn, options_of, task_id
from verl_pivot.rewards.principle_answers import (
    score_of_answer,
)
from verl_pivot.rewards.principles import (
    FORM_OF_ANSWER,
    OBSERVATION,
    FencedQuestion,
    Fit,
    PrincipleSet,
    fenced_question,
    harmless,
    how_to_grade,
    listed_principles,
)
from verl_pivot.rewards.written_answers import pair_answer

_PLACES = ("first", "second")
_TASK = (
    "You grade two turns of assistants that work on the same task in several turns, with the help of tools. You see "
    "the task, and for each of the two turns what came before it, the turn, and what the tools gave back after it. "
    "Grade each of them by itself, so that the better one has the higher score. Which of them stands first, and how "
    "long they are, says nothing about them."
)
SCHEMA = pyarrow.schema(
    {
        **dict.fromkeys(("id", "task_id", "first", "second"), pyarrow.string()),
        **dict.fromkeys(("label_first", "label_second"), pyarrow.float64()),
        "messages": pyarrow.list_(MESSAGE),
        "verifier": pyarrow.string(),
        "verifier_options": pyarrow.string(),
    }
)
"""Columns of turns.pairs.parquet; `first` and `second` are ids of turns.parquet."""
_DRAWS = 50
"""Largest number of pairs that are looked at for each pair that is wanted."""


class TurnPair(NamedTuple):
    """Two labelled turns of one task, in the order in which a judge sees them."""

    first: LabelledTurn
    second: LabelledTurn


def draw_pairs(
    turns: Sequence[LabelledTurn], num_pairs: int, *, least_difference: float, principle_set: PrincipleSet, seed: int
) -> list[TurnPair]:
    """Random pairs of different turns of one task whose answers score them in the order of their labels.

    Args:
        turns: Turns with their labels.
        num_pairs: Largest number of pairs.
        least_difference: Labels of a pair differ by more than this.
        principle_set: Principles and form of the answers.
        seed: Seed of the draw.
    """
    of_task: dict[str, list[LabelledTurn]] = defaultdict(list)
    for turn in turns:
        of_task[turn.judged.task].append(turn)
    tasks = [same for same in of_task.values() if len(same) > 1]
    ends = list(accumulate(len(same) * (len(same) - 1) // 2 for same in tasks))
    found: list[TurnPair] = []
    for first, second in _drawn(tasks, ends, num_pairs * _DRAWS, seed):
        if len(found) == num_pairs:
            break
        if abs(first.label - second.label) > least_difference and _agree(first, second, principle_set):
            found.append(TurnPair(first, second))
    return found


def _drawn(
    tasks: Sequence[Sequence[LabelledTurn]], ends: Sequence[int], most: int, seed: int
) -> Iterator[tuple[LabelledTurn, LabelledTurn]]:
    """Up to `most` different pairs in random order.

    Args:
        tasks: [num_tasks] the turns of each task.
        ends: [num_tasks] number of pairs of each task and all tasks before it.
        most: Largest number of pairs.
        seed: Seed of the draw.
    """
    total = ends[-1] if ends else 0
    for number in random.Random(seed).sample(range(total), min(total, most)):
        task = bisect_right(ends, number)
        rest, later = number - (ends[task - 1] if task else 0), 1
        while rest >= later:
            rest, later = rest - later, later + 1
        yield tasks[task][rest], tasks[task][later]


def _agree(first: LabelledTurn, second: LabelledTurn, principle_set: PrincipleSet) -> bool:
    """Whether the scores in two turns' answers have the order of the labels, from which these scores may differ."""
    scores = [score_of_answer(each.answer, each.judged.turn, principle_set) for each in (first, second)]
    return (scores[0] - scores[1]) * (first.label - second.label) > 0.0


def pair_question(pair: tuple[JudgedTurn, JudgedTurn], principle_set: PrincipleSet, fit: Fit) -> FencedQuestion:
    """The question about two turns of one task.

    Args:
        pair: The turns, in the order in which they are shown.
        principle_set: Principles that they are judged by, and the form of the answer.
        fit: Cuts texts that are too long: old turns first, then the task, and the two turns last.
    """
    titled = [("The task:", pair[0].task)]
    order: list[int] = []
    graded: list[int] = []
    for place, judged in zip(_PLACES, pair, strict=True):
        for number, turn in enumerate(judged.earlier, 1):
            order += [len(titled) + 1, len(titled)]
            title = f"turn {number} before the {place} turn to grade"
            titled += [(f"{title.capitalize()}:", turn.text), (f"{OBSERVATION} after {title}:", turn.observation)]
        graded += [len(titled) + 1, len(titled)]
        title = f"the {place} turn to grade"
        turn = judged.turn
        titled += [(f"{title.capitalize()}:", turn.text), (f"{OBSERVATION} after {title}:", turn.observation)]
    shown = fit([harmless(text) for _, text in titled], [*order, 0, *graded])
    texts = [(title, text) for (title, _), text in zip(titled, shown, strict=True)]
    answer, instructions = _instructions(principle_set)
    return fenced_question(_TASK, answer, texts, instructions)


def _instructions(principle_set: PrincipleSet) -> tuple[str, str]:
    """Sentence of the system message about the answer, and the principles with the form of the answer."""
    listed = listed_principles(principle_set)
    if principle_set.form == "released":
        return "Answer only with the four lines that are asked for.", (
            f"Grade each turn by these principles:\n{listed}\n\nWrite two lines for the first turn, and then two for "
            "the second. The first of them is your analysis, principle by principle. The other holds the sum of your "
            "scores and the sum of their maxima as whole numbers:\n"
            "Analysis: ...\nScores: <final_score>SCORE,MAX_SCORE</final_score>"
        )
    return "Answer only with the JSON object that is asked for.", (
        f"Grade each turn by these principles:\n{listed}\n\n{how_to_grade(principle_set, 'that turn')}\nAnswer "
        f'{{"first": {FORM_OF_ANSWER}, "second": {FORM_OF_ANSWER}}}.'
    )


def write_pairs(path: Path, pairs: Sequence[TurnPair], principle_set: PrincipleSet, fit: Fit) -> None:
    """Write two rows for each pair, one in each order, so that the better turn stands first in half of the rows.

    Args:
        path: The file.
        pairs: The pairs.
        principle_set: Principles in the questions, and the form of the answers.
        fit: Cuts the texts of a question.
    """
    rows = [
        _row(ordered, principle_set, fit) for pair in pairs for ordered in (pair, TurnPair(pair.second, pair.first))
    ]
    with replacing(path) as unfinished:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=SCHEMA), unfinished)


def _row(pair: TurnPair, principle_set: PrincipleSet, fit: Fit) -> dict[str, object]:
    first, second = pair.first.judged, pair.second.judged
    options = {
        **options_of(first.turn.text, pair.first.label, principle_set),
        "other": {"turn": second.turn.text, "label": pair.second.label},
    }
    answer = pair_answer(pair.first.answer, pair.second.answer, principle_set)
    question = pair_question((first, second), principle_set, fit)
    return {
        "id": f"{first.id}|{second.id}",
        "task_id": task_id(first.task),
        "first": first.id,
        "second": second.id,
        "label_first": pair.first.label,
        "label_second": pair.second.label,
        "messages": [*question.recorded_messages, {"role": "assistant", "content": answer}],
        "verifier": "process_score",
        "verifier_options": msgspec.json.encode(options).decode(),
    }
