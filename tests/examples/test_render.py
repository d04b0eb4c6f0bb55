"""The example render: pages in the real browser, variants of `look`, transcripts, and every arm's command."""

import json
from pathlib import Path
from random import Random

import pytest
from rich.console import Console

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision


from examples.quickstart.policy import END, encode, learn_tokenizer  # noqa: E402
from examples.render import report  # noqa: E402
from examples.render.looks import BrokenPagesPaid, LastPage  # noqa: E402
from examples.render.pages import Layout, careless, layouts, page, render_options, request_text, revised  # noqa: E402
from examples.render.policy import _BETWEEN_PHRASES, _VALUES  # noqa: E402
from examples.render.training import ARMS, LENGTHS, make_arm  # noqa: E402
from examples.render.transcripts import record_transcripts  # noqa: E402
from tests.support.composing import checked_config  # noqa: E402
from tests.support.rendering import needs_browser  # noqa: E402
from verl_pivot.tools.look import LookEnvironment  # noqa: E402
from verl_pivot.types import Role, Verdict  # noqa: E402

WANTED = Layout(title="News", first="red", second="blue", place="left of")
WRONG = Layout(title="News", first="red", second="blue", place="above")
BROKEN = Layout(title="News", first="red", second="blue", place="left of", is_broken=True)
METADATA = {"render": render_options(WANTED)}


async def outcome(kind: type[LookEnvironment], *pages: Layout) -> float:
    """What an environment pays after a look at each page."""
    environment = kind(METADATA)
    for each in pages:
        await environment.look(page(each))
    score = await environment.score(None)
    await environment.close()
    found = score.score if isinstance(score, Verdict) else score
    assert found is not None
    return found


@needs_browser
async def test_the_best_page_counts_with_forced_optimization_and_the_last_without() -> None:
    assert await outcome(LookEnvironment, WANTED, WRONG) == 1.0
    assert await outcome(LastPage, WANTED, WRONG) == 0.8


@needs_browser
async def test_a_broken_page_is_0_and_paid_without_that_rule() -> None:
    assert await outcome(LookEnvironment, BROKEN) == 0.0
    assert await outcome(BrokenPagesPaid, BROKEN) == 1.0


@needs_browser
async def test_an_expert_fulfils_every_request() -> None:
    for each in Random(0).sample(layouts(held_out=False) + layouts(held_out=True), 12):
        environment = LookEnvironment({"render": render_options(each)})
        observation = await environment.look(page(each))
        await environment.close()
        assert observation.reward == 1.0, observation.text


def test_held_out_requests_are_others_than_those_of_training() -> None:
    training, held_out = layouts(held_out=False), layouts(held_out=True)

    assert (len(training), len(held_out)) == (96, 48)
    assert not {*map(request_text, training)} & {*map(request_text, held_out)}


def test_a_careless_designer_breaks_pages_and_revises_towards_the_request() -> None:
    rng = Random(0)
    first = [careless(WANTED, rng) for _ in range(400)]
    second = [revised(each, WANTED, rng) for each in first]

    assert 0.3 < sum(each.is_broken for each in first) / len(first) < 0.5
    assert sum(each == WANTED for each in second) > sum(each == WANTED for each in first)


@needs_browser
def test_limits_hold_all_transcripts(tmp_path: Path) -> None:
    transcripts = record_transcripts(tmp_path / "transcripts.jsonl", layouts(held_out=False)[:12], 0)
    tokenizer = learn_tokenizer(transcripts, _VALUES, _BETWEEN_PHRASES)
    end = tokenizer.convert_tokens_to_ids(END)

    for each in transcripts:
        example = encode(tokenizer, each)
        num_turns = sum(message.role is Role.ASSISTANT for message in each.messages)
        assert num_turns < LENGTHS.max_turns
        assert example.input_ids.index(end) < LENGTHS.prompt
        assert len(example.input_ids) < LENGTHS.prompt + LENGTHS.response
        assert sum(label != -100 for label in example.labels) < LENGTHS.turn * num_turns
    assert record_transcripts(tmp_path / "transcripts.jsonl", [], 0) == transcripts


def design(em: float, broken: float) -> report.Design:
    return report.Design(prompt_id="a", em=em, last=em, broken=broken, looks=1)


def test_a_report_compares_arms_with_the_base_policy(tmp_path: Path) -> None:
    before, after = [design(0.5, 1.0)], [design(1.0, 0.0)]
    results = [
        report.Result(arm="relook", seed=0, evaluations={25: after}, training={1: before, 2: after}),
        report.Result(arm="base", seed=0, evaluations={0: before}, training={}),
    ]
    console = Console(record=True, width=200)
    report.REPORT.write(results, ["gap."], tmp_path)
    report.REPORT.show(results, ["gap."], console)

    rows = json.loads((tmp_path / "summary.json").read_text())["rows"]
    assert [(row["arm"], row["score of the best page"], row["broken pages"]) for row in rows] == [
        ("base", 0.5, 1.0), ("relook", 1.0, 0.0),
    ]  # fmt: skip
    assert rows[1]["best page over base"]["value"] == 0.5
    assert (tmp_path / "render.png").stat().st_size > 0
    assert "gap." in console.export_text()


@pytest.mark.parametrize("name", ARMS)
def test_every_command_composes(name: str, tmp_path: Path) -> None:
    arm = make_arm(name, tmp_path / "policy", tmp_path, 1, num_steps=10)
    config = checked_config(arm.command[3:])

    assert config.pivot.rollout.tools == str(arm.tools)
    assert config.trainer.val_only is (name == "base")
