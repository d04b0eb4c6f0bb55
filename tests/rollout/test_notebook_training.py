"""The stock trainer with +method=l0: steps in a real notebook, with rollouts that a training step leaves for later."""

import inspect
from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from tests.support.launching import LAUNCH_SECONDS, launch, step_metrics, training
from tests.support.sandbox_machine import needs_sandbox
from tests.support.scripted_engine import Said, loop_of, rollout_config, row
from tests.support.tiny_model import teach_all, write_model
from verl_pivot.rewards.step_returns import StepReturnOutput
from verl_pivot.rewards.steps import AnswerScores, StepFacts, StepRule, step_returns
from verl_pivot.rollout import notebook_prompt

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LAUNCH_SECONDS + 200), needs_sandbox]

QUESTION = "Add 1 and 2."
MAX_STEP_TOKENS = 64
STEPS = (
    "<think>I add the two.</think><code>\nx = add(1, 2)\n</code>",
    "<think>I look at it.</think><code>\nprint(x)\n</code>",
    "<think>I keep it too.</think><code>\ny = int(x)\n</code>",
    "<think>I can answer.</think><code>\nsubmit_final_answer(str(y))\n</code>",
)
TOOLS = '''
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b
'''


def overrides(folder: Path, window: int) -> list[str]:
    """Settings of the notebook, for the launch and for the scripted loop from which the policy is taught."""
    return [
        f"pivot.rollout.tools={folder}/tools.yaml",
        f"pivot.notebook.max_context_tokens={window}",
        f"pivot.notebook.max_step_tokens={MAX_STEP_TOKENS}",
        "pivot.notebook.trim=oldest",
        "pivot.notebook.trim_keep=0.95",
        "pivot.notebook.max_steps=5",
        "data.max_prompt_length=2048",
        "actor_rollout_ref.rollout.skip_tokenizer_init=False",
    ]


async def shown(folder: Path, model: Path, window: int) -> Sequence[StepReturnOutput]:
    """Rows of the trajectory that the policy is taught."""
    from verl_pivot.rollout.notebook_loop import NotebookLoop

    config = rollout_config(model, *overrides(folder, window), method="l0")
    loop = loop_of(NotebookLoop, config, [Said(text, ended=False) for text in STEPS])
    truth = {"reward_model": {"ground_truth": {"target": ["3"]}}}
    outputs: Sequence[StepReturnOutput] = await loop.run(
        {"logprobs": True}, **row(QUESTION, is_validation=False, **truth)
    )
    return outputs


async def taught(folder: Path) -> tuple[Path, int]:
    """A model that was taught the four steps, and a window with room for three of them."""
    (folder / "tools.py").write_text(TOOLS)
    (folder / "tools.yaml").write_text(f"- function: {folder}/tools.py:add\n")
    words = [*STEPS * 20, inspect.getsource(notebook_prompt), TOOLS]
    model = write_model(folder / "model", corpus=words)
    (whole,) = await shown(folder, model, 8192)
    window = len(whole.prompt_ids) + whole.turn_ends[2] + MAX_STEP_TOKENS - 1
    outputs = await shown(folder, model, window)
    assert [len(each.turn_ends) for each in outputs] == [3, 1]
    shown_rows = [(o.prompt_ids + o.response_ids, [0] * len(o.prompt_ids) + o.response_mask) for o in outputs]
    return teach_all(model, shown_rows, num_steps=120), window


def write_questions(path: Path, number: int) -> Path:
    rows = [
        {
            "data_source": "made_up",
            "prompt": [{"role": "user", "content": QUESTION}],
            "ability": "qa",
            "reward_model": {"style": "rule", "ground_truth": {"target": ["3"]}},
            "extra_info": {"index": index},
        }
        for index in range(number)
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def check(metrics: dict[str, float]) -> None:
    """Check the metrics of a step of four trajectories that all go as they were taught."""
    names = ("em", "f1", "has_answer", "format", "execution", "steps", "trims", "rows")
    assert {name: metrics[f"l0/{name}"] for name in names} == {
        "em": 1.0, "f1": 1.0, "has_answer": 1.0, "format": 1.0, "execution": 1.0, "steps": 4.0, "trims": 1.0,
        "rows": 16,
    }  # fmt: skip
    assert metrics["rollout/calls_per_trajectory"] == 2.0  # of add and submit_final_answer
    assert metrics["verifier/outcome/accepted"] == 1.0
    assert metrics["rollout/masked_rate"] == metrics["rollout/text_differs_rate"] == 0.0
    assert metrics["training/rollout_probs_diff_mean"] < 0.005  # verl's own bound: tokens, mask and logprobs agree
    assert metrics["actor/kl_coef"] == 0.001


async def test_two_steps_of_the_stock_trainer_in_a_notebook_with_a_trim(tmp_path: Path) -> None:
    """Each step of the trainer has four trajectories of four steps, a row for each step, and a trim before the fourth.

    Half of the groups are replaced, since all answers of a group are right.
    """
    model, window = await taught(tmp_path)
    questions = write_questions(tmp_path / "questions.parquet", 64)

    output = launch(
        tmp_path,
        "+method=l0",
        "+local=cpu",
        "pivot.trial_steps=null",
        *training(model, questions, batch_size=2, n=2, num_steps=2),
        *overrides(tmp_path, window)[:-1],
        "pivot.notebook.rows=step",
        "+tail=partial",
        f"data.val_files={questions}",
        "data.val_max_samples=2",
        "trainer.val_before_train=False",
        "trainer.test_freq=2",
        "actor_rollout_ref.rollout.top_k=1",  # greedy, so that the model gives what it was taught
        timeout_seconds=2 * LAUNCH_SECONDS,
    )

    assert output.returncode == 0, output.stdout[-3000:] + output.stderr
    metrics = step_metrics(output.stdout)
    assert sorted(set(metrics) - {0}) == [1, 2]
    check(metrics[1])
    assert metrics[2]["training/rollout_probs_diff_mean"] < 0.005
    returns = step_returns([StepFacts(has_form=True, ran=True)] * 4, AnswerScores(1.0, 1.0, True), StepRule())
    assert metrics[1]["critic/score/mean"] == pytest.approx(sum(returns) / 4, rel=1e-4)
    assert metrics[2]["val-core/made_up/reward/mean@1"] == 1.0  # validation scores the answer alone
    assert metrics[2]["val-aux/made_up/em/mean@1"] == 1.0
