"""MiniWoB++ in tools files: tasks by name and seed, the raw reward as the outcome, and pages that are left."""

import json
from typing import Any

import pytest

from tests.support.web import needs_browser
from verl_pivot.browser.shared import shared_browser
from verl_pivot.environments.miniwob import miniwob_rows, miniwob_tasks
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.tools.calls import CallOutcome
from verl_pivot.tools.toolset import RolloutTools, Toolset
from verl_pivot.types import EnvironmentReturn, ToolCall

pytestmark = [needs_browser, pytest.mark.timeout(200)]


def miniwob(**options: Any) -> Toolset:
    made = Toolset("tools.yaml")
    made.add_entry({"environment": "miniwob", **options})
    return made


def of(task: str, seed: int = 3) -> dict[str, Any]:
    return {"metadata": json.dumps({"task": task, "seed": seed})}


async def take(tools: RolloutTools, name: str, **arguments: Any) -> CallOutcome:
    (outcome,) = await tools.toolbox.run([ToolCall(name=name, arguments=arguments)])
    assert outcome.observation is not None, outcome.failure
    return outcome


def text(outcome: CallOutcome) -> str:
    assert outcome.observation is not None
    return outcome.observation.text


async def test_the_right_button_is_rewarded_and_the_wrong_one_punished_without_decay_by_time() -> None:
    for number, reward, reason in ((2, 1.0, "solved"), (5, -1.0, "failed")):
        async with miniwob().open(of("click-button")) as tools:
            assert tools.opening == (
                'Task: Click on the "no" button.\n\n[1] Click on the "no" button.\n[2] button "no"\n[3] textbox\n'
                '[4] erat enim ipsum\n[5] button "Okay"\n[6] button "okay"\n[7] aenean pulvinar pellentesque'
            )
            done = await take(tools, "click", number=number)

            assert text(done) == f"The task has ended: {reason}."
            assert await tools.score(None) == EnvironmentReturn(score=reward, reason=reason)
            assert "the task has ended" in text(await take(tools, "click", number=number))


async def test_a_seed_is_a_problem_and_all_rollouts_of_a_row_have_the_same() -> None:
    async with miniwob().open(of("enter-text", 1)) as one, miniwob().open(of("enter-text", 1)) as same:
        async with miniwob().open(of("enter-text", 2)) as other:
            assert one.opening == same.opening != other.opening


async def test_an_episode_that_is_given_up_has_the_reward_of_time_that_ran_out() -> None:
    async with miniwob().open(of("click-button")) as tools:
        assert await tools.score(None) == EnvironmentReturn(score=-1.0, reason="environment_unfinished")


async def test_a_mistake_is_a_sentence_and_the_episode_goes_on() -> None:
    async with miniwob().open(of("click-button")) as tools:
        assert "the number 99 is not in the observation" in text(await take(tools, "click", number=99))
        assert "element 2: Element is not an <input>" in text(await take(tools, "fill", number=2, text="x"))
        assert 'Unknown key: "Foo"' in text(await take(tools, "press", key="Foo"))
        assert text(await take(tools, "click", number=2)) == "The task has ended: solved."


async def test_a_browser_that_dies_masks_its_own_rollouts_and_the_next_one_has_a_fresh_one() -> None:
    toolset = miniwob()
    async with toolset.open(of("click-button")) as tools:
        (environment,) = tools._environments
        host = await shared_browser(environment._browser)  # type: ignore[attr-defined]
        assert host.current is not None
        host.current.kill()
        (outcome,) = await tools.toolbox.run([ToolCall(name="click", arguments={"number": 2})])
        verdict = await tools.score(None)
    async with toolset.open(of("click-button")) as tools:
        assert text(await take(tools, "click", number=2)) == "The task has ended: solved."

    assert outcome.failure
    assert verdict is not None
    assert verdict.score is None


def test_rows_have_a_task_and_a_seed_each() -> None:
    rows = list(miniwob_rows(["click-test", "click-link"], range(5, 7)))

    assert [json.loads(str(each["metadata"])) for each in rows] == [
        {"task": "click-test", "seed": 5},
        {"task": "click-link", "seed": 5},
        {"task": "click-test", "seed": 6},
        {"task": "click-link", "seed": 6},
    ]
    assert len(miniwob_tasks()) > 100


def test_a_task_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="MiniWoB\\+\\+ has no task 'click-me'; its tasks are ascending-numbers, "):
        list(miniwob_rows(["click-me"], [0]))
    with pytest.raises(DataError, match="must be a task of MiniWoB"):
        miniwob().open(of("../core/core"))


async def test_pages_of_a_folder_are_opened_by_the_rows_address_and_others_are_not(tmp_path: Any) -> None:
    (tmp_path / "index.html").write_text("<a href=next.html>next</a> <a href='http://evil.example/'>out</a>")
    (tmp_path / "next.html").write_text("<h1>second</h1>")
    toolset = Toolset("tools.yaml")
    toolset.add_entry({"environment": "browser", "pages": str(tmp_path)})

    async with toolset.open({"metadata": json.dumps({"url": "/index.html"})}) as tools:
        assert '[1] link "next"' in tools.opening
        assert 'heading "second"' in text(await take(tools, "click", number=1))
        assert '[1] link "next"' in text(await take(tools, "back")) or '] link "next"' in text(
            await take(tools, "back")
        )
        assert "ERR_FAILED" in text(await take(tools, "goto", url="file:///etc/passwd"))
        assert "begins with http" in text(await take(tools, "goto", url="javascript:alert(1)"))
        assert await tools.score(None) is None


def test_an_environment_without_pages_or_hosts_is_refused() -> None:
    with pytest.raises(ConfigError, match="give `pages`, a folder, or `hosts`"):
        Toolset("tools.yaml").add_entry({"environment": "browser"})
