"""Questions of published data sets, in the columns that their files have."""

import pytest

from verl_pivot.data.json_values import BadRowError
from verl_pivot.formats.questions import Question, read_question
from verl_pivot.types import JsonObject


@pytest.mark.parametrize(
    ("row", "question"),
    [
        (
            {"_id": "5a", "question": "Same?", "answer": "yes", "level": "hard", "supporting_facts": [["A", 0]]},
            Question(id="5a", text="Same?", answers=("yes",), dataset="hotpotqa"),
        ),
        (
            {"question": "when did it open", "answer": ["1883", "May 24 , 1883", "1883"]},
            Question(id="", text="when did it open", answers=("1883", "May 24 , 1883"), dataset="nq"),
        ),
        (
            {
                "Question": "Which musical?",
                "QuestionId": "tc_33",
                "Answer": {"Value": "Sunset Blvd", "Aliases": ["Sunset Boulevard"], "NormalizedValue": "sunset blvd"},
            },
            Question(
                id="tc_33", text="Which musical?", answers=("Sunset Blvd", "Sunset Boulevard"), dataset="triviaqa"
            ),
        ),
        (
            {"question_id": "tc_2", "question": "Who?", "answer": {"value": "Lewis", "aliases": ["(Harry) Lewis"]}},
            Question(id="tc_2", text="Who?", answers=("Lewis", "(Harry) Lewis"), dataset="triviaqa"),
        ),
        (
            {
                "id": "2hop__1",
                "question": "When?",
                "answer": "1492",
                "answer_aliases": ["in 1492"],
                "answerable": True,
                "question_decomposition": [],
            },
            Question(id="2hop__1", text="When?", answers=("1492", "in 1492"), dataset="musique"),
        ),
        (
            {"_id": "8", "question": "Who?", "answer": "Ana", "supporting_facts": [], "evidences": [["a", "b", "c"]]},
            Question(id="8", text="Who?", answers=("Ana",), dataset="2wikimultihopqa"),
        ),
        (
            {"id": 4, "question": "What is his job?", "possible_answers": '["politician", "pol"]', "obj": "x"},
            Question(id="4", text="What is his job?", answers=("politician", "pol"), dataset="popqa"),
        ),
        (
            {"Question": "Who?", "Answer": "Ada"},
            Question(id="", text="Who?", answers=("Ada",), dataset="bamboogle"),
        ),
        (
            {"id": "train_0", "question": "total episodes?", "golden_answers": ["23"], "data_source": "nq"},
            Question(id="train_0", text="total episodes?", answers=("23",), dataset="nq"),
        ),
        (
            {
                "question": "who?",
                "data_source": "searchR1_popqa",
                "reward_model": {"style": "rule", "ground_truth": {"target": ["Ada"]}},
            },
            Question(id="", text="who?", answers=("Ada",), dataset="popqa"),
        ),
        (
            {"question": "Which year?", "answers": {"text": ["1883"], "answer_start": [3]}},
            Question(id="", text="Which year?", answers=("1883",), dataset="nq"),
        ),
        ({"question": "How many?", "answer": 12}, Question(id="", text="How many?", answers=("12",), dataset="nq")),
    ],
    ids=lambda value: value.dataset if isinstance(value, Question) else "",
)
def test_the_columns_of_a_data_set_are_read(row: JsonObject, question: Question) -> None:
    assert read_question(row) == question


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"answer": "a"}, "no_question"),
        ({"question": " ?! ", "answer": "a"}, "no_question"),
        ({"question": ["q"], "answer": "a"}, "no_question"),
        ({"question": "q"}, "no_answer"),
        ({"question": "q", "answer": []}, "no_answer"),
        ({"question": "q", "answer": ["", "  ", None]}, "no_answer"),
        ({"question": "q", "answer": {"Type": "Numerical"}}, "no_answer"),
        ({"question": "q", "answer": "a", "answerable": False}, "unanswerable"),
        ({"question": "q", "answer": True}, "bad_answer"),
        ({"question": "q", "answer": [["a"], False]}, "bad_answer"),
        ({"question": "q", "possible_answers": "['a']"}, "bad_answer"),
        ({"question": "q", "answer": "\ud800"}, "not_json"),
    ],
)
def test_a_row_without_a_question_or_an_answer_has_its_reason(row: JsonObject, reason: str) -> None:
    with pytest.raises(BadRowError) as caught:
        read_question(row)

    assert caught.value.reason == reason


def test_questions_are_the_same_whatever_their_case_and_marks() -> None:
    first, second = (
        read_question({"question": text, "answer": "a"}) for text in ("Who sang  Halo?", "who sang “halo”")
    )

    assert first.key == second.key == "who sang halo"
