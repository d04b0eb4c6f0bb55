"""`verl-pivot qa-rows`: rows that verl's own reward scores, and exact counts of what was left out."""

import json
from pathlib import Path

import pyarrow.parquet
import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner
from verl.utils.reward_score import default_compute_score

from tests.support.factories import make_turn
from verl_pivot.cli import app
from verl_pivot.data.json_values import BadRowError
from verl_pivot.exports.qa_rows import Normalisation, comparable_answers, write_qa_rows
from verl_pivot.types import Json, JsonObject, Message, Role
from verl_pivot.verifiers.registry import get_verifier

HOTPOT: list[Json] = [
    {"_id": "5a", "question": "Same nationality?", "answer": "yes", "level": "hard", "supporting_facts": []},
    {"_id": "5b", "question": "Which city?", "level": "hard", "supporting_facts": []},
    {"_id": "5c", "question": "Who sang Halo?", "answer": "Beyonc\u00e9", "level": "hard", "supporting_facts": []},
]
NQ = [
    '{"question": "who sang halo", "answer": ["Beyonc\\u00e9", "Beyonce Knowles"]}',
    '{"question": "when was it", "answer": ["?!", "14 December 1972"]}',
    '{"question": "marks only", "answer": ["?!", "--"]}',
    '{"question": "WHEN was it?", "answer": ["1973"]}',
    "broken",
    "[1]",
]
TRIVIA: JsonObject = {
    "Data": [{"Question": "Which musical?", "QuestionId": "tc_33", "Answer": {"Value": "Sunset Blvd"}}, 7],
    "Domain": "Web",
}


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["qa-rows", *map(str, words)], env={"COLUMNS": "200"})


def files(folder: Path) -> list[Path]:
    hotpot, nq, trivia = folder / "hotpot.json", folder / "nq.jsonl", folder / "trivia.json"
    hotpot.write_text(json.dumps(HOTPOT))
    nq.write_text("\n".join(NQ))
    trivia.write_text(json.dumps(TRIVIA))
    return [hotpot, nq, trivia]


def rows(path: Path) -> list[JsonObject]:
    found: list[JsonObject] = pyarrow.parquet.read_table(path).to_pylist()
    return found


def questions(folder: Path, number: int) -> Path:
    path = folder / "own.jsonl"
    path.write_text("".join(f'{{"question": "number {index}?", "answers": ["{index}"]}}\n' for index in range(number)))
    return path


def test_every_row_that_is_read_is_written_or_has_its_reason(tmp_path: Path) -> None:
    counts = write_qa_rows(files(tmp_path), tmp_path / "qa.parquet", normalisation="l0", on_rows=lambda _: None)

    assert counts.num_read == 11
    assert counts.refused == {"no_answer": 1, "lost_letters": 1, "nothing_left": 1, "not_json": 1, "not_an_object": 2}
    assert counts.first_refused["nothing_left"].endswith("nq.jsonl, line 3: normalisation l0 leaves nothing of '?!'")
    assert (counts.num_duplicates, counts.num_beyond_limit, counts.num_answers_left_out) == (1, 0, 2)
    assert counts.written == {"searchR1_hotpotqa": 1, "searchR1_nq": 2, "searchR1_triviaqa": 1}


def test_rows_are_verls_own_with_the_answers_where_its_exact_match_reads_them(tmp_path: Path) -> None:
    result = run(*files(tmp_path), "--out", tmp_path / "qa.parquet", "--instructions", "Write <answer>.")

    assert result.exit_code == 0, result.stderr
    first, halo, when, musical = rows(tmp_path / "qa.parquet")
    assert first == {
        "data_source": "searchR1_hotpotqa",
        "prompt": [{"role": "user", "content": "Same nationality?\nWrite <answer>."}],
        "ability": "qa",
        "reward_model": {"style": "rule", "ground_truth": {"target": ["yes"]}},
        "extra_info": {"index": 0, "id": "5a", "question": "Same nationality?"},
    }
    targets = [each["reward_model"]["ground_truth"]["target"] for each in (halo, when, musical)]  # type: ignore[index, call-overload]
    assert targets == [["Beyonce Knowles"], ["14 December 1972"], ["Sunset Blvd"]]
    assert "+method=tool_rollout \\" in result.stdout


def test_the_command_shows_the_counts_and_the_launch(tmp_path: Path) -> None:
    result = run(*files(tmp_path), "--out", tmp_path / "q a.parquet")

    assert "Wrote" in result.stdout
    assert "q a.parquet: 4 rows." in result.stdout
    assert "2 accepted answers were left out" in result.stdout
    assert "nq.jsonl, line 5: the row: not JSON" in result.stdout
    assert "+method=tool_rollout +tool_format=search_r1" in result.stdout


DATASETS = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle", "my_own")


def test_verl_scores_the_rows_of_every_data_set_by_its_exact_match(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(
        "".join(
            json.dumps({"question": f"q {name}", "golden_answers": ["Rome", "Roma"], "data_source": name}) + "\n"
            for name in DATASETS
        )
    )
    assert run(path, "--out", tmp_path / "qa.parquet").exit_code == 0

    for row in rows(tmp_path / "qa.parquet"):
        truth = row["reward_model"]["ground_truth"]  # type: ignore[index, call-overload]
        scores = [
            default_compute_score(row["data_source"], f"<answer>{said}</answer>", truth) for said in ("roma", "Oslo")
        ]
        assert scores == [1.0, 0.0], row


def test_a_limit_draws_the_same_questions_for_the_same_seed_and_keeps_their_order(tmp_path: Path) -> None:
    own, drawn = questions(tmp_path, 50), []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        assert run(own, "--out", tmp_path / f"{name}.parquet", "--limit", 10, "--seed", seed).exit_code == 0
        drawn.append([int(row["prompt"][0]["content"][7:-1]) for row in rows(tmp_path / f"{name}.parquet")])  # type: ignore[index, call-overload]

    assert drawn[0] == drawn[1] == sorted(drawn[0]) != drawn[2]
    assert len(set(drawn[0])) == 10


def test_a_limit_above_the_number_of_questions_keeps_all(tmp_path: Path) -> None:
    counts = write_qa_rows(
        [questions(tmp_path, 5)], tmp_path / "qa.parquet", normalisation="l0", limit=6, on_rows=lambda _: None
    )

    assert (counts.num_beyond_limit, counts.written) == (0, {"searchR1_nq": 5})


def test_a_parquet_of_rows_is_read_again_as_it_was_written(tmp_path: Path) -> None:
    once, twice = tmp_path / "once.parquet", tmp_path / "twice.parquet"
    assert run(*files(tmp_path), "--out", once).exit_code == 0
    table = pyarrow.Table.from_pylist([{**row, "question": row["extra_info"]["question"]} for row in rows(once)])  # type: ignore[index, call-overload]
    pyarrow.parquet.write_table(table, tmp_path / "named.parquet")

    assert run(tmp_path / "named.parquet", "--out", twice).exit_code == 0
    assert [row["reward_model"] for row in rows(twice)] == [row["reward_model"] for row in rows(once)]
    assert [row["data_source"] for row in rows(twice)] == [row["data_source"] for row in rows(once)]


def test_files_without_any_question_give_no_file_and_say_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "q"}\n{"answer": "a"}\n')

    result = run(path, "--out", tmp_path / "qa.parquet")

    assert result.exit_code == 1
    assert "none of 2 rows holds a question with an answer; the first: " in result.stderr
    assert "q.jsonl, line 1: none of the columns golden_answers, answers" in result.stderr
    assert not (tmp_path / "qa.parquet").exists()


@pytest.mark.parametrize("name", ["qa.jsonl", "own.jsonl"])
def test_a_name_that_is_no_parquet_is_refused(tmp_path: Path, name: str) -> None:
    own = questions(tmp_path, 1)

    assert "its name must end in .parquet" in run(own, "--out", tmp_path / name).stderr
    assert own.exists()


@pytest.mark.parametrize("normalisation", ["l0", "search_r1"])
@given(answers=st.lists(st.text(max_size=12), min_size=1, max_size=4))
async def test_the_verifier_accepts_each_answer_that_is_kept(normalisation: Normalisation, answers: list[str]) -> None:
    try:
        kept = comparable_answers(answers, normalisation)
    except BadRowError:
        return

    options: JsonObject = {"answers": list(kept), "normalisation": normalisation, "place": "all"}
    verifier = get_verifier("qa", options)
    for answer in kept:
        verdict = await verifier(Message(role=Role.ASSISTANT, content=answer), make_turn())
        assert verdict.score == 1.0, (answer, verdict)


def test_an_answer_that_only_the_other_normalisation_can_compare_is_kept_there() -> None:
    assert comparable_answers(["Beyonc\u00e9"], "search_r1") == ("Beyonc\u00e9",)
    with pytest.raises(BadRowError, match="normalisation l0 loses a letter of 'Beyonc\u00e9'"):
        comparable_answers(["Beyonc\u00e9"], "l0")
