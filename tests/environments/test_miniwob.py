"""MiniWoB++ in tools files: tasks by name and seed, the raw reward as the outcome, rows, and lost browsers."""

import json
import re
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from tests.support.web import needs_browser, one_browser
from verl_pivot.browser.settings import BrowserSettings, PageSettings
from verl_pivot.browser.shared import opened_page, shared_browser
from verl_pivot.environments.browser_source import BrowserEntry, BrowserSource
from verl_pivot.environments.miniwob import FOLDER, begun_sentence, miniwob_tasks, pages_folder
from verl_pivot.environments.miniwob_rows import (
    MiniwobProblem,
    miniwob_problems,
    miniwob_row,
    read_sentences,
    write_miniwob_rows,
)
from verl_pivot.errors import BrowserError, ConfigError, DataError
from verl_pivot.rollout.workflows import WorkflowTask, task_of
from verl_pivot.tools.calls import CallOutcome
from verl_pivot.tools.rollout_tools import RolloutTools
from verl_pivot.tools.toolset import Toolset
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


@one_browser
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


@one_browser
async def test_a_seed_is_a_problem_and_all_rollouts_of_a_row_have_the_same() -> None:
    async with (
        miniwob().open(of("enter-text", 1)) as one,
        miniwob().open(of("enter-text", 1)) as same,
        miniwob().open(of("enter-text", 2)) as other,
    ):
        assert one.opening == same.opening != other.opening


@one_browser
async def test_an_episode_that_is_given_up_has_the_reward_of_time_that_ran_out() -> None:
    async with miniwob().open(of("click-button")) as tools:
        assert await tools.score(None) == EnvironmentReturn(score=-1.0, reason="environment_unfinished")


@one_browser
async def test_a_reward_that_is_no_number_is_that_of_a_failure() -> None:
    async with miniwob().open(of("bisect-angle")) as tools:
        (environment,) = tools._environments
        assert environment._page is not None  # type: ignore[attr-defined]
        await environment._page.evaluate("core.endEpisode(NaN)")  # type: ignore[attr-defined]
        done = await take(tools, "press", key="a")

        assert text(done) == "The task has ended: failed."
        assert await tools.score(None) == EnvironmentReturn(score=-1.0, reason="failed")


@one_browser
async def test_a_mistake_is_a_sentence_and_the_episode_goes_on() -> None:
    async with miniwob().open(of("click-button")) as tools:
        assert "the number 99 is not in the observation" in text(await take(tools, "click", number=99))
        assert "element 2: Element is not an <input>" in text(await take(tools, "fill", number=2, text="x"))
        assert 'Unknown key: "Foo"' in text(await take(tools, "press", key="Foo"))
        assert text(await take(tools, "click", number=2)) == "The task has ended: solved."


@one_browser
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


BUTTON = MiniwobProblem("click-button", 3)
SENTENCE = 'Click on the "no" button.'


def test_episodes_are_tasks_in_turn_for_each_seed() -> None:
    assert miniwob_problems(["click-test", "click-link"], range(5, 7)) == [
        ("click-test", 5), ("click-link", 5), ("click-test", 6), ("click-link", 6),
    ]  # fmt: skip
    assert len(miniwob_tasks()) > 100


def test_the_users_message_of_a_row_is_the_sentence_alone_by_which_workflows_are_found() -> None:
    row = miniwob_row(BUTTON, SENTENCE, 4)
    prompt: Any = row["prompt"]

    assert json.loads(str(row["metadata"])) == {"task": "click-button", "seed": 3}
    assert row["extra_info"] == {"index": 4, "task": "click-button"}
    assert [each["role"] for each in prompt] == ["system", "user"]
    assert task_of(prompt, row) == WorkflowTask(goal=SENTENCE)


@one_browser
async def test_an_opening_tells_the_task_unless_the_prompt_does() -> None:
    row = miniwob_row(BUTTON, SENTENCE, 0)
    prompts: list[Any] = [row["prompt"], json.dumps(row["prompt"]), [{"role": "user", "content": "Do the task."}], None]
    openings = []
    for prompt in prompts:
        async with miniwob().open({"metadata": row["metadata"], "prompt": prompt}) as tools:
            openings.append(tools.opening.partition("\n")[0])

    shown = f"[1] {SENTENCE}"
    assert openings == [shown, shown, f"Task: {SENTENCE}", f"Task: {SENTENCE}"]


@one_browser
async def test_an_episode_begins_after_its_page_has_loaded(tmp_path: Path) -> None:
    shutil.copytree(pages_folder(), tmp_path, dirs_exist_ok=True)
    page_file = tmp_path / "miniwob" / "click-button.html"
    late = "window.onload = () => setTimeout(() => core.startEpisode(), 500)"
    page_file.write_text(re.sub(r"window\.onload *= *function\(\) *\{[^}]*\}", late, page_file.read_text()))
    assert late in page_file.read_text()

    async with opened_page(PageSettings(), BrowserSettings(folders={FOLDER: tmp_path})) as page:
        assert await begun_sentence(page, *BUTTON) == SENTENCE


@one_browser
async def test_sentences_are_those_of_the_episodes() -> None:
    assert await read_sentences([BUTTON, MiniwobProblem("enter-text", 1)]) == [
        SENTENCE,
        'Enter "Jerald" into the text field and press Submit.',
    ]


def test_rows_are_written_and_a_command_that_was_interrupted_reads_no_sentence_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    episodes = miniwob_problems(["click-button", "enter-text"], range(3))
    asked: list[MiniwobProblem] = []
    falls_out = True

    async def read(block: Sequence[MiniwobProblem]) -> list[str]:
        if falls_out and asked:
            raise BrowserError("the page did not open")
        asked.extend(block)
        return [f"{each.task}, {each.seed}\u2028" for each in block]

    monkeypatch.setattr("verl_pivot.environments.miniwob_rows._BLOCK", 4)
    monkeypatch.setattr("verl_pivot.environments.miniwob_rows.read_sentences", read)
    out, done = tmp_path / "web.parquet", list[int]()
    with pytest.raises(BrowserError):
        write_miniwob_rows(episodes, out, done.append)
    falls_out = False

    assert write_miniwob_rows(episodes, out, done.append) == 6
    rows = pyarrow.parquet.read_table(out).to_pylist()
    assert asked == episodes
    assert done == [0, 4, 4, 2]
    assert [each["prompt"][1]["content"] for each in rows] == [f"{each.task}, {each.seed}\u2028" for each in episodes]
    assert [path.name for path in tmp_path.iterdir()] == ["web.parquet"]


def test_a_task_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="MiniWoB\\+\\+ has no task 'click-me'; its tasks are ascending-numbers, "):
        miniwob_problems(["click-me"], [0])
    with pytest.raises(DataError, match="must be a task of MiniWoB"):
        miniwob().open(of("../core/core"))


@one_browser
async def test_pages_of_a_folder_are_opened_by_the_rows_address_and_others_are_not(tmp_path: Any) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "index.html").write_text("<a href=next.html>next</a> <a href='http://evil.example/'>out</a>")
    (tmp_path / "next.html").write_text("<h1>second</h1>")
    toolset = Toolset("tools.yaml")
    toolset.add_entry({"environment": "browser", "pages": str(tmp_path)})

    async with toolset.open({"metadata": json.dumps({"url": "/index.html"})}) as tools:
        assert '[1] link "next"' in tools.opening
        assert "there is no page to go back to" in text(await take(tools, "back"))
        assert 'heading "second"' in text(await take(tools, "click", number=1))
        assert '] link "next"' in text(await take(tools, "back"))
        assert "ERR_FAILED" in text(await take(tools, "goto", url="file:///etc/passwd"))
        assert "begins with http" in text(await take(tools, "goto", url="javascript:alert(1)"))
        assert await tools.score(None) is None


def test_an_environment_without_pages_or_hosts_is_refused() -> None:
    with pytest.raises(ConfigError, match="give `pages`, a folder, or `hosts`"):
        Toolset("tools.yaml").add_entry({"environment": "browser"})


@pytest.mark.parametrize(
    ("text", "hour"), [("2026-11-05T12:00:00", 12), ("2026-11-05T12:00:00+09:00", 3), ("2026-11-05T12:00:00Z", 12)]
)
def test_the_clock_of_a_row_is_in_utc_unless_it_has_an_offset(text: str, hour: int) -> None:
    source = BrowserSource(BrowserEntry(hosts=("shop.example",)))

    opened = source.open({"url": "https://shop.example/", "time": text}, {})

    assert opened._settings.time == datetime(2026, 11, 5, hour, tzinfo=UTC)


def test_hosts_of_an_entry_and_of_a_row_are_the_same_in_any_letters() -> None:
    source = BrowserSource(BrowserEntry(hosts=("Shop.Example", "*.CDN.example")))

    opened = source.open({"url": "https://shop.example/", "hosts": ["SHOP.example"]}, {})

    assert opened._browser.hosts == ("shop.example", "*.cdn.example")
    assert opened._settings.hosts == ("shop.example",)
    with pytest.raises(DataError, match=r"names 'Evil\.example', which `hosts` of the entry does not have"):
        source.open({"url": "https://shop.example/", "hosts": ["Evil.example"]}, {})
    with pytest.raises(DataError, match="names 7, which `hosts` of the entry does not have"):
        source.open({"url": "https://shop.example/", "hosts": [7]}, {})
