"""inspect.queries: dumps of all kinds -> rollouts by filter and order; a sentence names what cannot be read."""

import json
import math
import os
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.dumped_runs import make_line, read_index, write_run
from verl_pivot.data.rollout_records import CallRecord, CallStatus, StopReason
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.inspect.filters import RolloutFilter, RolloutOrder
from verl_pivot.inspect.opened import open_rollout
from verl_pivot.inspect.queries import RolloutPlace, RunIndex
from verl_pivot.inspect.rollout_table import LIMITS
from verl_pivot.inspect.texts import RowPlace, rows_with_words
from verl_pivot.types import ErrorKind


def uids(index: RunIndex, order: RolloutOrder | None = None, **wanted: object) -> list[str | None]:
    found = index.ordered(RolloutFilter(**wanted), order or RolloutOrder())  # type: ignore[arg-type]
    ids = numpy.frombuffer(found.ids, dtype=numpy.uint32).tolist()
    by_id = {each.id: each.row.uid for each in index.rows(ids)}
    return [by_id[each] for each in ids]


def call(error: ErrorKind | None = None) -> CallRecord:
    status = CallStatus.OK if error is None else CallStatus.TOOL_ERROR
    return CallRecord(turn=0, name="add", arguments={"a": 2}, status=status, error_kind=error)


@pytest.fixture
def index(tmp_path: Path) -> RunIndex:
    """Index of two steps: step 1 has three rollouts in two groups, step 2 an undecided one that the update left out."""
    lines = [
        make_line("a_0_0", 1.0, ["Five.", "It is 5."], calls=(call(), call(ErrorKind.REFUSED)), turn_tokens=(7, 9)),
        make_line("a_1_0", 0.0, ["Seven."], prompt_id="p"),
        make_line("b_0_0", 0.5, ["Eleven."], trajectory_id="shop", turn_index=3),
    ]
    undecided = make_line(
        "c_0_0", None, ["?"], step=2, is_kept=False, left_out="undecided", stop_reason=StopReason.MAX_TURNS
    )
    return read_index(write_run(tmp_path, {1: lines, 2: [undecided]}))


def test_each_rollout_is_listed_with_its_values(index: RunIndex) -> None:
    first, *_, last = index.rows(range(4))

    assert (first.row.step, first.row.score, first.row.num_turns, first.row.sampled_tokens) == (1, 1.0, 2, 16)
    assert (first.row.tools, first.row.error_kinds, first.row.num_calls, first.row.num_errors) == (
        "add",
        "refused",
        2,
        1,
    )
    assert (first.file_name, first.row.line, first.row.group_name) == ("rollouts/pivot/1.jsonl", 1, "a")
    assert (last.row.score, last.row.kept, last.row.left_out, last.row.stop_reason) == (
        None,
        False,
        "undecided",
        "max_turns",
    )


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, ["a_0_0", "a_1_0", "b_0_0", "c_0_0"]),
        ({"step": 2}, ["c_0_0"]),
        ({"condition": "score IS NULL"}, ["c_0_0"]),
        ({"is_kept": True}, ["a_0_0", "a_1_0", "b_0_0"]),
        ({"score_from": 0.5}, ["a_0_0", "b_0_0"]),
        ({"score_to": 0.0}, ["a_1_0"]),
        ({"reason": "wrong_value", "group_name": "a"}, ["a_1_0"]),
        ({"condition": "sampled_tokens >= 6"}, ["a_0_0"]),
        ({"trajectory_id": "shop", "turn_index": 3}, ["b_0_0"]),
        ({"words": "SEVEN"}, ["a_1_0"]),
        ({"words": "5."}, ["a_0_0"]),
        ({"words": "It is", "step": 2}, []),
        ({"words": "even", "score_from": 0.5}, ["b_0_0"]),
        ({"words": "It is", "score_to": 0.0}, []),
        ({"condition": "num_turns > 1 OR left_out = 'undecided' -- mine"}, ["a_0_0", "c_0_0"]),
        ({"condition": "score < 1 OR TRUE", "step": 2}, ["c_0_0"]),
    ],
)
def test_filters_leave_what_they_name(index: RunIndex, wanted: dict[str, object], expected: list[str]) -> None:
    assert uids(index, **wanted) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ({"stop_reason": "answer"}, "no rollout has stop_reason=answer; known: answered, ended_by_tool, "),
        ({"error_kinds": "refused,bad_call"}, "no rollout has error_kinds=bad_call; known: execution_error, "),
        ({"left_out": "lonely"}, "no rollout has left_out=lonely; known: group_equal_rewards, "),
        ({"reason": "wrong_valu"}, "no rollout has reason=wrong_valu; known: accepted, "),
        ({"part": "test"}, "no rollout has part=test; known: training, validation"),
        ({"run": 1}, "there is no run 1; known: 0"),
    ],
)
def test_a_value_that_no_rollout_can_have_is_refused_with_the_known_ones(
    index: RunIndex, wanted: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        uids(index, **wanted)  # type: ignore[arg-type]

    assert str(caught.value).startswith(f"the filter cannot be used: {sentence}")


def test_a_value_of_the_users_own_verifier_or_of_this_version_is_none_that_is_refused(tmp_path: Path) -> None:
    index = read_index(write_run(tmp_path, {1: [make_line("a_0_0", 0.0, reason="too_late"), make_line("b_0_0")]}))

    assert uids(index, reason="too_late") == ["a_0_0"]
    assert uids(index, reason="truncated", stop_reason="max_turns") == []
    assert uids(index, error_kinds="") == ["a_0_0", "b_0_0"]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (RolloutOrder(sort="score"), ["a_1_0", "b_0_0", "a_0_0", "c_0_0"]),
        (RolloutOrder(sort="score", is_descending=True), ["a_0_0", "b_0_0", "a_1_0", "c_0_0"]),
        (RolloutOrder(sort="sampled_tokens", is_descending=True), ["a_0_0", "a_1_0", "b_0_0", "c_0_0"]),
    ],
)
def test_empty_cells_come_last_in_either_order(index: RunIndex, order: RolloutOrder, expected: list[str]) -> None:
    assert uids(index, order) == expected


def test_the_list_says_its_mean_and_its_groups(index: RunIndex) -> None:
    found = index.ordered(RolloutFilter(), RolloutOrder())

    groups = numpy.frombuffer(found.groups, dtype=numpy.uint32).tolist()
    assert (found.mean_score, found.num_kept) == (0.5, 3)
    assert [groups[0] == groups[1], groups[1] == groups[2], groups[2] == groups[3]] == [True, False, False]
    assert [each.row.uid for each in index.group(groups[0])] == ["a_0_0", "a_1_0"]


@pytest.mark.parametrize(
    ("condition", "sentence"),
    [
        ("1); DROP TABLE rollouts; --", "the condition is"),
        ("TRUE\n); DELETE FROM rollouts WHERE (TRUE", "the condition must be a single expression"),
        ("SELECT", "the condition is not valid SQL"),
        ("nothing > 1", "nothing"),
        ("EXISTS (SELECT * FROM read_text('/etc/passwd'))", "file system operations are disabled"),
        ("EXISTS (SELECT * FROM '/etc/passwd')", "the condition cannot be used"),
        ("EXISTS (SELECT * FROM sniff_csv('http://127.0.0.1:9/'))", "the condition cannot be used"),
        ("EXISTS (SELECT * FROM uids)", "the condition cannot be used"),
        ("current_setting('lock_configuration') = getenv('HOME')", "the condition cannot be used"),
    ],
)
def test_a_condition_neither_writes_nor_leaves_the_table(index: RunIndex, condition: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        uids(index, condition=condition)

    assert index.num_rollouts == 4


def test_a_condition_that_never_ends_is_ended(index: RunIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verl_pivot.inspect.rollout_table.MAX_SECONDS", 0.3)

    with pytest.raises(ConfigError, match=r"takes longer than 0\.3 s"):
        uids(index, condition="(SELECT count(*) FROM range(1000000000000)) > 0")
    assert len(uids(index)) == 4


def test_lines_of_one_rollout_are_one_row(tmp_path: Path) -> None:
    lines = [make_line("a_0_0", 1.0, ["One."]), make_line("a_0_1", 1.0, ["Two."], answer="x"), make_line("a_1_0", 0.0)]

    rows = read_index(write_run(tmp_path, {1: [without_record(lines[0]), *lines[1:]]})).rows(range(3))

    assert [(each.row.uid, each.row.line, each.row.num_turns) for each in rows] == [("a_0_1", 1, 2), ("a_1_0", 3, 1)]


def without_record(line: bytes) -> bytes:
    fields = json.loads(line)
    return json.dumps({name: fields[name] for name in ("uid", "step", "score", "kept", "turns")}).encode() + b"\n"


def lines_in_the_order_of_earlier_versions(number: int) -> list[bytes]:
    """The parts 0 to `number` of a rollout, sorted as text; the last part has the record, with a call of each turn."""
    calls = tuple(CallRecord(turn=turn, name=f"of_{turn}", arguments={}, status=CallStatus.OK) for turn in (2, number))
    parts = [without_record(make_line(f"a_0_{part}", 0.5, [f"turn {part}"])) for part in range(number)]
    return sorted([*parts, make_line(f"a_0_{number}", 1.0, [f"turn {number}"], calls=calls)])


def test_parts_that_an_earlier_version_sorted_as_text_are_shown_by_their_number(tmp_path: Path) -> None:
    index = read_index(write_run(tmp_path, {1: lines_in_the_order_of_earlier_versions(11)}))
    (found,) = index.rows([0])

    opened = open_rollout(index, found)

    assert (found.row.uid, found.row.score, found.row.line, found.row.num_turns) == ("a_0_11", 1.0, 1, 12)
    assert [turn.text for turn in opened.turns] == [f"turn {part}" for part in range(12)]
    assert {number: turn.calls[0]["name"] for number, turn in enumerate(opened.turns) if turn.calls} == {
        2: "of_2",
        11: "of_11",
    }
    assert (opened.fields["uid"], opened.fields["stop_reason"]) == ("a_0_11", "answered")


def test_a_line_that_only_python_can_decode_is_listed_like_any_other(tmp_path: Path) -> None:
    record = {
        "calls": (call(ErrorKind.REFUSED),),
        "tool_seconds": 0.5,
        "failure": "f" * 300,
        "detail": "why",
        "trajectory_id": "shop-1",
    }
    line = json.loads(make_line("a_0_0", 0.5, ["One.", "Two."], turn_index=3, **record))
    line["prompt_tokens"] = 1 << 62
    runs = [
        write_run(tmp_path / name, {1: [json.dumps({**line, "other": other}).encode() + b"\n"]})
        for name, other in (("usual", 0.0), ("slow", math.nan))
    ]

    usual, slow = (read_index(run).rows([0])[0].row._asdict() for run in runs)

    assert usual == slow
    assert (usual["num_turns"], usual["tools"], usual["error_kinds"], usual["num_errors"]) == (2, "add", "refused", 1)
    assert (usual["sampled_tokens"], usual["prompt_tokens"], len(usual["failure"])) == (10, None, 200)


def test_rollouts_beyond_the_memory_are_told_and_those_before_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LIMITS, "memory_limit", "8MB")
    folder = write_run(tmp_path, {1: [make_line("a_0_0", reason="r" * 5000)]})
    index = read_index(folder)
    rows = [make_line(f"{number}_0_0", detail=f"{number:0200}", step=2) for number in range(20_000)]

    write_run(folder, {2: rows, 3: [make_line("b_0_0", step=3)]})
    while index.refresh():
        pass

    assert index.problems == [
        "there are too many rollouts for 8MB of memory, so only the first 1 that were read are shown: give fewer runs, "
        "or a dump of one step"
    ]
    assert (uids(index), index.num_unread, len(index.rows([0])[0].row.reason or "")) == (["a_0_0"], 0, 200)


def test_a_training_that_goes_on_is_followed(tmp_path: Path) -> None:
    folder = write_run(tmp_path, {1: [make_line("a_0_0")]})
    index = read_index(folder)
    before = index.generation

    assert (index.refresh(), index.generation) == (False, before)
    write_run(folder, {2: [make_line("b_0_0", step=2)[:-9]]}, [{"step": 2, "reward": 0.5}])
    index.refresh()
    assert (uids(index), index.metrics[0].points("reward")) == (["a_0_0"], [(2, 0.5)])
    (folder / "rollouts" / "pivot" / "2.jsonl").write_bytes(make_line("b_0_0", step=2))
    index.refresh()
    assert (uids(index), index.steps(), index.problems) == (["a_0_0", "b_0_0"], [1, 2], [])


def test_a_step_that_was_sampled_anew_replaces_the_old_one(tmp_path: Path) -> None:
    folder = write_run(tmp_path, {1: [make_line("a_0_0"), make_line("a_1_0")]})
    index = read_index(folder)

    (folder / "new").write_bytes(make_line("z_0_0") + make_line("z_1_0"))
    os.replace(folder / "new", folder / "rollouts" / "pivot" / "1.jsonl")
    index.refresh()

    assert uids(index) == ["z_0_0", "z_1_0"]


def test_what_is_no_rollout_is_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    odd = [
        b"no JSON\n",
        b"[1]\n",
        b'{"uid": "nan_0_0", "score": NaN, "step": 1, "turns": "none", "reason": 7}\n',
        b'{"uid": "huge_0_0", "score": 1e999, "turn_index": 99999999999999999999999}\n',
        b'{"uid": "lone \\ud800_0_0", "score": 0.5, "calls": [{"name": "\\udfff"}]}\n',
        b'{"uid": "latin\xff_0_0"}\n',
        b"[" * 100_000 + b"\n",
        b"{}\n",
        make_line("good_0_0"),
    ]
    index = read_index(write_run(tmp_path, {7: odd}))

    assert uids(index) == ["nan_0_0", "huge_0_0", "lone \\ud800_0_0", None, "good_0_0"]
    assert [each.row.step for each in index.rows(range(9))] == [1, 7, 7, 7, 1]
    assert [each.row.tools for each in index.rows(range(9))] == ["", "", "\\udfff", "", ""]
    bad, strange = index.problems
    assert "1.jsonl" not in bad
    assert "7.jsonl: 4 lines are not rollouts and are left out; the first one is line 1 (" in bad
    assert "7.jsonl: 1 lines have neither a uid nor a score, and are listed with their other fields; check" in strange


def test_a_dump_that_cannot_be_read_is_said_once_and_tried_again_when_it_changes(tmp_path: Path) -> None:
    folder = write_run(tmp_path, {1: [make_line("a_0_0")]})
    (folder / "rollouts" / "pivot" / "2.jsonl").mkdir()

    index = read_index(folder)

    assert uids(index) == ["a_0_0"]
    assert index.problems == [
        f"{folder}/rollouts/pivot/2.jsonl cannot be read: Is a directory; everything else is shown, and reading is "
        "retried"
    ]


def test_a_dump_that_is_gone_is_said_and_is_read_once_it_comes_back(tmp_path: Path) -> None:
    folder = write_run(tmp_path, {1: [make_line("a_0_0")]})
    missing = tmp_path / "elsewhere.jsonl"
    (folder / "rollouts" / "pivot" / "2.jsonl").symlink_to(missing)

    index = read_index(folder)

    assert (uids(index), index.num_unread) == (["a_0_0"], 0)
    assert [each.partition(";")[0] for each in index.problems] == [
        f"{folder}/rollouts/pivot/2.jsonl cannot be read: No such file or directory"
    ]
    missing.write_bytes(make_line("b_0_0", step=2))
    index.refresh()
    assert (uids(index), index.problems) == (["a_0_0", "b_0_0"], [])


def test_a_dump_whose_bytes_are_of_another_encoding_has_no_rollouts(tmp_path: Path) -> None:
    text = (make_line("a_0_0") + make_line("a_1_0")).decode()
    index = read_index(write_run(tmp_path, {1: [text.encode("utf-16")], 2: [make_line("b_0_0")]}))

    assert uids(index) == ["b_0_0"]
    (problem,) = index.problems[:1]
    assert "1.jsonl: 2 lines are not rollouts and are left out; the first one is line 1 ('utf-8' codec" in problem


def test_dumps_of_another_version_are_listed_with_what_they_have_and_said(tmp_path: Path) -> None:
    folder = tmp_path / "rollouts"
    folder.mkdir()
    (folder / "1.jsonl").write_text(2 * '{"prompt": "2 + 3?", "response": "5", "reward": 1.0, "step": 4}\n')

    index = read_index(tmp_path)

    assert [each.row.step for each in index.rows(range(9))] == [4, 4]
    assert "1.jsonl: 2 lines have neither a uid nor a score" in index.problems[0]


def test_a_folder_that_cannot_be_listed_hides_nothing_else(tmp_path: Path) -> None:
    write_run(tmp_path, {}, [{"step": 1, "critic/score/mean": 0.5}])
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text(f"trainer: {{validation_data_dir: {300 * 'x'}}}")

    index = read_index(tmp_path)

    assert index.metrics[0].points("critic/score/mean") == [(1, 0.5)]
    assert index.problems == [
        f"{300 * 'x'}/pivot cannot be read: File name too long; everything else is shown, and reading is retried"
    ]


def test_a_rollout_is_found_again_by_its_place(tmp_path: Path) -> None:
    index = read_index(write_run(tmp_path, {1: [make_line("a_0_0"), make_line("a_1_0")]}))

    assert index.find(RolloutPlace(0, "rollouts/pivot/1.jsonl", 2)).row.uid == "a_1_0"
    with pytest.raises(DataError, match=r"rollouts/pivot/1\.jsonl has no rollout at line 3"):
        index.find(RolloutPlace(0, "rollouts/pivot/1.jsonl", 3))
    with pytest.raises(DataError, match="has no rollout at line 1"):
        index.find(RolloutPlace(0, "../../etc/passwd", 1))


def test_queries_and_reading_go_on_at_the_same_time(tmp_path: Path) -> None:
    steps = {step: [make_line(f"{step}_{each}_0", step=step) for each in range(50)] for step in range(1, 11)}
    index = read_index(write_run(tmp_path, {}))
    write_run(tmp_path, steps)
    failures: list[Exception] = []

    def ask() -> None:
        try:
            for _ in range(10):
                uids(index, condition="score > 0")
        except Exception as error:  # noqa: BLE001  whatever it is, the test names it
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    while index.refresh():
        pass
    for thread in threads:
        thread.join()

    assert (failures, index.num_rollouts) == ([], 500)


def test_a_line_with_spaces_before_it_opens_like_any_other(tmp_path: Path) -> None:
    index = read_index(write_run(tmp_path, {1: [b"    " + make_line("a_0_0", 1.0, ["One."])]}))

    opened = open_rollout(index, index.rows([0])[0])

    assert [turn.text for turn in opened.turns] == ["One."]


def test_a_dump_that_is_rewritten_in_place_is_read_anew(tmp_path: Path) -> None:
    folder = write_run(tmp_path, {1: [make_line("a_0_0")]})
    index = read_index(folder)

    write_run(folder, {1: [make_line("z_0_0"), make_line("z_1_0")]})
    index.refresh()

    assert uids(index) == ["z_0_0", "z_1_0"]


@pytest.mark.parametrize("left", [0, 30])
def test_a_dump_that_is_cut_short_while_it_is_searched_holds_no_words(tmp_path: Path, left: int) -> None:
    line = make_line("a_0_0", 1.0, ["Seven."])
    index = read_index(write_run(tmp_path, {1: [line]}))
    os.truncate(tmp_path / "rollouts" / "pivot" / "1.jsonl", left)

    assert uids(index, words="Seven") == []
    assert uids(index, words="7") == []


def test_a_search_that_finds_nothing_is_given_up_too(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_bytes(b"{}\n")

    with pytest.raises(ConfigError, match=r"the search for words takes longer than 0 s: first filter the list"):
        rows_with_words([RowPlace(0, tmp_path / "1.jsonl", 0, 2)], "nothing", 0.0)


@given(
    st.lists(st.tuples(st.text('ab\u00e9C \\"\n', max_size=6), st.booleans())),
    st.text("abcC\u00c9 \n", min_size=1, max_size=4),
)
def test_words_are_found_in_the_rollouts_that_are_asked_for_and_in_no_other(
    rollouts: list[tuple[str, bool]], words: str
) -> None:
    with TemporaryDirectory() as name:
        path = Path(name) / "1.jsonl"
        places, lines = [], b""
        for number, (text, is_asked) in enumerate(rollouts):
            line = json.dumps({"text": text * 3, "abc": 1}).encode()
            if is_asked:
                places.append(RowPlace(number, path, len(lines), len(line)))
            lines += line + b"\n"
        path.write_bytes(lines)

        found = rows_with_words(places, words, 5.0)

    assert found == [
        number
        for number, (text, is_asked) in enumerate(rollouts)
        if is_asked and words.casefold() in (text * 3).casefold()
    ]
