"""How the example ppr teaches its judges: which questions they learn from, and in which words."""

import re
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from transformers import Qwen2Tokenizer

from examples.ppr.judge_policy import add_phrases, distinct_rows, draw_turns, read_dialogues
from examples.quickstart.policy import build_tokenizer
from verl_pivot.rewards.principles import Principle, PrincipleSet, ShownTurn, turn_question

PRINCIPLES = PrincipleSet(form="principles", principles=(Principle(name="query", text="It asks for the next name."),))
ANSWER = '{"principles": [{"name": "query", "quotation": "search Bo", "score": 1, "maximum": 1}]}'


def dialogue(text: str) -> list[dict[str, Any]]:
    """A labelled turn, as `process label` writes it."""
    turn = ShownTurn(text=text, observation="Bo lives in Ulm.")
    question = turn_question("Where does Bo live?", [], turn, PRINCIPLES, lambda texts, order: list(texts))
    return [*question.recorded_messages, {"role": "assistant", "content": ANSWER}]


def labelled(path: Path, *texts: str) -> Path:
    table = pyarrow.table({"messages": [dialogue(each) for each in texts], "text": [*texts]})
    pyarrow.parquet.write_table(table, path)
    return path


def words(messages: list[Any]) -> set[str]:
    """Words of the fences of a dialogue."""
    return {word for each in messages for word in re.findall(r"\b[0-9a-f]{16}\b", each.content)}


def test_a_turn_that_many_rollouts_took_is_taught_once(tmp_path: Path) -> None:
    turns = labelled(tmp_path / "turns.parquet", "search Bo", "search Al", "search Bo", "search Bo")
    shown = [each.messages[1].content or "" for each in read_dialogues(turns, 0)]
    assert ["search Bo" in each for each in shown] == [True, False]


def test_each_question_has_one_random_word_of_its_fences_which_the_seed_decides(tmp_path: Path) -> None:
    turns = labelled(tmp_path / "turns.parquet", "search Bo", "search Al")
    first, again, other = (read_dialogues(turns, seed) for seed in (0, 0, 1))
    recorded = {word for text in ("search Bo", "search Al") for word in re.findall("[0-9a-f]{16}", str(dialogue(text)))}
    found = [words(list(each.messages)) for each in (*first, *other)]
    assert [len(each) for each in found] == [1, 1, 1, 1]
    assert len(set.union(*found) | recorded) == 6
    assert first == again


def test_words_of_fences_are_no_phrases_and_cost_eight_tokens(tmp_path: Path) -> None:
    dialogues = read_dialogues(labelled(tmp_path / "turns.parquet", *(f"search {n}" for n in range(60))), 0)
    before = build_tokenizer()
    tokenizer: Qwen2Tokenizer = build_tokenizer()
    add_phrases(tokenizer, dialogues)
    added = set(tokenizer.get_added_vocab()) - set(before.get_added_vocab())
    broken = [each for each in added if re.fullmatch("[0-9a-f]{3,}", each)]
    assert broken == []
    for each in dialogues:
        (word,) = words(list(each.messages))
        assert len(tokenizer.encode(word, add_special_tokens=False)) == 8


def test_turns_for_rl_are_distinct_and_drawn_by_the_seed(tmp_path: Path) -> None:
    turns = labelled(tmp_path / "turns.parquet", *(f"search {n % 10}" for n in range(30)))

    def drawn(most: int, seed: int) -> list[str]:
        draw_turns(turns, tmp_path / "drawn.parquet", most, seed)
        texts: list[str] = pyarrow.parquet.read_table(tmp_path / "drawn.parquet")["text"].to_pylist()
        return texts

    assert drawn(100, 0) == [f"search {n}" for n in range(10)]
    assert len(set(drawn(4, 0))) == 4
    assert drawn(4, 0) == drawn(4, 0) != drawn(4, 1)


def test_rows_are_distinct_by_all_their_messages() -> None:
    question, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    assert distinct_rows([[question], [question, answer], [question], [question, answer]]) == [0, 1]
