"""inspect.history and inspect.opened: outcomes of a prompt at each step; prompt and sampled tokens of a rollout."""

from pathlib import Path

import pytest

from tests.support.dumped_runs import make_line, read_index, write_run
from verl_pivot.errors import ConfigError
from verl_pivot.inspect.history import FollowedPrompt, PromptAtStep, history
from verl_pivot.inspect.opened import OpenedRow, open_rollout
from verl_pivot.inspect.queries import RolloutPlace


def test_outcomes_of_a_prompt_are_counted_by_run_and_step(tmp_path: Path) -> None:
    def lines(step: int, *scores: float | None) -> list[bytes]:
        return [make_line(f"a_{at}_0", score, step=step, prompt_id="p") for at, score in enumerate(scores)]

    other = make_line("b_0_0", 1.0, step=1, prompt_id="q")
    first = write_run(tmp_path / "first", {1: [*lines(1, 0.0, 1.0, None), other], 5: lines(5, 1.0, 1.0)})
    second = write_run(tmp_path / "second", {2: lines(2, None)})

    assert history(read_index(first, second), FollowedPrompt(prompt_id="p")) == [
        PromptAtStep(0, "training", 1, 3, 2, 0.5),
        PromptAtStep(0, "training", 5, 2, 2, 1.0),
        PromptAtStep(1, "training", 2, 1, 0, None),
    ]


def test_a_pivot_is_followed_by_its_trajectory_and_turn(tmp_path: Path) -> None:
    places = [("shop-17", 3), ("shop-17", 4), ("shop-18", 3)]
    lines = [make_line(f"{at}_0_0", 1.0, trajectory_id=name, turn_index=turn) for at, (name, turn) in enumerate(places)]
    index = read_index(write_run(tmp_path, {1: lines}))

    (found,) = history(index, FollowedPrompt(trajectory_id="shop-17", turn_index=4))
    assert (found.step, found.num_rollouts) == (1, 1)
    with pytest.raises(ConfigError, match="name a prompt_id, or a trajectory_id with its turn_index"):
        history(index, FollowedPrompt(trajectory_id="shop-17"))


def test_a_rollout_has_the_prompt_of_its_group_and_the_spans_of_its_mask(tmp_path: Path) -> None:
    prompts = [[{"role": "user", "content": text}] for text in ("first", "second")]
    lines = [
        make_line("a_0_0", prompt=prompts[0]), make_line("a_1_0", mask=[1, 1, 0, 1], turn_ends=[2], seconds=[0.5]),
        make_line("a_2_0", prompt=prompts[1]), make_line("a_3_0"), make_line("b_0_0"),
    ]  # fmt: skip
    index = read_index(write_run(tmp_path, {1: lines}))

    found = [index.find(RolloutPlace(0, "rollouts/pivot/1.jsonl", line)) for line in range(1, 6)]
    opened = [open_rollout(index, each) for each in found]

    assert [each.prompt for each in opened] == [prompts[0], prompts[0], prompts[1], prompts[1], []]
    assert opened[1].rows == [OpenedRow(num_turns=1, sampled_spans=[(0, 2), (3, 4)], turn_ends=[2])]
    assert opened[1].turns[0].seconds == 0.5


def test_a_rollout_of_a_large_group_has_the_prompt_of_its_first_line(tmp_path: Path) -> None:
    prompt = [{"role": "user", "content": "2 + 3?"}]
    lines = [
        make_line(f"a_{number}_0", mask=[1], turn_ends=[1], prompt=None if number else prompt) for number in range(300)
    ]
    index = read_index(write_run(tmp_path, {1: lines}))

    opened = open_rollout(index, index.find(RolloutPlace(0, "rollouts/pivot/1.jsonl", 300)))

    assert [message["content"] for message in opened.prompt] == ["2 + 3?"]
