"""The agent loop `pivot_notebook` with cells in the real sandbox: what the policy reads after it broke the notebook."""

import asyncio
from pathlib import Path

import pytest

from tests.support.notebook_loops import NOTES, make_loop, play, read, record, step, verdict
from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import use_service
from verl_pivot.sandbox.shared import shared_sandbox

pytestmark = needs_sandbox


@pytest.fixture(autouse=True)
def sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    use_service(monkeypatch)


async def num_sessions() -> int:
    """Number of open sessions of this test's client, over all nodes."""
    connection = (await shared_sandbox())._connection
    assert connection is not None
    return sum(node.num_sessions for node in connection.nodes)


async def test_a_trajectory_calls_tools_keeps_notes_and_answers(tmp_path: Path) -> None:
    script = [
        step("total = int(add(2, b=3))\nprint(total)\nnotepad.add_facts(f'the sum is {total}')"),
        step("refuse()"),
        step("submit_final_answer(str(total))"),
    ]
    loop = make_loop(script, tmp_path)

    outputs = await play(loop)

    notepad = "<notepad>\nFacts:\n  F1: the sum is 5\n</notepad>"
    assert read(loop, 1).startswith(f"<output>\n5\n</output>\n{notepad}\nLeft: 9 steps")
    assert read(loop, 2).startswith("<output>\nTraceback (most recent call last):\n")
    assert "not today\n</output>" in read(loop, 2)
    assert (verdict(outputs), record(outputs)["stop_reason"]) == ((1.0, "accepted"), "answered")
    assert [each["status"] for each in record(outputs)["calls"]] == ["ok", "tool_error", "ok"]
    assert await num_sessions() == 0


async def test_a_trim_leaves_variables_and_notes(tmp_path: Path) -> None:
    script = [step("x = 5\nnotepad.add_facts('x is set')\nprint('y' * 900)"), step("submit_final_answer(str(x))")]
    loop = make_loop(script, tmp_path, "max_context_tokens=2600", "max_step_tokens=200")

    outputs = await play(loop)

    assert len(outputs) == 2
    assert "F1: x is set" in read(loop, 1)
    assert verdict(outputs) == (1.0, "accepted")


async def test_a_cell_that_ends_its_interpreter_leaves_a_fresh_notebook_with_the_notepad(tmp_path: Path) -> None:
    script = [
        step("x = 5\nnotepad.add_facts('x was set')"),
        step("import os\nos._exit(3)"),
        step("print(notepad.facts, add(1))\nx"),
        step("submit_final_answer('5')"),
    ]
    loop = make_loop(script, tmp_path)

    outputs = await play(loop)

    assert "all variables and files are gone; the Notepad is as it was before this step." in read(loop, 2)
    assert "{'F1': 'x was set'} 2\n" in read(loop, 3)
    assert "NameError: name 'x' is not defined" in read(loop, 3)
    assert verdict(outputs) == (1.0, "accepted")


async def test_the_policy_may_overwrite_its_functions_and_its_notepad(tmp_path: Path) -> None:
    script = [
        step("notepad = add = print = open = None"),
        step("submit_final_answer('6') if add else 0"),
        step("submit_final_answer('5')"),
    ]
    loop = make_loop(script, tmp_path)

    outputs = await play(loop)

    assert "`notepad` cannot be read: AttributeError: 'NoneType' object has no attribute 'contents'" in read(loop, 1)
    assert verdict(outputs) == (1.0, "accepted")


async def test_without_its_function_a_policy_cannot_answer(tmp_path: Path) -> None:
    script = [step("submit_final_answer = print"), step("submit_final_answer('5')")]

    outputs = await play(make_loop(script, tmp_path, "max_steps=2"))

    assert (verdict(outputs), record(outputs)["answer"]) == ((0.0, "no_answer"), None)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (
            "import time\ntime.sleep(60)",
            "KeyboardInterrupt\ntime-out error, it did not end within its time limit\n</output>\n",
        ),
        ("print('x' * 10**8)", "all variables and files are gone"),
        (
            "import time\nnotepad.contents = lambda: time.sleep(60)",
            "`notepad` cannot be read: time-out error, it did not",
        ),
    ],
)
async def test_a_cell_that_takes_or_prints_too_much_is_ended_and_the_policy_goes_on(
    tmp_path: Path, code: str, text: str
) -> None:
    loop = make_loop([step(code), step("submit_final_answer('5')")], tmp_path)

    outputs = await play(loop)

    assert text in read(loop, 1)
    assert verdict(outputs) == (1.0, "accepted")


async def test_a_tool_that_fails_masks_the_trajectory_and_closes_its_session(tmp_path: Path) -> None:
    outputs = await play(make_loop([*NOTES[:2], step("try:\n    crash()\nexcept BaseException:\n    pass")], tmp_path))

    assert verdict(outputs) == (None, "tool_failure")
    assert "the database is down" in record(outputs)["failure"]
    assert await num_sessions() == 0


async def test_many_calls_of_one_cell_end_in_an_exception(tmp_path: Path) -> None:
    code = "for number in range(10_000):\n    add(number)"
    loop = make_loop([step(code), step("submit_final_answer('5')")], tmp_path, "pivot.rollout.max_calls_per_turn=5")

    outputs = await play(loop)

    assert [each["name"] for each in record(outputs)["calls"]] == ["add"] * 5 + ["submit_final_answer"]
    assert "RuntimeError" in read(loop, 1)


async def test_many_trajectories_at_once_have_a_notebook_each(tmp_path: Path) -> None:
    loops = [
        make_loop([step(f"x = {number} + 0"), step("submit_final_answer(str(x))")], tmp_path) for number in range(8)
    ]

    played = await asyncio.gather(*(play(loop, [str(number)]) for number, loop in enumerate(loops)))

    assert [verdict(outputs) for outputs in played] == [(1.0, "accepted")] * 8
    assert await num_sessions() == 0
