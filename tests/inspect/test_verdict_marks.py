"""inspect.verdict_marks: a verdict that a user calls wrong becomes a line of a test set, and nothing else changes."""

import json
from pathlib import Path

import pytest

from tests.support.dumped_runs import make_line, read_index, write_run
from verl_pivot.data.rollout_dumps import read_rollouts
from verl_pivot.errors import DataError
from verl_pivot.inspect.queries import RolloutPlace, RunIndex
from verl_pivot.inspect.texts import read_lines
from verl_pivot.inspect.verdict_marks import FILE_NAME, MarkedVerdict, read_marks, toggle_mark

PROMPT = [{"role": "user", "content": "2 + 3?"}]
DUMP = "rollouts/pivot/1.jsonl"


def toggle(index: RunIndex, line: int) -> bool:
    found = index.find(RolloutPlace(0, DUMP, line))
    return toggle_mark(index.runs[0].folder / FILE_NAME, found, read_lines(index.row_place(found)), PROMPT)


@pytest.fixture
def index(tmp_path: Path) -> RunIndex:
    scores = (1.0, 0.0, None)
    lines = [make_line(f"a_{at}_0", score, trajectory_id="shop-17", turn_index=3) for at, score in enumerate(scores)]
    return read_index(write_run(tmp_path, {1: lines}))


def test_a_marked_verdict_is_a_line_of_a_dump_with_the_other_score(index: RunIndex, tmp_path: Path) -> None:
    before = (tmp_path / DUMP).read_bytes()

    assert (toggle(index, 1), toggle(index, 2)) == (True, True)

    right, wrong = read_rollouts(tmp_path / FILE_NAME)
    assert (right.uid, right.score, right.reason, right.verifier) == ("a_0_0", 0.0, "marked_as_wrong", "math")
    assert (wrong.uid, wrong.score, wrong.detail) == ("a_1_0", 1.0, "the verifier gave 0 (wrong_value): ")
    assert (right.trajectory_id, right.turn_index, right.turns[0].text) == ("shop-17", 3, "It is 5.")
    assert right.prompt == tuple(PROMPT)
    assert (tmp_path / DUMP).read_bytes() == before


def test_a_second_press_takes_the_mark_away_and_the_last_one_the_file(index: RunIndex, tmp_path: Path) -> None:
    toggle(index, 1)
    toggle(index, 2)

    assert toggle(index, 1) is False
    assert read_marks(tmp_path / FILE_NAME) == [MarkedVerdict(file=DUMP, uid="a_1_0", score=1.0)]
    toggle(index, 2)
    assert not (tmp_path / FILE_NAME).exists()
    assert read_marks(tmp_path / FILE_NAME) == []


def test_a_rollout_of_many_parts_is_marked_by_its_line_with_the_record_and_the_mark_goes_again(tmp_path: Path) -> None:
    """Earlier versions wrote part 10 before part 2, so that the last line of the dump was part 9."""
    parts = [make_line(f"a_0_{part}", 0.0, [f"turn {part}"]) for part in range(11)]
    fields = [json.loads(line) for line in parts]
    for each in fields[:-1]:
        del each["stop_reason"]
    index = read_index(write_run(tmp_path, {1: sorted(json.dumps(each).encode() + b"\n" for each in fields)}))

    assert toggle(index, 1) is True
    (marked,) = read_rollouts(tmp_path / FILE_NAME)
    assert (marked.uid, marked.score, marked.record is not None) == ("a_0_10", 1.0, True)
    assert [turn.text for turn in marked.turns] == [f"turn {part}" for part in range(11)]
    assert (toggle(index, 1), read_marks(tmp_path / FILE_NAME)) == (False, [])


def test_an_undecided_rollout_has_no_verdict_that_could_be_wrong(index: RunIndex, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="this rollout is undecided: only a verdict with a score can be marked"):
        toggle(index, 3)
    assert not (tmp_path / FILE_NAME).exists()


def test_lines_that_are_no_marks_stay(index: RunIndex, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('a note\n[1]\n{"uid": 5}\n')

    toggle(index, 1)
    toggle(index, 1)

    assert (tmp_path / FILE_NAME).read_text() == 'a note\n[1]\n{"uid": 5}\n'


def test_a_folder_that_nobody_may_write_to_is_told(index: RunIndex, tmp_path: Path) -> None:
    (tmp_path / f"{FILE_NAME}.unfinished").mkdir()

    with pytest.raises(DataError, match=r"marked_verdicts.jsonl cannot be written: Is a directory; marks are saved"):
        toggle(index, 1)


def test_verls_own_dump_has_no_verdict_to_mark(tmp_path: Path) -> None:
    dumps = tmp_path / "rollouts"
    dumps.mkdir()
    (dumps / "1.jsonl").write_text(json.dumps({"uid": "a_0_0", "input": "?", "output": "5", "score": 1.0, "step": 1}))
    index = read_index(tmp_path)
    found = index.find(RolloutPlace(0, "rollouts/1.jsonl", 1))

    with pytest.raises(DataError, match=r"rollouts/1.jsonl holds no verdicts of verl-pivot"):
        toggle_mark(tmp_path / FILE_NAME, found, read_lines(index.row_place(found)), [])
