"""Pairs of labelled turns: which are drawn, what a judge reads, in both orders, and answers for it to learn from."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.factories import make_turn
from verl_pivot.rewards.labelled_turns import JudgedTurn, LabelledTurn
from verl_pivot.rewards.principle_answers import InvalidAnswerError, pair_scores, score_of_answer
from verl_pivot.rewards.principles import FORMS, Form, Principle, PrincipleSet, ShownTurn
from verl_pivot.rewards.turn_pairs import draw_pairs, pair_question, write_pairs
from verl_pivot.rewards.written_answers import ordered_answer, pair_answer, plain_answer
from verl_pivot.types import Message, Role
from verl_pivot.verifiers.registry import get_verifier

NAMES = ("information", "query")


def principle_set(form: Form = "principles") -> PrincipleSet:
    return PrincipleSet(form=form, principles=tuple(Principle(name=name, text="It is right.") for name in NAMES))


def labelled(number: int, label: float, task: str = "Who?", form: Form = "principles") -> LabelledTurn:
    turn = ShownTurn(text=f"I look it up, number {number}.", observation=f"found {number}")
    earlier = (ShownTurn(text=f"before {number}", observation="nothing"),)
    judged = JudgedTurn(id=f"1:a_{number}_0:1", task=task, earlier=earlier, turn=turn, outcome=1.0)
    answer = plain_answer(label, turn.text, principle_set(form))
    return LabelledTurn(
        judged=judged, label=label, spread=0.0, num_samples=1, num_valid=1, labelled_by="outcomes", answer=answer
    )


def uncut(texts: Any, order: Any) -> Any:
    assert sorted(order) == list(range(len(texts)))
    return texts


@given(labels=st.lists(st.integers(0, 4), max_size=9), num_pairs=st.integers(1, 50), tasks=st.integers(1, 3))
def test_pairs_are_of_one_task_and_differ_by_more_than_the_least_difference(
    labels: list[int], num_pairs: int, tasks: int
) -> None:
    turns = [labelled(number, label / 4, f"task {number % tasks}") for number, label in enumerate(labels)]

    pairs = draw_pairs(turns, num_pairs, least_difference=0.3, principle_set=principle_set(), seed=0)

    allowed = {
        frozenset((first.judged.id, second.judged.id))
        for number, first in enumerate(turns)
        for second in turns[:number]
        if first.judged.task == second.judged.task and abs(first.label - second.label) > 0.3
    }
    drawn = [frozenset((pair.first.judged.id, pair.second.judged.id)) for pair in pairs]
    assert len(set(drawn)) == len(drawn) == min(num_pairs, len(allowed))
    assert set(drawn) <= allowed


def test_the_same_seed_draws_the_same_pairs_and_another_one_others() -> None:
    turns = [labelled(number, number / 20) for number in range(20)]
    first, again, other = (
        draw_pairs(turns, 5, least_difference=0.1, principle_set=principle_set(), seed=seed) for seed in (1, 1, 2)
    )

    assert first == again
    assert first != other


def test_an_answer_that_contradicts_the_labels_makes_no_pair() -> None:
    """The first turn has the lower label, but its answer, the nearest to a median, scores above the second turn."""
    first, second = labelled(0, 0.5), labelled(1, 0.8)
    wrong = LabelledTurn(
        judged=first.judged, label=0.5, spread=0.0, num_samples=2, num_valid=2, labelled_by="judge",
        answer=plain_answer(0.9, first.judged.turn.text, principle_set()),
    )  # fmt: skip

    assert draw_pairs([wrong, second], 1, least_difference=0.1, principle_set=principle_set(), seed=0) == []


def test_the_question_shows_both_turns_after_their_own_earlier_turns_in_fences() -> None:
    first, second = labelled(0, 0.2).judged, labelled(1, 0.9).judged

    asked = pair_question((first, second), principle_set(), uncut)

    user = str(asked.messages[1]["content"]).replace(asked.fence_word, "F")
    assert user.startswith(
        "The task:\n<F>\nWho?\n</F>\n\n"
        "Turn 1 before the first turn to grade:\n<F>\nbefore 0\n</F>\n\n"
        "What the tools gave back after turn 1 before the first turn to grade:\n<F>\nnothing\n</F>\n\n"
        "The first turn to grade:\n<F>\nI look it up, number 0.\n</F>\n\n"
        "What the tools gave back after the first turn to grade:\n<F>\nfound 0\n</F>\n\n"
        "Turn 1 before the second turn to grade:\n<F>\nbefore 1\n</F>\n\n"
    )
    assert "Grade each turn by these principles:\n- information: It is right.\n- query: It is right." in user


@pytest.mark.parametrize("form", FORMS)
async def test_each_pair_is_written_in_both_orders_and_its_own_answer_is_paid(form: Form, tmp_path: Path) -> None:
    turns = [labelled(0, 0.25, form=form), labelled(1, 1.0, form=form)]
    pairs = draw_pairs(turns, 9, least_difference=0.1, principle_set=principle_set(form), seed=0)

    write_pairs(tmp_path / "pairs.parquet", pairs, principle_set(form), uncut)

    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(tmp_path / "pairs.parquet").to_pylist()
    assert [(row["first"], row["second"], row["label_first"], row["label_second"]) for row in rows] == [
        ("1:a_0_0:1", "1:a_1_0:1", 0.25, 1.0),
        ("1:a_1_0:1", "1:a_0_0:1", 1.0, 0.25),
    ]
    assert rows[0]["task_id"] == rows[1]["task_id"]
    for row, other in zip(rows, reversed(rows), strict=True):
        verifier = get_verifier(row["verifier"], json.loads(row["verifier_options"]))
        own, others = (Message(role=Role.ASSISTANT, content=each["messages"][-1]["content"]) for each in (row, other))
        assert (await verifier(own, make_turn(expert=own))).score == 1.0
        refused = await verifier(others, make_turn(expert=own))
        assert (refused.score, refused.reason) == (0.0, "wrong_value" if form == "released" else "wrong_form")


@pytest.mark.parametrize("form", FORMS)
@given(score=st.fractions(0, 1, max_denominator=100).map(float))
def test_a_plain_answer_has_its_score_behind_each_principle(form: Form, score: float) -> None:
    answer = plain_answer(score, "I look it up.", principle_set(form))

    assert score_of_answer(answer, ShownTurn(text="I look it up."), principle_set(form)) == pytest.approx(
        score, abs=1e-9
    )
    for name in NAMES:
        assert answer.index(name) < answer.index("I look it up.", answer.index(name)) < answer.rindex("score")


def test_a_judges_answer_is_written_with_each_quotation_before_its_score() -> None:
    unordered = {"score": 3, "maximum": 10, "quotation": "look", "name": "query"}
    text = f"Here it is:\n```json\n{json.dumps({'principles': [unordered]})}\n```"
    inner = text.partition("```json\n")[2].partition("\n```")[0]

    assert json.loads(ordered_answer(inner, principle_set())) == {"principles": [unordered]}
    assert list(json.loads(ordered_answer(inner, principle_set()))["principles"][0]) == [
        "name", "quotation", "score", "maximum",
    ]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_scores_of_a_pair_are_those_of_its_two_answers(form: Form) -> None:
    turns = (ShownTurn(text="one"), ShownTurn(text="two"))
    first, second = plain_answer(0.25, "one", principle_set(form)), plain_answer(0.75, "two", principle_set(form))

    assert pair_scores(pair_answer(first, second, principle_set(form)), turns, principle_set(form)) == (0.25, 0.75)
    with pytest.raises(InvalidAnswerError):
        pair_scores(first, turns, principle_set(form))
