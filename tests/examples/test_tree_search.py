"""The example tree_search: the shop's progress, its measures and report, and every arm's command."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision


from examples.quickstart.environment import ShopEnvironment  # noqa: E402
from examples.quickstart.tasks import FAMILIES, Task, make_task, record  # noqa: E402
from examples.success import Played, Result  # noqa: E402
from examples.tree_search.measures import StepTokens, sampled_until  # noqa: E402
from examples.tree_search.report import Trained, cost_rows, show_all, write  # noqa: E402
from examples.tree_search.training import ARMS, make_arm  # noqa: E402
from tests.support.composing import checked_config  # noqa: E402
from verl_pivot.types import ToolCall, Trajectory  # noqa: E402

TASKS = {task.family: task for seed in range(200) for task in [make_task(seed, held_out=True)]}


def calls_of(trajectory: Trajectory) -> list[ToolCall]:
    return [call for message in trajectory.messages for call in message.tool_calls]


async def progress_after_each(task: Task, calls: Sequence[ToolCall]) -> list[float]:
    """Progress before the first call, and after each call."""
    environment = ShopEnvironment(task.metadata)
    seen = [environment.progress()]
    for call in calls:
        await getattr(environment, call.name)(**call.arguments)
        seen.append(environment.progress())
    await environment.close()
    return seen


@pytest.mark.parametrize("family", FAMILIES)
async def test_every_call_of_an_expert_is_progress_and_the_last_one_completes_it(family: str) -> None:
    task = TASKS[family]
    for seed in range(5):
        seen = await progress_after_each(task, calls_of(record(task, random.Random(seed))))

        assert seen[0] == 0.0
        assert seen[-1] == 1.0
        assert seen == sorted(set(seen))


async def test_a_call_that_tells_nothing_of_the_task_is_no_progress() -> None:
    task = TASKS["count"]
    guess = ToolCall(name="run_sql", arguments={"query": f"select count(*) from orders where customer_id = {10**6}"})
    find, query = calls_of(record(task, random.Random(0)))

    assert await progress_after_each(task, [guess, find, guess, query]) == [0.0, 0.0, 0.5, 0.5, 1.0]


async def test_progress_is_lost_with_a_refund_that_nobody_wants() -> None:
    task = TASKS["refund_item"]
    other = next(order for order in task.orders if order not in task.requested)
    wrong = ToolCall(name="refund", arguments={"order_id": other.id})
    calls = calls_of(record(task, random.Random(0)))

    assert (await progress_after_each(task, [*calls[:-1], wrong, calls[-1]]))[-2:] == [0.0, 0.0]


def played(prompt_id: str, em: float) -> Played:
    return Played(prompt_id=prompt_id, em=em, num_calls=2)


def step_tokens(step: int, sampled: int) -> StepTokens:
    return StepTokens(step=step, kept=10, sampled=sampled, mean_score=step / 10)


def test_trainings_are_compared_at_equal_steps_and_their_tokens_are_counted(tmp_path: Path) -> None:
    before, after = [played("a", 1.0), played("b", 0.0)], [played("a", 1.0), played("b", 1.0)]
    trainings = [
        Trained(arm="tree_search", seed=0, steps=[step_tokens(1, 40), step_tokens(2, 50)], evaluations={2: after}),
        Trained(
            arm="plain", seed=0, steps=[step_tokens(1, 10), step_tokens(2, 10)], evaluations={1: before, 2: before}
        ),
    ]
    results = [Result(arm="base", seed=0, held_out=before, training={})]
    console = Console(record=True, width=200)
    found = cost_rows(trainings)
    write(results, trainings, ["gap."], tmp_path)
    show_all(results, trainings, ["gap."], console)

    assert [(row.arm, row.step, row.success, row.sampled, row.kept) for row in found] == [
        ("plain", 1, 0.5, 10, 10), ("plain", 2, 0.5, 20, 20), ("tree_search", 2, 1.0, 90, 20),
    ]  # fmt: skip
    assert [row.over_plain and row.over_plain.value for row in found] == [None, None, 0.5]
    assert found[-1].training_score == pytest.approx(0.15)
    assert sampled_until(trainings[0].steps, 1) == 40
    assert json.loads((tmp_path / "summary.json").read_text())["trainings"][2]["over_plain"]["value"] == 0.5
    assert (tmp_path / "tree_search.png").stat().st_size > 0
    assert "gap." in console.export_text()


@pytest.mark.parametrize("name", ARMS)
def test_every_command_composes(name: str, tmp_path: Path) -> None:
    arm = make_arm(name, tmp_path / "policy", tmp_path, 1, num_steps=20, num_held_out=5)
    config = checked_config(arm.command[3:])

    searches = name.startswith("tree_search")
    assert ("tree_search" in config.pivot) is searches
    assert not searches or config.pivot.tree_search.scored_by == ("outcome" if name.endswith("outcome") else "progress")
    assert config.trainer.val_only is (name == "base")
