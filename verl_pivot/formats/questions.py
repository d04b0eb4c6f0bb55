"""Row of a question-answering data set -> Question: its text, the accepted answers, and the name of its data set."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from verl_pivot.data.json_values import BadRowError, as_object, decode_json, encode_json, type_in_words
from verl_pivot.types import Json, JsonObject

_QUESTION_COLUMNS = ("question", "Question")
_ID_COLUMNS = ("id", "_id", "question_id", "QuestionId")
_ANSWER_COLUMNS = ("golden_answers", "answers", "possible_answers", "answer", "Answer", "answer_aliases")
_ANSWER_KEYS = ("value", "Value", "text", "aliases", "Aliases")
"""Keys of answers that are objects, as in TriviaQA; `text` is SQuAD's."""
_TELLING_COLUMNS = {
    "evidences": "2wikimultihopqa",
    "supporting_facts": "hotpotqa",
    "question_decomposition": "musique",
    "possible_answers": "popqa",
}
"""{column: data set that has it}; 2WikiMultihopQA comes first, since it has HotpotQA's columns too."""
_NOT_LETTERS = re.compile(r"[\W_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question and the answers that are accepted.

    Example:
        Question(id="5a7a0693", text="Were Scott Derrickson and Ed Wood of the same nationality?",
                 answers=("yes",), dataset="hotpotqa")
    """

    id: str
    """Id of the question in its data set; empty if it has none."""
    text: str
    answers: tuple[str, ...]
    """[num_answers] different accepted answers, at least one."""
    dataset: str
    """Name of the data set as Search-R1 writes it, such as "hotpotqa"; "nq" if the columns do not show another one."""

    @property
    def key(self) -> str:
        """The question in lower case without punctuation; questions with equal keys are the same."""
        return question_key(self.text)


def question_key(text: str) -> str:
    """A question in lower case, with one space in place of the punctuation and spaces between two words."""
    return _NOT_LETTERS.sub(" ", text.casefold()).strip()


def read_question(row: JsonObject) -> Question:
    """The question of a row as HotpotQA, NQ, TriviaQA, MuSiQue, 2WikiMultihopQA, PopQA, Bamboogle or Search-R1 has it.

    Raises:
        BadRowError: If there is no question or no answer, or the row says that it is not answerable.
    """
    text = next((each for name in _QUESTION_COLUMNS if isinstance(each := row.get(name), str)), "").strip()
    if not question_key(text):
        raise BadRowError("no_question", 'a row needs a text "question" with at least one letter or digit')
    if row.get("answerable") is False:
        raise BadRowError("unanswerable", 'the row says "answerable": false')
    found = [each for name in _ANSWER_COLUMNS for each in _answers(row.get(name), name)] or list(_target(row))
    answers = tuple(dict.fromkeys(each.strip() for each in found if each.strip()))
    if not answers:
        raise BadRowError("no_answer", f"none of the columns {', '.join(_ANSWER_COLUMNS)} holds an answer")
    encode_json([text, *answers])  # raises if a file cannot hold one of the texts
    name = next((str(row[name]) for name in _ID_COLUMNS if isinstance(row.get(name), str | int)), "")
    return Question(id=name, text=text, answers=answers, dataset=_dataset(row))


def _answers(value: Json, column: str) -> Iterator[str]:
    """Every answer in a column, which holds a text, a number, a list, an object, or JSON of a list."""
    if column == "possible_answers" and isinstance(value, str):
        value = decode_json(value, reason="bad_answer", what=column)
    if isinstance(value, str):
        yield value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield encode_json(value)
    elif isinstance(value, list | dict):
        for each in value if isinstance(value, list) else [value.get(key) for key in _ANSWER_KEYS]:
            yield from _answers(each, "an answer")
    elif value is not None:
        kind = type_in_words(value)
        raise BadRowError("bad_answer", f"{column} must be a text, a number, a list or an object, got {kind}")


def _target(row: JsonObject) -> Iterator[str]:
    """Answers of a row that was made for verl's exact match."""
    if isinstance(row.get("reward_model"), dict):
        truth = as_object(row["reward_model"], "reward_model").get("ground_truth")
        yield from _answers(truth.get("target") if isinstance(truth, dict) else truth, "reward_model.ground_truth")


def _dataset(row: JsonObject) -> str:
    if isinstance(named := row.get("data_source"), str) and named:
        return named.removeprefix("searchR1_")
    if isinstance(row.get("answer"), dict) or isinstance(row.get("Answer"), dict):
        return "triviaqa"
    if "Question" in row:
        return "bamboogle"
    return next((dataset for column, dataset in _TELLING_COLUMNS.items() if column in row), "nq")
