"""The agent loop `pivot_notebook` over a scripted engine: tokens, masks, logprobs, rows and texts, branch by branch."""

import asyncio
import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from verl.utils.tokenizer.continuous_token import GLMContinuousTokenBuilder

from tests.rollout.test_tool_loop import RecordingRouter
from tests.support.fake_notebook import FakeNotebook, open_fake_notebook
from tests.support.notebook_loops import (
    BEGIN,
    END,
    LAST,
    NOTES,
    REMOVED,
    SAMPLING,
    THOUGHT,
    left,
    make_loop,
    play,
    prompt,
    read,
    record,
    runs,
    said,
    step,
    turn,
    verdict,
    window,
)
from tests.support.scripted_engine import Said, row
from verl_pivot.data.rollout_records import parse_record
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.rollout.rollout_metrics import rollout_metrics
from verl_pivot.tools.workspace import Workspace


@pytest.fixture(autouse=True)
def fake_notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run cells in this process, and check at the end that every notebook was closed."""
    monkeypatch.setattr(Workspace, "open_session", open_fake_notebook)
    FakeNotebook.opened = []
    yield
    assert all(notebook.is_closed for notebook in FakeNotebook.opened)


async def test_a_row_holds_exactly_the_sampled_and_the_rendered_tokens(tmp_path: Path) -> None:
    first, second = "x = add(2, b=3)\nx", "submit_final_answer(x)"
    loop = make_loop([step(first), step(second)], tmp_path)

    (output,) = await play(loop)

    num_prompt = len(output.prompt_ids)
    observation = "<output>\n'5'\n</output>"
    num_left = loop._parts.window.room(num_prompt + len(turn(first)) + 1 + 1 + len(observation))
    assert prompt(loop, output) == f"<|im_start|>user\nAdd 2 and 3.{END}{BEGIN}"
    assert runs(loop, output) == [(1, turn(first)), (0, said(f"{observation}\n{left(9, num_left)}")), (1, turn(second))]
    assert output.response_logprobs == [-0.5 if mask else 0.0 for mask in output.response_mask]
    assert output.turn_ends == [len(turn(first)), len(output.response_ids)]
    assert loop.server_manager.requests[0]["params"]["stop"] == ["</code>"]
    assert len({request["id"] for request in loop.server_manager.requests}) == 1
    assert (record([output])["stop_reason"], verdict([output])) == ("answered", (1.0, "accepted"))
    assert record([output])["text_differs"] is False


async def test_one_step_is_one_row_with_its_return(tmp_path: Path) -> None:
    loop = make_loop([step("submit_final_answer('5')")], tmp_path)

    (output,) = await play(loop)

    assert output.step_returns == pytest.approx([0.1 + 0.1 + 0.8])
    assert set(output.response_mask) == {1}
    assert output.turn_ends == [len(output.response_ids)]


async def test_each_step_may_be_a_row_with_what_it_read_as_its_prompt(tmp_path: Path) -> None:
    script = [step("x = add(2, 3)"), step("print(x)"), step("submit_final_answer('6')")]
    together = make_loop(script, tmp_path)
    apart = make_loop(script, tmp_path, "rows=step")

    (whole,) = await play(together)
    rows = await play(apart)

    assert [apart.tokenizer.decode(each.response_ids) for each in rows] == [each.text for each in script]
    assert [each.prompt_ids for each in rows] == [each["prompt_ids"] for each in apart.server_manager.requests]
    assert [set(each.response_mask) for each in rows] == [{1}] * 3
    assert [each.turn_ends for each in rows] == [[len(each.response_ids)] for each in rows]
    assert [each.response_logprobs for each in rows] == [[-0.5] * len(each.response_ids) for each in rows]
    assert [value for each in rows for value in each.step_returns] == whole.step_returns
    assert [*whole.prompt_ids, *whole.response_ids] == [*rows[-1].prompt_ids, *rows[-1].response_ids]
    assert [("rollout" in each.extra_fields) for each in rows] == [False, False, True]


@pytest.mark.parametrize("layout", ["context", "step"])
async def test_a_turn_of_nothing_but_the_token_that_begins_the_next_message_keeps_it(
    tmp_path: Path, layout: str
) -> None:
    script = [Said("<|user|>", ended=False), step("submit_final_answer('5')")]
    loop = make_loop(script, tmp_path, f"rows={layout}")
    loop.tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|observation|>"]})
    loop.continuous_token_builder = GLMContinuousTokenBuilder(loop.tokenizer)
    begins = loop.tokenizer.convert_tokens_to_ids("<|user|>")
    loop._parts = dataclasses.replace(loop._parts, end_token_ids=loop._parts.end_token_ids | {begins})

    outputs = await play(loop)

    texts = [text for each in outputs for mask, text in runs(loop, each) if mask]
    assert texts == ["<|user|>", script[1].text]
    assert [len(each.turn_ends) for each in outputs] == ([2] if layout == "context" else [1, 1])
    assert [len(each.step_returns) for each in outputs] == [len(each.turn_ends) for each in outputs]


async def test_returns_follow_from_form_execution_and_answer(tmp_path: Path) -> None:
    script = [
        step("y = 1 / 0"),
        Said("<code>x = 12</code>", ended=False),
        step("submit_final_answer('9')"),
    ]
    (output,) = await play(make_loop(script, tmp_path))

    third = 0.1 / 3 + 0.1 / 3 + 0.8 * 0.1
    second = 0.1 / 3 + 0.95 * third
    assert output.step_returns == pytest.approx([0.1 / 3 + 0.95 * second, second, third])
    assert verdict([output]) == (0.0, "wrong_value")


async def test_without_an_answer_the_trajectory_ends_with_its_last_step(tmp_path: Path) -> None:
    loop = make_loop([step("x = 1.5"), step("x + 1.5")], tmp_path, "max_steps=2")

    (output,) = await play(loop)

    assert read(loop, 1) == f"<output>\n(nothing)\n</output>\n{LAST}"
    assert (record([output])["stop_reason"], record([output])["answer"]) == ("max_turns", None)
    assert verdict([output]) == (0.0, "no_answer")
    assert output.step_returns == pytest.approx([0.1 + 0.95 * 0.1, 0.1])
    assert output.response_mask[-1] == 1


async def test_the_end_of_a_rollout_is_reported_to_the_router_also_when_it_is_cancelled(tmp_path: Path) -> None:
    router = RecordingRouter()
    whole = make_loop([step("submit_final_answer('5')")], tmp_path, _load_balancer=router)
    cancelled = make_loop(["Never said."], tmp_path, _load_balancer=router, seconds=60.0)

    outputs = await play(whole)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(play(cancelled), 2.0)

    assert record(outputs)["journey"] == {"wait_seconds": 0.5, "num_moves": 1, "recomputed_tokens": 70}
    ids = [loop.server_manager.requests[0]["id"] for loop in (whole, cancelled)]
    assert router.ended == [(ids[0], len(outputs[0].response_ids), 1), (ids[1], 0, None)]


async def test_an_error_in_the_middle_is_read_and_variables_stay(tmp_path: Path) -> None:
    loop = make_loop([step("x = 5\nprint('so far')\nx / 0"), step("submit_final_answer(str(x))")], tmp_path)

    (output,) = await play(loop)

    assert read(loop, 1).startswith("<output>\nso far\nZeroDivisionError: division by zero\n</output>\nLeft: 9 steps")
    assert verdict([output]) == (1.0, "accepted")


EMPTY = "<notepad>\n(empty)\n</notepad>"


def facts(*numbers: int) -> str:
    lines = "\n".join(f"  F{number + 1}: fact {number}" for number in numbers)
    return f"<notepad>\nFacts:\n{lines}\n</notepad>"


async def test_a_hard_trim_leaves_the_system_prompt_the_task_the_notepad_and_a_notice(tmp_path: Path) -> None:
    settings = await window(tmp_path, 600)
    loop = make_loop([*NOTES, step("submit_final_answer('5')")], tmp_path, *settings)

    _, second, third = outputs = await play(loop)

    assert [len(each.turn_ends) for each in outputs] == [3, 2, 1]
    start = f"<|im_start|>user\nAdd 2 and 3.\n\n{REMOVED} Variables are still in the notebook.)\n"
    num_left = [loop._parts.window.room(len(each.prompt_ids)) for each in outputs]
    for output, noted, num_steps, number in ((second, facts(0, 1, 2), 7, 1), (third, facts(0, 1, 2, 3, 4), 5, 2)):
        ending = left(num_steps, num_left[number] + len(left(num_steps, 111)) + 1)
        assert prompt(loop, output) == f"{start}{noted}\n{ending}{END}{BEGIN}"
    texts = [text for each in outputs for mask, text in runs(loop, each) if mask]
    assert texts == [each.text for each in [*NOTES, step("submit_final_answer('5')")]]
    assert [each.response_mask[-1] for each in outputs] == [1, 1, 1]
    assert record(outputs)["num_trims"] == 2
    returns = [value for each in outputs for value in each.step_returns]
    assert returns == pytest.approx(
        [sum(0.95**k * 0.2 / 6 for k in range(6 - at)) + 0.8 * 0.95 ** (5 - at) for at in range(6)]
    )


async def test_a_trim_of_the_oldest_steps_keeps_whole_steps_token_for_token(tmp_path: Path) -> None:
    settings = await window(tmp_path, 1000, "trim=oldest", "trim_keep=0.95")
    loop = make_loop([*NOTES, step("submit_final_answer('5')")], tmp_path, *settings)

    outputs = await play(loop)

    assert record(outputs)["num_trims"] == len(outputs) - 1 == 1
    first, second = outputs
    assert [len(each.turn_ends) for each in outputs] == [5, 1]
    gone = "the oldest steps were removed, with what you had read after them"
    start = f"(The tokens were used up: {gone}. Variables are still in the notebook.)\n{facts(*range(5))}{END}{BEGIN}"
    first_text = loop.tokenizer.decode(first.response_ids)
    num_left = loop._parts.window.room(len(second.prompt_ids)) + len(left(5, 111)) + 20
    last_read = f"<output>\n(nothing)\n</output>\n{left(5, num_left)}"
    kept = first_text[first_text.index(NOTES[3].text) :] + said(last_read)
    assert prompt(loop, second) == f"<|im_start|>user\nAdd 2 and 3.\n\n{start}{kept}"
    assert runs(loop, second) == [(1, turn("submit_final_answer('5')"))]


async def test_both_layouts_hold_the_same_tokens_after_trims(tmp_path: Path) -> None:
    for extra in (("trim=hard",), ("trim=oldest", "trim_keep=0.8")):
        settings = await window(tmp_path, 700, *extra)
        script = [*NOTES, *NOTES[:3], step("submit_final_answer('5')")]
        together, apart = make_loop(script, tmp_path, *settings), make_loop(script, tmp_path, *settings, "rows=step")

        whole, rows = await play(together), await play(apart)

        requests = [each["prompt_ids"] for each in together.server_manager.requests]
        assert record(whole)["num_trims"] == len(whole) - 1 >= 2
        assert [each.prompt_ids for each in rows] == requests
        flat = [
            [*output.prompt_ids, *output.response_ids[:end]]
            for output in whole
            for output_end in [output.turn_ends]
            for end in output_end
        ]
        assert [[*each.prompt_ids, *each.response_ids] for each in rows] == flat
        assert sum(sum(each.response_mask) for each in whole) == sum(len(each.response_ids) for each in rows)


async def test_a_masked_trajectory_gives_one_undecided_row(tmp_path: Path) -> None:
    settings = await window(tmp_path, 305)
    loop = make_loop([*NOTES[:3], step("crash()"), step("never = 1")], tmp_path, *settings)

    outputs = await play(loop)

    (output,) = outputs
    assert all(math.isnan(value) for value in output.step_returns)
    assert len(output.step_returns) == len(output.turn_ends)
    assert record(outputs)["stop_reason"] == "tool_failure"
    assert "tool crash raised ConnectionError: the database is down" in record(outputs)["failure"]
    assert verdict(outputs) == (None, "tool_failure")
    assert rollout_metrics([parse_record(record(outputs))])["rollout/masked_rate"] == 1.0
    assert len(loop.server_manager.requests) == 4


async def test_a_session_that_is_lost_with_its_node_masks_the_trajectory(tmp_path: Path) -> None:
    outputs = await play(make_loop([step("lose()")], tmp_path))

    assert verdict(outputs) == (None, "tool_failure")
    assert record(outputs)["failure"] == "the session is lost with its node"


async def test_an_engine_that_stops_returning_tokens_masks_the_trajectory(tmp_path: Path) -> None:
    empty = [Said("", ended=False)] * 3

    assert verdict(await play(make_loop([NOTES[0], *empty], tmp_path))) == (None, "engine_failure")
    assert await play(make_loop(empty, tmp_path)) == []


FORM = "Nothing was run: a turn is <think>your thoughts</think><code>Python</code>"


@pytest.mark.parametrize(
    ("turn_text", "mistake"),
    [
        (Said(""), f"The turn was empty. {FORM}"),
        (Said("I do not know."), f"The turn had no code. {FORM}"),
        (Said(f"<think>{THOUGHT}</think><code>x = 1"), f"<code> was never closed. {FORM}"),
        (Said(f"<think>{THOUGHT}</code>", ended=False), f"The turn ended at </code> within <think>. {FORM}"),
        (Said(f"<think>{THOUGHT}</think></code>", ended=False), f"</code> had no <code> before it. {FORM}"),
        (Said(turn("  "), ended=False), f"The code was empty. {FORM}"),
        (Said("x" * 200, ended=False), f"The turn was cut off at its limit of 100 tokens. {FORM}"),
    ],
)
async def test_the_policy_reads_why_nothing_was_run_and_goes_on(tmp_path: Path, turn_text: Said, mistake: str) -> None:
    loop = make_loop([turn_text, step("submit_final_answer('5')")], tmp_path, "max_step_tokens=100")

    (output,) = await play(loop)

    assert read(loop, 1).startswith(f"{mistake}\nLeft: 9 steps")
    assert output.step_returns == pytest.approx([0.95 * 0.9, 0.9])
    text = loop.tokenizer.decode(output.response_ids)
    assert text.startswith(f"{turn_text.text[:100]}{END}<|im_start|>user\n")
    assert output.response_mask[: output.turn_ends[0]] == [1] * output.turn_ends[0]
    assert record([output])["text_differs"] is False


@pytest.mark.parametrize(
    ("turn_text", "mistake"),
    [
        ("<code>x = 12</code>", "The turn should have exactly one <think> block before its code, and had 0."),
        (
            f"<think>a</think>{turn('x = 12')}",
            "The turn should have exactly one <think> block before its code, and had 2.",
        ),
        (turn("x = 12", thought="too short"), "The thought should have at least 11 characters."),
        (turn("x = 1"), "The code should have at least 6 characters."),
    ],
)
async def test_code_of_a_turn_with_a_wrong_form_is_run_and_the_policy_is_told(
    tmp_path: Path, turn_text: str, mistake: str
) -> None:
    loop = make_loop([Said(turn_text, ended=False), step("submit_final_answer('5')")], tmp_path)

    (output,) = await play(loop)

    assert read(loop, 1).startswith(f"<output>\n(nothing)\n</output>\n{mistake}\nLeft: 9 steps")
    assert output.step_returns[0] == pytest.approx(0.05 + 0.95 * 0.9)


async def test_tags_within_the_other_block_count_nowhere(tmp_path: Path) -> None:
    code = "print('<think>', '<code>')"
    loop = make_loop([step(code, thought="I write <code> now."), step("submit_final_answer('5')")], tmp_path)

    (output,) = await play(loop)

    assert read(loop, 1).startswith("<output>\n<think> <code>\n</output>\nLeft")
    assert output.step_returns == pytest.approx([0.1 + 0.95 * 0.9, 0.9])


async def test_a_turn_ends_at_a_closing_tag_within_a_string_and_the_policy_is_told(tmp_path: Path) -> None:
    cut = Said(f"<think>{THOUGHT}</think><code>x = 'a </code> b'\nprint(x)</code>", ended=False)
    loop = make_loop([cut, step("submit_final_answer('5')")], tmp_path)

    (output,) = await play(loop)

    assert runs(loop, output)[0] == (1, f"<think>{THOUGHT}</think><code>x = 'a </code>")
    assert 'within a string too: write "</" + "code>" there.\n</output>' in read(loop, 1)


async def test_the_policy_reads_that_its_notebook_was_restarted_and_keeps_the_notepad(tmp_path: Path) -> None:
    script = [step("x = 5\nnotepad.add_todo('find it')"), step("kill()"), step("x"), step("submit_final_answer('5')")]
    loop = make_loop(script, tmp_path)

    await play(loop)

    assert read(loop, 2) == (
        "<output>\nsession error, the interpreter was restarted and all variables are lost\n</output>\n"
        "The notebook had to be restarted: all variables and files are gone; "
        "the Notepad is as it was before this step.\n" + read(loop, 2).rpartition("\n")[2]
    )
    assert "NameError: name 'x' is not defined" in read(loop, 3)
    assert len(FakeNotebook.opened) == 1


async def test_the_notepad_is_shown_where_it_changed(tmp_path: Path) -> None:
    script = [
        step("notepad.add_todo('find it')\nnotepad.add_facts('a', ['b', 'c'])"),
        step("x = 12345"),
        step("notepad.check_todo('T1')\nnotepad.remove('F2')\nnotepad.write_draft('It is a.')"),
        step("notepad.remove('F9')"),
        step("submit_final_answer('5')"),
    ]
    loop = make_loop(script, tmp_path)

    await play(loop)

    first = "<notepad>\nTo do:\n  [ ] T1: find it\nFacts:\n  F1: a\n  F2: b\n  F3: c\n</notepad>"
    second = "<notepad>\nTo do:\n  [x] T1: find it\nFacts:\n  F1: a\n  F3: c\nDraft:\n  It is a.\n</notepad>"
    assert read(loop, 1).startswith(f"<output>\n(nothing)\n</output>\n{first}\nLeft")
    assert "notepad" not in read(loop, 2)
    assert f"\n{second}\nLeft" in read(loop, 3)
    assert "KeyError: \"the Notepad has no entry 'F9'; its entries are: F1, F3, T1\"" in read(loop, 4)


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("notepad = 12", "AttributeError: 'int' object has no attribute 'contents'"),
        ("del notepad", "NameError: name 'notepad' is not defined"),
        ("notepad.facts = 1 + 1", "it does not hold notes: Expected `object`, got `int` - at `$.facts`"),
        ("notepad.draft = {1}", "TypeError: Object of type set is not JSON serializable"),
        (
            "notepad.contents = lambda: print('x') or {}",
            "it does not hold notes: JSON is malformed: invalid character (byte 0)",
        ),
        ("notepad.draft = 'x' * 10**6", "it is longer than 49152 characters of JSON; remove some of it"),
        ("notepad.draft = chr(0xd800)", "it does not hold notes: Input data was truncated"),
    ],
)
async def test_the_policy_reads_that_its_notepad_is_broken_and_may_make_a_new_one(
    tmp_path: Path, code: str, problem: str
) -> None:
    script = [
        step("notepad.add_facts('old')"),
        step(code),
        step("notepad = Notepad()"),
        step("submit_final_answer('5')"),
    ]
    loop = make_loop(script, tmp_path)

    outputs = await play(loop)

    assert f"<notepad>\n`notepad` cannot be read: {problem}" in read(loop, 2)
    assert "Last it held:\nFacts:\n  F1: old\n</notepad>" in read(loop, 2)
    assert EMPTY in read(loop, 3)
    assert verdict(outputs) == (1.0, "accepted")


async def test_a_notepad_that_ends_its_interpreter_while_it_is_read_is_made_anew(tmp_path: Path) -> None:
    script = [step("x = 5\nnotepad.add_facts('old')"), step("notepad.contents = kill"), step("x"), NOTES[0]]
    loop = make_loop(script, tmp_path, "max_steps=4")

    await play(loop)

    assert "The notebook had to be restarted" in read(loop, 2)
    assert "NameError: name 'x' is not defined" in read(loop, 3)


async def test_a_notepad_longer_than_the_window_is_cut(tmp_path: Path) -> None:
    settings = await window(tmp_path, 900)
    loop = make_loop([step("notepad.write_draft('y' * 5000)"), step("submit_final_answer('5')")], tmp_path, *settings)

    outputs = await play(loop)

    text = prompt(loop, outputs[-1])
    assert "characters left out] ..." in text
    assert len(outputs) == 2
    assert len(outputs[-1].prompt_ids) + 100 <= loop._parts.window.max_tokens


async def test_without_a_notepad_nothing_speaks_of_one(tmp_path: Path) -> None:
    settings = await window(tmp_path, 400, "notepad=False")
    loop = make_loop(
        [step("x = 12345"), step("kill()"), step("x = 54321"), step("submit_final_answer('5')")], tmp_path, *settings
    )

    outputs = await play(loop)

    assert len(outputs) > 1
    assert "otepad" not in loop.tokenizer.decode(
        [each for out in outputs for each in [*out.prompt_ids, *out.response_ids]]
    )
    assert FakeNotebook.opened[-1].cells[0] == ""


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("submit_final_answer(42)", "the answer must be text (str), got int; nothing was submitted"),
        ("submit_final_answer([])", "the answer must be text (str), got list; nothing was submitted"),
        ("submit_final_answer('  ')", "the answer is empty; nothing was submitted"),
        ("submit_final_answer(chr(0xd800))", "the answer is not valid Unicode; nothing was submitted"),
    ],
)
async def test_what_is_no_answer_is_refused(tmp_path: Path, code: str, error: str) -> None:
    loop = make_loop([step(code), step("submit_final_answer('5')")], tmp_path)

    outputs = await play(loop)

    assert f"RuntimeError: {error}\n" in read(loop, 1)
    assert record(outputs)["num_tool_errors"] == 1
    assert verdict(outputs) == (1.0, "accepted")


@pytest.mark.parametrize(
    ("call", "name"),
    [("add('7' * 10**6, 3)", "add"), ("submit_final_answer(' ' * 10**6 + '5')", "submit_final_answer")],
)
async def test_arguments_that_code_made_long_are_refused_and_not_kept(tmp_path: Path, call: str, name: str) -> None:
    attempts = "\n".join(["try:", f"    {call}", "except RuntimeError as error:", "    print(error)"])
    loop = make_loop([step(attempts), step("submit_final_answer('5')")], tmp_path)

    outputs = await play(loop)

    assert f"{name}() was not called: its arguments have 1000" in read(loop, 1)
    first, second = record(outputs)["calls"]
    assert (first["name"], first["arguments"], first["status"]) == (name, None, "tool_error")
    assert (second["arguments"], verdict(outputs)) == ({"answer": "5"}, (1.0, "accepted"))
    assert len(json.dumps(record(outputs))) < 10_000


async def test_the_first_of_two_answers_counts(tmp_path: Path) -> None:
    loop = make_loop([step("submit_final_answer('6')\nsubmit_final_answer('5')")], tmp_path)

    outputs = await play(loop)

    assert record(outputs)["answer"] == "6"
    assert [each["status"] for each in record(outputs)["calls"]] == ["ok", "tool_error"]
    assert verdict(outputs) == (0.0, "wrong_value")
    assert outputs[0].step_returns == pytest.approx([0.1 + 0.8 * 0.1])


async def test_an_answer_counts_although_its_cell_fails_afterwards(tmp_path: Path) -> None:
    outputs = await play(make_loop([step("submit_final_answer('5')\n1 / 0")], tmp_path))

    assert verdict(outputs) == (1.0, "accepted")
    assert outputs[0].step_returns == pytest.approx([0.9])


async def test_an_answer_that_is_only_printed_is_none(tmp_path: Path) -> None:
    outputs = await play(make_loop([step("print('submit_final_answer', 5)")], tmp_path, "max_steps=1"))

    assert record(outputs)["answer"] is None


async def test_a_mistake_in_a_call_is_an_exception_in_the_cell(tmp_path: Path) -> None:
    code = "try:\n    refuse()\nexcept RuntimeError as error:\n    print('caught', error)\nadd(a='two')"
    loop = make_loop([step(code), step("submit_final_answer('5')")], tmp_path)

    outputs = await play(loop)

    assert "caught" in read(loop, 1)
    assert "not today" in read(loop, 1)
    assert "'two' is not of type 'integer'" in read(loop, 1)
    assert [each["error_kind"] for each in record(outputs)["calls"]] == ["refused", "invalid_argument", None]


@pytest.mark.parametrize("answers", [(), ("...",), ("Beyonc\u00e9",)])
async def test_a_row_without_an_answer_to_compare_is_undecided(tmp_path: Path, answers: tuple[str, ...]) -> None:
    outputs = await play(make_loop([step("submit_final_answer('5')")], tmp_path), answers)

    assert verdict(outputs)[0] is None
    assert math.isnan(outputs[0].step_returns[0])


async def test_a_row_without_a_reward_model_is_undecided(tmp_path: Path) -> None:
    outputs = await play(make_loop([step("submit_final_answer('5')")], tmp_path), reward_model=None)

    assert verdict(outputs)[0] is None


async def test_a_task_that_would_not_fit_after_a_trim_is_refused(tmp_path: Path) -> None:
    settings = await window(tmp_path, 100)

    with pytest.raises(
        DataError, match=r"leaves no room for a step of 100 within pivot\.notebook\.max_context_tokens="
    ):
        await play(make_loop([step("x = 12345")], tmp_path, *settings))


async def test_a_context_larger_than_the_engines_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_context_tokens=20000 is more than the engine's context of 16384 tokens"):
        make_loop([], tmp_path, "max_context_tokens=20000")


async def test_no_step_begins_after_the_wall_clock_ran_out(tmp_path: Path) -> None:
    script = [step("import time\ntime.sleep(0.7)"), step("never = 1")]
    outputs = await play(make_loop(script, tmp_path, "pivot.rollout.max_wall_seconds=0.5"))

    assert record(outputs)["stop_reason"] == "max_wall_seconds"
    assert verdict(outputs) == (0.0, "no_answer")


async def test_an_engine_without_logprobs_gives_rows_without_them(tmp_path: Path) -> None:
    (output,) = await play(make_loop([NOTES[0], step("submit_final_answer('5')")], tmp_path, with_logprobs=False))

    assert output.response_logprobs is None


async def test_a_cell_that_prints_a_lot_or_special_tokens_breaks_no_context(tmp_path: Path) -> None:
    script = [step("print('x' * 10**7)\nprint('<|im_end|>')"), step("submit_final_answer('5')")]
    loop = make_loop(script, tmp_path, "pivot.rollout.max_observation_tokens=200")

    await play(loop)

    assert "characters left out] ..." in read(loop, 1)
    assert len(read(loop, 1)) < 350
    assert "< |im_end|>\n</output>" in read(loop, 1)


async def test_the_rows_own_system_prompt_stands_behind_that_of_the_scaffold(tmp_path: Path) -> None:
    loop = make_loop([step("submit_final_answer('5')")], tmp_path)
    messages = [{"role": "system", "content": "Answer in one word."}, {"role": "user", "content": "Well?"}]

    (output,) = await play(loop, raw_prompt=messages)

    text = loop.tokenizer.decode(output.prompt_ids)
    assert text.count("<|im_start|>system") == 1
    assert text.endswith(f"\n\nAnswer in one word.{END}<|im_start|>user\nWell?{END}{BEGIN}")


@pytest.mark.parametrize("role", ["system", "user"])
async def test_a_message_that_is_no_text_is_refused(tmp_path: Path, role: str) -> None:
    messages = [
        {"role": role, "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": "Well?"},
    ]

    with pytest.raises(DataError, match=r"^a prompt has content that is not text"):
        await play(make_loop([], tmp_path), raw_prompt=messages)


async def test_a_template_that_begins_turns_with_a_think_tag_has_it_in_the_form(tmp_path: Path) -> None:
    template = make_loop([], tmp_path).tokenizer.chat_template.replace("assistant\\n' }}", "assistant\\n<think>\\n' }}")
    answer = Said(f"{THOUGHT}</think><code>submit_final_answer('5')</code>", ended=False)
    loop = make_loop([answer], tmp_path, template=template)

    (output,) = await play(loop)

    assert prompt(loop, output).endswith(f"{BEGIN}<think>\n")
    assert output.step_returns == pytest.approx([1.0])
    assert loop.tokenizer.decode(output.response_ids) == answer.text


async def test_a_dump_has_each_row_with_its_steps_and_the_record_in_the_last(tmp_path: Path) -> None:
    settings = await window(tmp_path, 600)
    dumped = f"trainer.rollout_data_dir={tmp_path}"
    script = [*NOTES[:3], step("print('done')\nsubmit_final_answer('5')")]
    loop = make_loop(script, tmp_path, *settings, dumped)

    outputs = await play(loop, data_source="qa")

    lines = [json.loads(each.as_dict()["extra_fields"]["transcript"]) for each in outputs]
    assert [[each["text"] for each in line["turns"]] for line in lines] == [
        [each.text for each in NOTES[:3]], [script[-1].text],
    ]  # fmt: skip
    assert [each["step"]["is_trimmed"] for line in lines for each in line["turns"]] == [False, False, False, True]
    assert [each["step"]["step_return"] for line in lines for each in line["turns"]] == [
        value for each in outputs for value in each.step_returns
    ]
    assert lines[0]["turns"][1]["observations"] == [read(loop, 2)]
    assert lines[1]["turns"][0]["observations"] == ["done\n'submitted'"]
    assert [line["turn_ends"] for line in lines] == [each.turn_ends for each in outputs]
    assert [sum(end - begin for begin, end in line["sampled_spans"]) for line in lines] == [
        sum(each.response_mask) for each in outputs
    ]
    assert ("stop_reason" in lines[0], lines[1]["stop_reason"], lines[1]["answer"]) == (False, "answered", "5")
    assert [line["data_source"] for line in lines] == ["qa", "qa"]


async def test_in_validation_and_without_advantages_of_steps_the_answer_alone_is_scored(tmp_path: Path) -> None:
    script = [step("x = 10"), step("submit_final_answer('5')")]
    (trained,) = await play(make_loop(script, tmp_path))
    (validated,) = await play(make_loop(script, tmp_path), is_validation=True)
    (by_group,) = await play(make_loop(script, tmp_path, "algorithm.adv_estimator=grpo"))

    assert trained.step_returns == pytest.approx([0.1 + 0.95 * 0.9, 0.9])  # each: (0.1 + 0.1) / 2; last: 0.8 more
    assert validated.step_returns == by_group.step_returns == []
    validated.reward_score = 1.0
    assert validated.as_dict()["rm_scores"].nonzero().flatten().tolist() == [validated.turn_ends[-1] - 1]


async def test_the_last_row_has_the_scores_of_the_trajectory_for_the_metrics(tmp_path: Path) -> None:
    (output,) = await play(make_loop([step("10 / 0"), step("submit_final_answer('6')")], tmp_path))

    assert output.extra_fields["scores"] == {
        "em": 0.0, "f1": 0.0, "has_answer": 1.0, "format": 1.0, "execution": 0.5, "steps": 2.0, "failed_steps": 1.0,
        "trims": 0.0,
    }  # fmt: skip


async def test_a_loop_with_advantages_of_steps_that_is_not_told_of_validation_stops(tmp_path: Path) -> None:
    loop = make_loop([step("submit_final_answer('5')")], tmp_path)

    with pytest.raises(ConfigError, match=r"pivot\.notebook cannot tell training from validation: leave out actor_r"):
        await loop.run(SAMPLING, **row())
