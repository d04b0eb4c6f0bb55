"""formats.nemo_gym: rows of the terminal environments get the verifier that reads batches of keystrokes."""

import json

import pytest

from tests.support.paths import SHARED_DATA
from verl_pivot.data.files import Place, RawRow
from verl_pivot.formats.row_import import ImportOptions, parse_row
from verl_pivot.types import Json, JsonObject

PUBLISHED = SHARED_DATA / "nemo_gym" / "terminus_judge.example.jsonl"
TERMINUS_2 = {"analysis": "a", "plan": "p", "commands": [{"keystrokes": "ls\n", "duration": 0.1}]}
TERMINUS_1 = {
    "state_analysis": "s",
    "explanation": "e",
    "commands": [{"keystrokes": "ls\n", "is_blocking": True, "timeout_sec": 1.0}],
    "is_task_complete": False,
}


def verifier_of(row: JsonObject, options: ImportOptions | None = None) -> tuple[str, JsonObject]:
    raw = RawRow(place=Place(file="rows.jsonl", unit="line", number=1), raw=json.dumps(row).encode())
    trajectory = parse_row(raw, options or ImportOptions()).trajectory
    return trajectory.verifier, trajectory.verifier_options


def make_row(answer: Json, **columns: Json) -> JsonObject:
    return {"responses_create_params": {"input": "$ "}, "expected_answer": answer, **columns}


@pytest.mark.parametrize("batch", [TERMINUS_1, TERMINUS_2])
def test_a_batch_of_keystrokes_gets_the_verifier_terminus(batch: Json) -> None:
    assert verifier_of(make_row(json.dumps(batch))) == ("terminus", {})


@pytest.mark.parametrize(
    "answer", ["Ann", "{broken", "[1]", '{"commands": []}', '{"analysis": "a"}', '{"plan": "p", "commands": "ls"}']
)
def test_any_other_answer_gets_the_verifier_of_the_import(answer: str) -> None:
    assert verifier_of(make_row(answer)) == ("tool_call", {})


def test_a_verifier_that_row_or_import_names_comes_first() -> None:
    row = make_row(json.dumps(TERMINUS_2))
    similarity: JsonObject = {"mode": "similarity"}

    assert verifier_of({**row, "verifier": "judge"}) == ("judge", {})
    assert verifier_of(row, ImportOptions(verifier="qa")) == ("qa", {})
    assert verifier_of(row, ImportOptions(verifier_options={"mode": "strict"})) == ("tool_call", {"mode": "strict"})
    assert verifier_of(row, ImportOptions(verifier="terminus", verifier_options=similarity)) == ("terminus", similarity)


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="NeMo Gym's rows are not at ../shared/data/nemo_gym")
def test_the_published_rows_get_it() -> None:
    rows = [json.loads(line) for line in PUBLISHED.read_text().splitlines()]

    assert {verifier_of(row)[0] for row in rows} == {"terminus"}
