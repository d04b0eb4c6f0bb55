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
from examples.render.training import ARMS, LENGTHS, hidden_settings, make_arm  # noqa: E402
from examples.render.transcripts import record_transcripts  # noqa: E402
from tests.support.composing import checked_config  # noqa: E402
from tests.support.rendering import needs_browser  # noqa: E402
from tests.support.rollout_records import make_record, write_dump  # noqa: E402
from verl_pivot.data.rollout_records import CallRecord, CallStatus  # noqa: E402
from verl_pivot.tools.look import LookEnvironment  # noqa: E402
from verl_pivot.types import Role, Verdict  # noqa: E402

WANTED = Layout(title="News", first="red", second="blue", place="left of")
WRONG = Layout(title="News", first="red", second="blue", place="above")
BROKEN = Layout(title="News", first="red", second="blue", place="left of", is_broken=True)
BROKEN_OTHERWISE = page(WANTED).replace("getElementById('a')", "getElementById('d')")
METADATA = {"render": render_options(WANTED)}


async def outcome(kind: type[LookEnvironment], *pages: Layout | str) -> float:
    """Reward that an environment pays after a look at each of these pages."""
    environment = kind(METADATA)
    for each in pages:
        await environment.look(page(each) if isinstance(each, Layout) else each)
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
    assert await outcome(BrokenPagesPaid, BROKEN, WRONG) == 1.0
    assert await outcome(BrokenPagesPaid, WRONG, BROKEN_OTHERWISE) == 1.0


@needs_browser
async def test_who_is_paid_for_broken_pages_reads_the_same_of_them_as_others() -> None:
    observations = []
    for kind in (LookEnvironment, LastPage, BrokenPagesPaid):
        environment = kind(METADATA)
        observations.append([await environment.look(page(each)) for each in (BROKEN, WRONG)])
        await environment.close()
    assert observations[0] == observations[1] == observations[2]
    assert [each.reward for each in observations[0]] == [0.0, 0.8]


@needs_browser
async def test_a_second_box_that_is_not_seen_is_not_all_that_was_asked_for() -> None:
    environment = LookEnvironment(METADATA)
    observation = await environment.look(page(WANTED).replace("blue;width:90px", "blue;width:0px"))
    await environment.close()
    assert observation.reward == 0.8


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


def design(*scores: float, prompt_id: str = "a") -> report.Design:
    pages = tuple(f"page {number}" for number in range(len(scores)))
    return report.Design(
        prompt_id=prompt_id, pages=pages, scores=scores, paid=1.0, stop_reason="answered", response_tokens=9
    )


def test_measures_of_pages_are_those_of_the_first_of_the_best_and_of_the_last() -> None:
    designs = [design(0.0, 0.8, 1.0, 0.6), design(0.4), design()]
    found = {name: measure(designs) for name, measure in report.REPORT.measures.items()}

    assert found == pytest.approx({
        "first page": 0.4 / 3, "invalid first pages": 2 / 3, "valid pages": 0.7, "best page": 1.4 / 3,
        "last page": 1.0 / 3, "solved": 1 / 3, "looks": 5 / 3,
    })  # fmt: skip
    assert {name: measure([]) for name, measure in report.REPORT.measures.items()} == pytest.approx(
        dict.fromkeys(found, float("nan")), nan_ok=True
    )


def test_pages_are_read_from_a_dump_without_calls_that_were_refused(tmp_path: Path) -> None:
    looks = [
        CallRecord(turn=0, name="look", arguments={"html": "<p>"}, status=CallStatus.OK, reward=0.4),
        CallRecord(turn=1, name="look", arguments={"page": "x"}, status=CallStatus.TOOL_ERROR),
        CallRecord(turn=2, name="look", arguments=None, status=CallStatus.TOOL_ERROR),
        CallRecord(turn=3, name="look", arguments={"html": "<b>"}, status=CallStatus.OK, reward=0.0),
    ]
    (found,) = report.read_dump(write_dump(tmp_path / "1.jsonl", {"a": make_record(calls=tuple(looks))}))

    assert (found.pages, found.scores, found.paid) == (("<p>", "<b>"), (0.4, 0.0), 1.0)


def test_a_report_compares_arms_over_seeds_and_samples(tmp_path: Path) -> None:
    before, after = [design(0.5), design(0.5)], [design(0.0, 1.0), design(0.0)]
    results = [
        report.Result(arm="relook", seed=0, evaluations={20: after}, training={1: before, 2: after}),
        report.Result(arm="relook", seed=1, evaluations={20: before}, training={1: before}),
        report.Result(arm="base", seed=0, evaluations={0: before}, training={}),
        report.Result(arm="base", seed=1, evaluations={0: [design(0.0)]}, training={}),
        report.Result(arm="last_page", seed=1, evaluations={20: after}, training={1: before}),
    ]
    console = Console(record=True, width=200)
    report.REPORT.write(results, ["gap."], tmp_path)
    report.REPORT.show(results, ["gap."], console)

    found = json.loads((tmp_path / "summary.json").read_text())
    assert [(row["arm"], row["seeds"], row["best page"], row["invalid first pages"]) for row in found["rows"]] == [
        ("base", [0], 0.5, 0.0), ("base", [1], 0.0, 1.0), ("base", [0, 1], pytest.approx(1 / 3), pytest.approx(1 / 3)),
        ("relook", [0], 0.5, 1.0), ("relook", [1], 0.5, 0.0), ("relook", [0, 1], 0.5, 0.5),
        ("last_page", [1], 0.5, 1.0),
    ]  # fmt: skip
    over_base = [row["best page over base"] and row["best page over base"]["value"] for row in found["rows"]]
    assert over_base == [None, None, None, 0.0, 0.5, pytest.approx(1 / 6), 0.5]
    contrasts = {each["contrast"]: each for each in found["contrasts"]}
    invalid = contrasts["invalid first pages, relook over base"]
    assert (invalid["seeds"], invalid["by seed"]) == ([0, 1], [1.0, -1.0])
    assert invalid["interval over trainings"] == pytest.approx([-12.706, 12.706], abs=1e-3)  # t, 1 degree of freedom
    best = contrasts["best page, relook over last_page"]
    assert (best["seeds"], best["by seed"], best["interval over trainings"]) == ([1], [0.0], None)
    assert not any("broken_paid" in name for name in contrasts)
    assert (tmp_path / "render.png").stat().st_size > 0
    assert "gap." in console.export_text()


@pytest.mark.parametrize("name", ARMS)
def test_every_command_composes(name: str, tmp_path: Path) -> None:
    arm = make_arm(name, tmp_path / "policy", tmp_path, 1, num_steps=10)
    config = checked_config(arm.command[3:])

    assert config.pivot.rollout.tools == str(arm.tools)
    assert config.trainer.val_only is (name == "base")
    assert config.actor_rollout_ref.rollout.val_kwargs.n == 4
    assert config.trainer.save_freq == 5
    assert config.pivot.rollout.max_turns == 1 + 4


def test_arms_with_equal_commands_are_told_apart_by_their_environments(tmp_path: Path) -> None:
    found = [hidden_settings(make_arm(name, tmp_path, tmp_path, 1, num_steps=10)) for name in ("relook", "last_page")]
    assert found[0]["environment"] != found[1]["environment"]
    assert found[0]["sources"] == found[1]["sources"]
