"""The agent loop `pivot_notebook` over a scripted engine: tokens, masks, logprobs, rows and texts, branch by branch."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_notebook import FakeNotebook, open_fake_notebook
from tests.support.scripted_engine import Said, loop_of, rollout_config, row, scripted_model
from verl_pivot.rewards.step_returns import StepReturnOutput
from verl_pivot.rollout.notebook_loop import NotebookLoop
from verl_pivot.tools.workspace import Workspace

FUNCTIONS = "tests.support.tool_functions"
SAMPLING = {"temperature": 1.0, "logprobs": True}
THOUGHT = "I think about it."


@pytest.fixture(autouse=True)
def fake_notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Workspace, "open_session", open_fake_notebook)
    FakeNotebook.opened = []
    yield
    assert all(notebook.is_closed for notebook in FakeNotebook.opened)


def step(code: str, thought: str = THOUGHT) -> Said:
    """A turn of the right form, which the engine stops at `</code>`."""
    return Said(f"<think>{thought}</think><code>{code}</code>", ended=False)


def make_loop(script: Sequence[Said | str], folder: Path, *overrides: str, **client: Any) -> NotebookLoop:
    """A NotebookLoop with the tools add, refuse, crash and shout."""
    path = folder / "tools.yaml"
    path.write_text("".join(f"- function: {FUNCTIONS}:{name}\n" for name in ("add", "refuse", "crash", "shout")))
    config = rollout_config(
        scripted_model(), f"pivot.rollout.tools={path}", *(f"pivot.notebook.{each}" if "." not in each else each for each in overrides),
        method="l0",
    )  # fmt: skip
    loop: NotebookLoop = loop_of(NotebookLoop, config, script, **client)
    return loop


async def play(loop: NotebookLoop, answers: Sequence[str] = ("5",), **columns: Any) -> list[StepReturnOutput]:
    truth = {"reward_model": {"ground_truth": {"target": list(answers)}}}
    return await loop.run(SAMPLING, **row(**truth, **columns))


async def test_a(tmp_path: Path) -> None:
    loop = make_loop([step("x = add(2, b=3)\nx"), step("submit_final_answer(x)")], tmp_path)
    outputs = await play(loop)
    print(loop.tokenizer.decode(outputs[0].prompt_ids))
    print(loop.tokenizer.decode(outputs[0].response_ids))
    print(outputs[0].extra_fields)
    assert 0
