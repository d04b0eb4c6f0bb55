"""Tool `look`: which revision counts, what the policy reads, and whose fault it is that a page is not seen."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rendering import needs_browser
from verl_pivot.errors import ConfigError, ToolFailureError
from verl_pivot.tools.contract import ToolError
from verl_pivot.tools.forced_optimization import BestRevision
from verl_pivot.tools.look import LookEnvironment
from verl_pivot.tools.toolset import load_toolset
from verl_pivot.types import JsonObject, Message, Role

RENDER: JsonObject = {
    "width": 200, "height": 100, "seconds": [0],
    "assertions": [{"selector": "h1", "text": "Tea"}, {"selector": "p", "count": 2}],
}  # fmt: skip


def test_a_revision_counts_only_if_it_is_strictly_better() -> None:
    best = BestRevision()

    assert [best.add(score) for score in (0.5, 0.5, 0.4, 0.75)] == [True, False, False, True]
    assert (best.score, best.number, best.num_left) == (0.75, 4, 0)
    with pytest.raises(ValueError, match="revised 3 times"):
        best.add(1.0)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4))
def test_the_first_of_the_best_counts(scores: list[float]) -> None:
    best = BestRevision()
    for score in scores:
        best.add(score)

    assert best.score == max(scores)
    assert best.number == scores.index(max(scores)) + 1


@needs_browser
async def test_the_policy_reads_what_is_wrong_and_the_best_page_is_the_outcome() -> None:
    environment = LookEnvironment({"render": RENDER})
    pages = ("<h1>Tea</h1><p>one", "<h1>Coffee</h1><p>one", "<h1>Tea</h1><p>one<p>two", "<script>x()</script>")
    observations = [await environment.look(page) for page in pages]

    assert [observation.text for observation in observations] == [
        "Score 0.50.\n- p is there 1 times, not 2\n3 revisions left.",
        "Score 0.00. It is not better than 0.50: the page before stays.\n"
        "- h1 has the text 'Coffee', not 'Tea'\n- p is there 1 times, not 2\n2 revisions left.",
        "Score 1.00. It is the best so far.\n1 revision left.",
        "Score 0.00. It is not better than 1.00: the page before stays.\n"
        "- The page is not valid: script_error x is not defined\n0 revisions left.",
    ]
    assert [observation.reward for observation in observations] == [0.5, 0.0, 1.0, 0.0]
    with pytest.raises(ToolError, match="revised 3 times"):
        await environment.look(pages[0])
    outcome = await environment.score(Message(role=Role.ASSISTANT, content="```html\n<p>worse\n```"))
    assert (outcome.score, outcome.reason) == (1.0, "accepted")


@needs_browser
async def test_without_a_look_the_page_of_the_answer_counts() -> None:
    answer = Message(role=Role.ASSISTANT, content="```html\n<h1>Tea</h1>\n```")

    assert (await LookEnvironment({"render": RENDER}).score(answer)).score == 0.5
    assert (await LookEnvironment({"render": RENDER}).score(None)).reason == "no_answer"


@needs_browser
async def test_a_judge_that_is_down_is_the_systems_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "none")
    judge: JsonObject = {
        "base_url": "http://127.0.0.1:9/v1", "model": "j", "api_key_variable": "JUDGE_KEY", "kind": "rubric",
        "max_retries": 0,
    }  # fmt: skip
    environment = LookEnvironment({"render": {**RENDER, "judge": judge}})

    with pytest.raises(ToolFailureError, match="judge_failed"):
        await environment.look("<h1>Tea</h1>")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "metadata has no key render"),
        ({"render": {}}, "give assertions, a reference or a judge"),
        ({"render": {**RENDER, "argument": "a.b"}}, "metadata.render.argument does nothing"),
    ],
)
def test_a_row_that_says_nothing_of_its_page_is_refused(metadata: JsonObject, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LookEnvironment(metadata)


def test_a_look_has_the_limits_of_its_page_and_its_judge_and_takes_no_other(tmp_path: Path) -> None:
    path = tmp_path / "tools.yaml"
    path.write_text("- environment: verl_pivot.tools.look:LookEnvironment\n")
    tools = load_toolset(str(path)).open({"metadata": json.dumps({"render": RENDER})})
    (look,) = tools.toolbox.tools.values()
    assert look.policy.timeout_seconds is None

    limited = tmp_path / "limited.yaml"
    limited.write_text(path.read_text() + "  timeout_seconds: 300\n")
    with pytest.raises(
        ConfigError, match=r"entry 0: timeout_seconds does nothing for .*LookEnvironment.*: leave it out"
    ):
        load_toolset(str(limited))
