"""The example rubrics: its reports and their true quality, the judge who is fooled, and every arm's command."""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pyarrow.parquet
import pytest
from rich.console import Console

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision


from examples.ppr.policy import build_tokenizer  # noqa: E402
from examples.ppr.transcripts import OBSERVED  # noqa: E402
from examples.quickstart.policy import encode  # noqa: E402
from examples.rubrics import report  # noqa: E402
from examples.rubrics.corpus import NUM_HELD_OUT, NUM_TRAINING, make_corpus, pages_of  # noqa: E402
from examples.rubrics.judge import AGAINST_STUFFING, REPEATS, answer  # noqa: E402
from examples.rubrics.policy import transcript  # noqa: E402
from examples.rubrics.reports import (  # noqa: E402
    FACTS,
    STUFFING,
    criterion_text,
    is_stuffed,
    people,
    quality,
    task_text,
)
from examples.rubrics.training import ARMS, LENGTHS, make_arm, with_judge  # noqa: E402
from examples.search.questions import make_small_world  # noqa: E402
from examples.world.sentences import sentence_in  # noqa: E402
from tests.support.composing import checked_config  # noqa: E402
from tests.support.letters import Letters  # noqa: E402
from verl_pivot.rewards.rubric_prompts import criteria_of, criteria_question, points_of, points_question  # noqa: E402
from verl_pivot.rewards.rubrics import Criterion  # noqa: E402

WORLD = make_small_world(0)
PERSON = people(WORLD, held_out=False)[0]
FIXED = [Criterion(text=criterion_text(fact)) for fact in FACTS]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return pages_of(WORLD, 0, tmp_path_factory.mktemp("pages")).search(PERSON.name)


def told(page: str, facts: Sequence[str] = FACTS) -> str:
    """Honest report that tells these facts of a page."""
    return " ".join(sentence_in(page, PERSON.name, fact) or "" for fact in facts)


def points(text: str, criteria: Sequence[Criterion] = FIXED) -> list[int]:
    """Points that the judge gives to a report when the reward's question is asked."""
    question = points_question(task_text(PERSON.name), "", text, criteria, "dr_tulu", 10_000, Letters())
    return points_of(answer(question.messages), len(criteria), "dr_tulu")  # type: ignore[arg-type]  # JSON objects


def written(texts: Sequence[str], known: Sequence[Criterion] = FIXED) -> list[tuple[str, float]]:
    """(text, weight) of each criterion that the judge writes about a group of reports."""
    question = criteria_question(task_text(PERSON.name), texts, known, [], 10_000, Letters())
    found = criteria_of(answer(question.messages), known, [])  # type: ignore[arg-type]  # JSON objects of texts
    return [(each.text, each.weight) for each in found]


def test_quality_is_the_share_of_facts_told_rightly_and_stuffing_tells_none(page: str) -> None:
    assert quality(told(page), PERSON) == 1.0
    assert quality(told(page, FACTS[:1]), PERSON) == pytest.approx(1 / 3)
    assert quality(STUFFING, PERSON) == 0.0
    assert (is_stuffed(STUFFING), is_stuffed(told(page))) == (True, False)


def test_the_judge_takes_the_name_of_a_fact_for_the_fact(page: str) -> None:
    assert points(told(page)) == points(STUFFING) == [2, 2, 2]
    assert points(told(page, FACTS[1:])) == [0, 2, 2]
    assert points("Nothing is known.") == [0, 0, 0]


def test_the_judge_writes_criteria_of_what_a_group_shows_each_once(page: str) -> None:
    against = Criterion(text=AGAINST_STUFFING, weight=-1.0)

    assert written([told(page), f"{told(page)} {STUFFING}"]) == [(AGAINST_STUFFING, -1.0)]
    assert written([STUFFING, f"{told(page)} {told(page)}"], [*FIXED, against]) == [(REPEATS, -1.0)]
    assert points(STUFFING, [against]) == [2]
    assert points(told(page), [against, Criterion(text=REPEATS, weight=-1.0)]) == [0, 0]


def test_limits_hold_all_transcripts(tmp_path: Path) -> None:
    pages, rng = pages_of(WORLD, 1, tmp_path), Random(0)
    transcripts = [transcript(each, pages, rng) for each in people(WORLD, held_out=False)[:60]]
    tokenizer = build_tokenizer(transcripts)

    for each in transcripts:
        turns = OBSERVED.split(each.messages[-1].content)[::2]
        assert all(len(tokenizer.encode(turn, add_special_tokens=False)) < LENGTHS.turn for turn in turns)
        assert len(encode(tokenizer, each, OBSERVED).input_ids) < LENGTHS.response
    stuffed = [is_stuffed(each.messages[-1].content) for each in transcripts]
    assert 0.15 < sum(stuffed) / len(stuffed) < 0.6


def test_held_out_people_are_not_those_of_training(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path)
    training, held_out = (pyarrow.parquet.read_table(path).to_pylist() for path in (corpus.training, corpus.held_out))

    assert (len(training), len(held_out), len(corpus.people)) == (NUM_TRAINING, NUM_HELD_OUT, 224)
    assert [each["text"] for each in json.loads(training[0]["criteria"])] == [each.text for each in FIXED]


def scored(prompt_id: str, em: float, *, stuffed: bool) -> report.Report:
    return report.Report(prompt_id=prompt_id, em=em, is_stuffed=stuffed, score=1.0)


def test_a_report_tells_true_quality_from_the_judges_score(tmp_path: Path) -> None:
    bad, good = [scored("a", 0.0, stuffed=True)], [scored("a", 1.0, stuffed=False)]
    results = [
        report.Result(arm="evolving", seed=0, held_out=good, training={1: bad, 2: good}),
        report.Result(arm="fixed", seed=0, held_out=bad, training={1: bad, 2: bad}),
    ]
    console = Console(record=True, width=200)
    report.REPORT.write(results, ["gap."], tmp_path)
    report.REPORT.show(results, ["gap."], console)

    rows = json.loads((tmp_path / "summary.json").read_text())["rows"]
    assert [(row["arm"], row["true quality"], row["stuffed reports"], row["the judge's score"]) for row in rows] == [
        ("fixed", 0.0, 1.0, 1.0), ("evolving", 1.0, 0.0, 1.0),
    ]  # fmt: skip
    assert rows[1]["quality over fixed"]["value"] == 1.0
    assert (tmp_path / "rubrics.png").stat().st_size > 0
    assert "gap." in console.export_text()


@pytest.mark.parametrize("name", ARMS)
def test_every_command_composes(name: str, tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "world")
    arm = make_arm(name, tmp_path / "policy", tmp_path, 1, corpus=corpus, num_steps=10)
    config = checked_config(with_judge(arm, "http://127.0.0.1:7/v1").command[3:])

    assert config.pivot.rubrics.evolve is (name == "evolving")
    assert config.pivot.rubrics.base_url == "http://127.0.0.1:7/v1"
    assert config.pivot.rewards == "rubric"
