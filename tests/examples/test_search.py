"""The example search: its questions, transcripts, facts that are taught, report, and every arm's command."""

import logging
from pathlib import Path

import pytest
from rich.console import Console

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision


from examples.ppr.policy import build_tokenizer  # noqa: E402
from examples.ppr.transcripts import OBSERVED  # noqa: E402
from examples.quickstart.policy import encode  # noqa: E402
from examples.search import report  # noqa: E402
from examples.search.measures import Played, split  # noqa: E402
from examples.search.questions import (  # noqa: E402
    NUM_PER_PART,
    SEED,
    Corpus,
    make_corpus,
    make_small_world,
    taught_questions,
)
from examples.search.run import make_arm  # noqa: E402
from examples.search.training import ARMS, MAX_RESPONSE_TOKENS, MAX_TURN_TOKENS  # noqa: E402
from examples.search.transcripts import record_all  # noqa: E402
from examples.world.entities import make_documents  # noqa: E402
from examples.world.pages import Pages  # noqa: E402
from tests.support.composing import checked_config  # noqa: E402
from verl_pivot.tools.search_files import SearchKind  # noqa: E402
from verl_pivot.types import Trajectory  # noqa: E402


@pytest.fixture(scope="module")
def transcripts(tmp_path_factory: pytest.TempPathFactory) -> list[Trajectory]:
    pages = Pages.of(make_documents(make_small_world(SEED), SEED, num_fillers=1), tmp_path_factory.mktemp("pages"))
    return record_all(taught_questions(), pages, 0, knows=True)


def text_of(transcript: Trajectory) -> str:
    return transcript.messages[-1].content or ""


def test_half_of_the_questions_are_of_facts_that_were_taught_and_no_question_is_asked_twice(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path)

    assert len(corpus.questions) == 4 * NUM_PER_PART
    assert len(corpus.taught) == 2 * NUM_PER_PART
    assert corpus.taught <= set(corpus.questions)
    assert {kind: path.parent.name for kind, path in corpus.tools.items()} == {"bm25": "bm25", "hybrid": "hybrid"}


def test_a_transcript_searches_in_half_of_the_cases_and_always_gives_the_right_answer(
    transcripts: list[Trajectory],
) -> None:
    searches = [text_of(each).count("<search>") for each in transcripts]

    assert 0.35 < sum(number > 0 for number in searches) / len(searches) < 0.65
    assert max(searches) == 2
    for question, transcript in zip(taught_questions(), transcripts, strict=True):
        assert text_of(transcript).endswith(f"<answer>{question.answer}</answer>")


def test_limits_hold_all_transcripts(transcripts: list[Trajectory]) -> None:
    tokenizer = build_tokenizer(transcripts)

    for each in transcripts:
        turns = OBSERVED.split(text_of(each))[::2]
        assert all(len(tokenizer.encode(turn, add_special_tokens=False)) < MAX_TURN_TOKENS for turn in turns)
        assert len(encode(tokenizer, each, OBSERVED).input_ids) < MAX_RESPONSE_TOKENS


def test_a_search_in_an_event_loop_of_its_own_leaves_no_error_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pages = Pages.of(make_documents(make_small_world(SEED), SEED)[:5], tmp_path)

    pages.search("Mills")

    assert [each.message for each in caplog.records if each.levelno >= logging.WARNING] == []


def played(prompt_id: str, em: float, num_searches: int) -> Played:
    return Played(prompt_id=prompt_id, em=em, num_searches=num_searches)


def test_a_report_tells_taught_from_untaught_facts(tmp_path: Path) -> None:
    before = [played("a", 1.0, 1), played("b", 0.0, 0)]
    after = [played("a", 1.0, 0), played("b", 1.0, 1)]
    results = [
        report.Result(arm="base", seed=0, held_out=before, training={}),
        report.Result(arm="cost", seed=0, held_out=after, training={1: after, 2: after}),
    ]
    taught = frozenset({"a"})

    found = report.rows(results, taught)
    report.write(results, found, ["gap."], taught, tmp_path)
    console = Console(record=True, width=200)
    report.show(found, ["gap."], console)

    assert {name: len(some) for name, some in split(before, taught).items()} == {"taught": 1, "untaught": 1}
    assert [(row.arm, row.part, row.em, row.searches) for row in found] == [
        ("base", "taught", 1.0, 1.0), ("base", "untaught", 0.0, 0.0),
        ("cost", "taught", 1.0, 0.0), ("cost", "untaught", 1.0, 1.0),
    ]  # fmt: skip
    gains = [(row.em_over_base, row.searches_over_base) for row in found]
    assert gains[:2] == [(None, None)] * 2
    assert [(em.value, searches.value) for em, searches in gains[2:] if em and searches] == [(0.0, -1.0), (1.0, 1.0)]
    assert (tmp_path / "search.png").stat().st_size > 0
    assert "gap." in console.export_text()


@pytest.mark.parametrize("name", ARMS)
def test_every_command_composes(name: str, tmp_path: Path) -> None:
    files = {kind: tmp_path / f"{kind}.parquet" for kind in ("training", "held_out")}
    tools = {kind: tmp_path / f"{kind}.yaml" for kind in (SearchKind.BM25, SearchKind.HYBRID)}
    corpus = Corpus(tools=tools, questions={}, taught=frozenset(), **files)
    arm = make_arm(name, tmp_path / "policy", tmp_path, 1, corpus=corpus, num_steps=10)
    config = checked_config(arm.command[3:])

    assert config.reward.custom_reward_function.reward_kwargs.cost_per_search == (
        0.1 if name.startswith("cost") else 0.0
    )
    assert config.algorithm.norm_adv_by_std_in_grpo == (name != "cost_undivided")
    assert config.pivot.rollout.max_turns == (1 if name == "no_search" else 3)
    assert config.pivot.rollout.tools == str(tools[SearchKind.HYBRID if name == "hybrid" else SearchKind.BM25])
