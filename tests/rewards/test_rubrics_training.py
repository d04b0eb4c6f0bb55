"""The stock trainer with `+method=rubrics`: reports that a server scores, and criteria that evolve over two steps."""

import json
from pathlib import Path

import pytest

from tests.support.chat_server import said
from tests.support.fake_engine import Answer, fake_server
from tests.support.fake_judge import outside_and_inside
from tests.support.launching import LAUNCH_SECONDS, launch, step_metrics, training
from tests.support.sums_training import TOOLS, policy_of_own_process, write_tasks, write_tools
from verl_pivot.data.step_state import StepState, state_path
from verl_pivot.rewards.reward_terms import dumped_terms
from verl_pivot.types import Json, JsonObject

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LAUNCH_SECONDS + 200)]


def judge(path: str, body: JsonObject) -> Answer:
    """Give two points to a report of an even number of characters, and write one new criterion for each group."""
    outside, inside = outside_and_inside(body)
    if "Write 1 to 5 new criteria" in outside:
        number = len(inside[-1])
        return said(json.dumps({"criteria": [{"text": f"It differs as {number}.", "weight": 1}]}))
    points = 2 * (len(inside[-1]) % 2 == 0)
    return said(json.dumps({"points": [{"number": 1, "points": points}]}))


async def test_two_steps_of_grpo_by_criteria_of_which_some_evolve(tmp_path: Path) -> None:
    tools = write_tools(tmp_path, TOOLS.split("    async def score")[0])
    model = policy_of_own_process(tmp_path)
    criteria: list[Json] = [{"text": "It names the sum.", "weight": 1.0}, {"text": "It is whole.", "weight": 2.0}]
    tasks = write_tasks(tmp_path, 2, criteria=criteria)

    with fake_server(judge) as server:
        output = launch(
            tmp_path,
            "+method=rubrics",
            "+local=cpu",
            "pivot.trial_steps=null",
            *training(model, tasks, batch_size=2, n=4, num_steps=2),
            f"data.val_files={tasks}",
            f"pivot.rollout.tools={tools}",
            "pivot.rollout.max_turns=2",
            "pivot.rollout.max_turn_tokens=24",
            "pivot.rewards=dr_tulu_uncited",
            f"pivot.rubrics.base_url={server.url}",
            "pivot.rubrics.model=judge",
            "pivot.rubrics.answer_format=text",
            "trainer.val_before_train=True",
            f"trainer.rollout_data_dir={tmp_path}/dump",
            f"trainer.default_local_dir={tmp_path}/checkpoints",
            "actor_rollout_ref.actor.ppo_mini_batch_size=2",
            "actor_rollout_ref.rollout.temperature=3.0",  # so that the reports of a group differ
            "data.max_prompt_length=512",
            "data.max_response_length=256",
        )

    assert output.returncode == 0, output.stdout[-3000:]
    assert (
        "verl-pivot, note: pivot.rewards=dr_tulu_uncited: a rollout's reward is unbounded at worst and unbounded at "
        "best" in output.stdout + output.stderr
    )
    metrics = step_metrics(output.stdout)
    assert sorted(metrics) == [0, 1, 2]  # 0 is the validation before training
    for step in (metrics[1], metrics[2]):
        assert step["rewards/undecided_rate"] == 0.0
        assert 0.0 <= step["rewards/rubric/value"] <= 1.0
        assert step["rewards/rubric/paid"] == pytest.approx(0.6 * step["rewards/rubric/value"], abs=1e-3)
        assert "rubrics/criteria" in step
    lines = [json.loads(line) for line in (tmp_path / "dump" / "pivot" / "1.jsonl").read_text().splitlines()]
    assert len(lines) == 8
    for line in lines:
        terms = dumped_terms(line["reward_info"])
        assert terms is not None
        assert terms.total == pytest.approx(line["score"], abs=1e-6)
        assert [term.name for term in terms.terms] == ["rubric", "format", "searches"]
        assert len(json.loads(line["reward_info"]["criteria"])["criteria"]) >= 2
    state = StepState(state_path(tmp_path / "checkpoints", "rubrics"))
    (query,) = state.names()
    entry = state.read(query)
    assert entry is not None
    assert {each["born"] for each in entry.value} <= {1, 2}  # type: ignore[index, union-attr, call-overload]
    questions = [str(request) for request in server.requests]
    assert any("Write 1 to 5 new criteria" in question for question in questions)
