"""The example web in the real browser: every task is done, and demonstrations are what the agent loop shows."""

import asyncio
from pathlib import Path

import pytest

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision

from transformers import Qwen2Config  # noqa: E402

from examples.quickstart.policy import encode  # noqa: E402
from examples.web.agent import WebHabits  # noqa: E402
from examples.web.demonstrations import goal_of  # noqa: E402
from examples.web.episodes import TOOLS, play_all, recorded  # noqa: E402
from examples.web.policy import (  # noqa: E402
    MAX_OBSERVATION_TOKENS,
    MAX_PROMPT_TOKENS,
    MAX_RESPONSE_TOKENS,
    MAX_TURN_TOKENS,
    WORKFLOW_TOKENS,
    build_tokenizer,
    with_shown_workflows,
)
from examples.web.rows import episodes_of  # noqa: E402
from examples.web.tasks import SEEN, TASKS  # noqa: E402
from tests.support.scripted_engine import Said, call, loop_of, rollout_config, row  # noqa: E402
from tests.support.web import needs_browser  # noqa: E402
from verl_pivot.environments.miniwob_rows import MiniwobProblem  # noqa: E402
from verl_pivot.rollout.workflow_ranking import WorkflowRanking  # noqa: E402
from verl_pivot.rollout.workflows import Workflow, step_of  # noqa: E402
from verl_pivot.types import Role, Trajectory  # noqa: E402

pytestmark = [needs_browser, pytest.mark.timeout(600)]
EPISODES = episodes_of(TASKS, 41, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("web") / "careful"


@pytest.fixture(scope="module")
def careful(folder: Path) -> list[Trajectory]:
    return recorded(folder, EPISODES, WebHabits())


def workflow_of(trajectory: Trajectory) -> Workflow:
    steps = (step_of(call.name, call.arguments) for each in trajectory.messages for call in each.tool_calls)
    return Workflow(goal=goal_of(trajectory), steps=tuple(steps))


def test_a_careful_agent_solves_every_task(careful: list[Trajectory]) -> None:
    assert {str(each.metadata["task"]): each.passed for each in careful} == dict.fromkeys(TASKS, True)


def test_recordings_are_taken_up_again_and_those_of_other_habits_are_refused(
    folder: Path, careful: list[Trajectory]
) -> None:
    written = (folder / "0.jsonl").stat().st_mtime_ns

    assert recorded(folder, EPISODES, WebHabits()) == careful
    assert (folder / "0.jsonl").stat().st_mtime_ns == written
    with pytest.raises(SystemExit, match="has other episodes: give another --out"):
        recorded(folder, EPISODES, WebHabits(early=1.0))


def test_an_agent_that_stops_at_once_has_opened_the_page_and_solved_nothing() -> None:
    (stopped,) = asyncio.run(play_all([MiniwobProblem("enter-text", 41)], WebHabits(early=1.0)))

    assert [each.role for each in stopped.messages] == [Role.USER, Role.ASSISTANT]
    assert stopped.passed is False
    assert stopped.messages[0].content.startswith(f"{goal_of(stopped)}\n\n[1] {goal_of(stopped)}\n")


def test_limits_hold_the_demonstrations_and_the_workflows_above_them(careful: list[Trajectory]) -> None:
    workflows = [workflow_of(each) for each in careful if each.metadata["task"] in SEEN]
    tokenizer, ranking = build_tokenizer(careful, workflows), WorkflowRanking(workflows, 1)

    for each in careful:
        below = with_shown_workflows(each, ranking, tokenizer)
        sizes = [len(tokenizer.encode(message.content, add_special_tokens=False)) for message in each.messages]
        roles = [message.role for message in each.messages]
        observations = [size for role, size in zip(roles, sizes, strict=True) if role is Role.TOOL]
        prompt = Trajectory(id="prompt", messages=below.messages[:2], tools=each.tools)
        whole, asked = (len(encode(tokenizer, some).input_ids) for some in (below, prompt))
        assert below.messages[0].role is Role.SYSTEM
        assert len(tokenizer.encode(below.messages[0].content, add_special_tokens=False)) <= WORKFLOW_TOKENS
        assert max(observations, default=0) <= MAX_OBSERVATION_TOKENS
        assert asked <= MAX_PROMPT_TOKENS
        assert whole - asked + MAX_TURN_TOKENS <= MAX_RESPONSE_TOKENS


async def test_a_demonstration_has_the_tokens_that_the_agent_loop_makes(
    careful: list[Trajectory], tmp_path: Path
) -> None:
    from verl_pivot.rollout.tool_loop import ToolLoop

    tokenizer = build_tokenizer(careful, [])
    tokenizer.save_pretrained(tmp_path)
    Qwen2Config(vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    demonstrated = next(each for each in careful if each.metadata["task"] == "enter-password")
    calls = [each for message in demonstrated.messages for each in message.tool_calls]
    said = [Said(call(each.name, **each.arguments)) for each in calls]
    asked = row(goal_of(demonstrated), metadata=MiniwobProblem("enter-password", 41).metadata)
    shown = encode(tokenizer, demonstrated).input_ids

    for _ in range(5):  # on a busy machine an element may not be ready in time, and the loop shows it
        loop = loop_of(ToolLoop, rollout_config(tmp_path, f"pivot.rollout.tools={TOOLS}"), said)
        output = await loop.run({"temperature": 1.0}, **asked)
        played = [*output.prompt_ids, *output.response_ids]
        if "Timeout" not in tokenizer.decode(played):
            break

    assert tokenizer.decode(played) == tokenizer.decode(shown[: len(played)])
    assert played == shown[: len(played)]
    assert tokenizer.decode(shown[len(played) :]) == "\n"
