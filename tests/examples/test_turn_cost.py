"""The example turn_cost: what its arms pay, the outcome in their dumps, the plot, and every arm's command."""

from pathlib import Path

import pytest
import yaml

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision


from examples.success import Played, Result, success_rows  # noqa: E402
from examples.turn_cost.run import draw, outcome  # noqa: E402
from examples.turn_cost.training import ARMS, make_arm  # noqa: E402
from tests.support.composing import checked_config  # noqa: E402
from verl_pivot.data.rollout_dumps import DumpedOutcome  # noqa: E402


def test_the_outcome_is_what_the_task_was_paid_without_the_cost_of_its_turns() -> None:
    paid = {"paid/task": 1.0, "paid/turns": -0.2}

    assert outcome(DumpedOutcome(uid="a_0_0", score=0.8, is_kept=True, reward_info=paid)) == 1.0
    assert outcome(DumpedOutcome(uid="a_0_0", score=None, is_kept=True)) is None


def test_the_plot_has_a_point_for_each_unit(tmp_path: Path) -> None:
    held_out = [Played(prompt_id="a", em=1.0, num_calls=2)]
    results = [Result(arm=arm, seed=0, held_out=held_out, training={}) for arm in ("base", "free")]

    draw(success_rows(results, list(ARMS)), tmp_path / "plot.png")

    assert (tmp_path / "plot.png").stat().st_size > 0


@pytest.mark.parametrize("name", ARMS)
def test_every_command_composes_with_rewards_that_charge_as_the_arm_says(name: str, tmp_path: Path) -> None:
    arm = make_arm(name, tmp_path / "policy", tmp_path, 1, num_steps=20, num_held_out=5)
    config = checked_config(arm.command[3:])
    terms = yaml.safe_load(Path(config.pivot.rewards).read_text())["terms"]

    assert terms["task"] == {"value": "outcome", "bounds": [0, 1]}
    assert ("turns" in terms) is (name not in ("base", "free"))
    if "turns" in terms:
        paid_on, weight = name.split("_")
        assert terms["turns"] == {"value": "turns", "scale": "max_turns", "weight": -float(weight), "paid_on": paid_on}
