"""Pure parts of the agent loop with a notebook: rows of contexts, trims, the Notepad, and what a cell shows."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.data.tool_schemas import text_schema
from verl_pivot.errors import ConfigError
from verl_pivot.rollout.cell_calls import functions_of
from verl_pivot.rollout.context import ContextWindow, Trim
from verl_pivot.rollout.context_rows import ContextRow, RowLayout, Stretch, rows_of
from verl_pivot.rollout.notebook_output import cell_output
from verl_pivot.rollout.notebook_prompt import system_prompt
from verl_pivot.rollout.notebook_turns import read_notebook_turn
from verl_pivot.rollout.notepad import Notes, Todo
from verl_pivot.rollout.token_record import TokenRecord
from verl_pivot.sandbox.execution import Result, Status
from verl_pivot.sandbox.host_functions import HostFunction
from verl_pivot.sandbox.in_session.notepad import Notepad


def stretch(prompt: list[int], *parts: tuple[str, list[int]], first_step: int = 0) -> Stretch:
    """A stretch whose parts are ("turn", tokens) of the policy or ("text", tokens) that it read."""
    tokens = TokenRecord.of_prompt(prompt)
    for kind, ids in parts:
        if kind == "turn":
            logprobs = [*(tokens.logprobs or [0.0] * len(tokens.mask)), *[-float(each) for each in ids]]
            tokens = tokens.with_turn([*tokens.token_ids, *ids], [*tokens.mask, *[1] * len(ids)], logprobs)
        else:
            tokens = tokens.with_text(ids)
    return Stretch(tokens=tokens, first_step=first_step)


TWO = (
    stretch([1, 2], ("turn", [3, 4]), ("text", [5]), ("turn", [6])),
    stretch([1, 7], ("turn", [8]), ("text", [9, 9]), ("turn", [10, 11]), first_step=2),
)


def test_a_stretch_of_context_is_one_row() -> None:
    first, second = rows_of(TWO, RowLayout.CONTEXT)

    assert first == ContextRow(
        prompt_ids=[1, 2], response_ids=[3, 4, 5, 6], mask=[1, 1, 0, 1], logprobs=[-3.0, -4.0, 0.0, -6.0],
        step_ends=[2, 4], steps=range(2),
    )  # fmt: skip
    assert second == ContextRow(
        prompt_ids=[1, 7], response_ids=[8, 9, 9, 10, 11], mask=[1, 0, 0, 1, 1],
        logprobs=[-8.0, 0.0, 0.0, -10.0, -11.0], step_ends=[1, 5], steps=range(2, 4),
    )  # fmt: skip


def test_a_step_is_one_row() -> None:
    rows = rows_of(TWO, RowLayout.STEP)

    assert [row.prompt_ids for row in rows] == [[1, 2], [1, 2, 3, 4, 5], [1, 7], [1, 7, 8, 9, 9]]
    assert [row.response_ids for row in rows] == [[3, 4], [6], [8], [10, 11]]
    assert [row.mask for row in rows] == [[1, 1], [1], [1], [1, 1]]
    assert [row.logprobs for row in rows] == [[-3.0, -4.0], [-6.0], [-8.0], [-10.0, -11.0]]
    assert [row.step_ends for row in rows] == [[2], [1], [1], [2]]
    assert [row.steps for row in rows] == [range(at, at + 1) for at in range(4)]


@pytest.mark.parametrize("layout", list(RowLayout))
def test_text_behind_the_last_turn_and_stretches_without_a_step_are_in_no_row(layout: RowLayout) -> None:
    (row,) = rows_of([stretch([1], ("turn", [2]), ("text", [3])), stretch([4])], layout)

    assert (row.prompt_ids, row.response_ids, row.mask) == ([1], [2], [1])


PARTS = st.lists(st.tuples(st.lists(st.integers(0, 9), min_size=1), st.lists(st.integers(0, 9))), min_size=1)


@given(st.lists(st.tuples(st.lists(st.integers(0, 9), min_size=1), PARTS), min_size=1, max_size=4))
def test_both_layouts_hold_each_sampled_token_once_behind_the_same_tokens(drawn: Any) -> None:
    stretches: list[Stretch] = []
    for prompt, turns in drawn:
        parts = [part for turn, text in turns for part in (("turn", turn), ("text", text))]
        stretches.append(stretch(prompt, *parts, first_step=sum(len(each.tokens.turn_starts) for each in stretches)))

    def sampled(rows: list[ContextRow]) -> list[tuple[list[int], int, float]]:
        found = []
        for row in rows:
            assert row.logprobs is not None
            assert len(row.response_ids) == len(row.mask) == len(row.logprobs) == row.step_ends[-1]
            for at, mask in enumerate(row.mask):
                if mask:
                    before = [*row.prompt_ids, *row.response_ids[:at]]
                    found.append((before, row.response_ids[at], row.logprobs[at]))
        return found

    together, apart = rows_of(stretches, RowLayout.CONTEXT), rows_of(stretches, RowLayout.STEP)
    assert sampled(together) == sampled(apart)
    num_steps = sum(len(turns) for _, turns in drawn)
    assert [step for row in together for step in row.steps] == [row.steps[0] for row in apart] == list(range(num_steps))


@pytest.mark.parametrize(
    ("trim", "trim_keep", "expected"),
    [(Trim.HARD, 0.9, 0), (Trim.OLDEST, 0.5, 2), (Trim.OLDEST, 0.49, 1), (Trim.OLDEST, 0.9, 3), (Trim.OLDEST, 0.1, 0)],
)
def test_a_trim_keeps_the_newest_steps_that_fit(trim: Trim, trim_keep: float, expected: int) -> None:
    window = ContextWindow(max_tokens=100, max_step_tokens=20, trim=trim, trim_keep=trim_keep)

    assert window.num_kept_steps([30, 25, 20, 20], num_first_tokens=10) == expected  # 10 + 20 + 20 = 50 of 100


def test_a_trim_leaves_room_for_a_step_whatever_its_share() -> None:
    window = ContextWindow(max_tokens=100, max_step_tokens=60, trim=Trim.OLDEST, trim_keep=0.9)

    assert window.num_kept_steps([20, 20], num_first_tokens=10) == 1
    assert (window.room(40), window.room(41)) == (0, -1)


def test_a_window_without_room_for_a_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_step_tokens=100 leaves no room for a task"):
        ContextWindow(max_tokens=100, max_step_tokens=100)


def test_a_notepad_keeps_labels_when_entries_go() -> None:
    notepad = Notepad()
    notepad.add_todo("find the firm")
    notepad.add_facts("one", ["two", "three"])
    notepad.remove("F2")
    notepad.add_facts("four")
    notepad.check_todo("T1")
    notepad.write_draft("It is one.")

    notes = msgspec.convert(notepad.contents(), Notes)

    facts = {"F1": "one", "F3": "three", "F4": "four"}
    assert notes == Notes(todos={"T1": Todo("find the firm", True)}, facts=facts, draft="It is one.")
    assert Notepad(msgspec.to_builtins(notes)).contents() == notepad.contents()
    assert (
        notes.shown()
        == "To do:\n  [x] T1: find the firm\nFacts:\n  F1: one\n  F3: three\n  F4: four\nDraft:\n  It is one."
    )
    notepad.remove("F1", "F3", "T1", "F4", "draft")
    assert msgspec.convert(notepad.contents(), Notes).shown() == "(empty)"


@pytest.mark.parametrize(
    ("text", "code", "has_form"),
    [
        ("<think>I think a lot.</think><code>x = 12</code>", "x = 12", True),
        ("<think>I think a lot.</think>So:\n<code>\nx = 12\n</code>", "\nx = 12\n", True),
        ("<think>I use <code> now.</think><code>x = 12</code>", "x = 12", True),
        ("<think>I think a lot.</think><code>'<think></think>'</code>", "'<think></think>'", True),
        ("<code>print('</think>')</code>", "print('</think>')", False),
        ("<think>I think a lot.<code>x = 12</code>", "x = 12", False),
        ("I think a lot.</think><code>x = 12</code>", "x = 12", False),
        ("<think>I use <code></think></code>", None, False),
        ("</code>", None, False),
        ("<think>  <think>  </think><code>x = 12</code>", "x = 12", False),
    ],
)
def test_a_turn_has_one_thought_and_one_code(text: str, code: str | None, has_form: bool) -> None:
    turn = read_notebook_turn(text, ended=True)

    assert (turn.code, turn.has_form, turn.mistake == "") == (code, has_form, has_form)


@given(st.lists(st.sampled_from(["<think>", "</think>", "<code>", "</code>", "x = 1234567", " ", "\n"])))
def test_any_turn_is_read_with_a_mistake_or_with_the_right_form(parts: list[str]) -> None:
    text = "".join(parts).partition("</code>")
    turn = read_notebook_turn(text[0] + text[1], ended=True)

    assert turn.has_form is (turn.mistake == "")
    assert not turn.has_form or turn.code is not None
    assert turn.code is None or turn.code.strip()


def result(status: Status = Status.OK, **fields: Any) -> Result:
    return Result(status=status, **fields)


@pytest.mark.parametrize(
    ("given_result", "text", "num_outputs", "num_errors"),
    [
        (result(), "", 0, 0),
        (result(stdout="5\n"), "5", 1, 0),
        (result(stdout="5\n", stderr="warned\n", value="'x'"), "5\nwarned\n'x'", 3, 0),
        (
            result(Status.ERROR, stdout="5\n", stderr="E: no\n", error="E: no\n"),
            "5\nE: no",
            2,
            1,
        ),
        (result(Status.ERROR, stderr="warned\nE: no\n", error="E: no\n"), "warned\nE: no", 2, 1),
        (result(Status.TIMEOUT), "time-out error, it did not end within its time limit", 1, 1),
        (
            result(Status.TIMEOUT, stderr="Interrupt\n", error="Interrupt\n"),
            "Interrupt\ntime-out error, it did not end within its time limit",
            1,
            1,
        ),
        (result(stdout="5", stdout_truncated=True), "5\n... [the rest was left out]", 1, 0),
        (
            result(Status.SESSION_KILLED, error="by signal 9"),
            "session error, the interpreter was restarted and all variables are lost: by signal 9",
            1,
            1,
        ),
    ],
)
def test_a_cell_shows_what_it_printed_its_value_and_its_error(
    given_result: Result, text: str, num_outputs: int, num_errors: int
) -> None:
    shown = cell_output(given_result)

    assert (shown.text, shown.num_outputs, shown.num_errors) == (text, num_outputs, num_errors)
    assert shown.ran is (num_errors == 0)


def test_the_system_prompt_lists_the_functions_with_their_signatures() -> None:
    parameters: Any = {
        "type": "object",
        "properties": {
            "num": {"type": "integer", "default": 3},
            "query": {"type": "string", "description": "Words to\n look for."},
            "mode": {"enum": ["a", "b"]},
        },
        "required": ["query"],
    }
    functions = [
        HostFunction(name="search", description="Search documents.\nThe best come first.", parameters=parameters)
    ]

    text = system_prompt(functions, max_steps=8, trim=Trim.HARD, has_notepad=True)

    assert (
        "def search(query: str, num: int = 3, mode = ...) -> str:\n"
        '    """Search documents.\n    The best come first.\n\n    query: Words to look for."""'
    ) in text
    assert "there are 8 at most" in text
    assert "notepad.add_todo" in text
    assert "otepad" not in system_prompt(functions, max_steps=8, trim=Trim.OLDEST, has_notepad=False)


@pytest.mark.parametrize("name", ["web-search", "class", "notepad", "submit_final_answer"])
def test_a_tool_whose_name_the_notebook_cannot_take_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="rename the tool"):
        functions_of([text_schema(name, "Search.", {"query": "Words."})])
