"""Properties of the generated world: an oracle finds every answer, and training tells nothing that is held out."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from examples.world.entities import WorldSize, make_documents, make_world
from examples.world.questions import KINDS, Lookup, WorldQuestion, held_out_questions, training_questions
from examples.world.sentences import value_in
from tests.support.paths import ROOT
from verl_pivot.cli import app
from verl_pivot.tools.search import SearchTool, SearchToolOptions
from verl_pivot.tools.search_writing import write_index
from verl_pivot.tools.workspace import Workspace

SMALL = WorldSize(people=120, firms=40, towns=20)
seeds = given(seed=st.integers(0, 2**32))
few = settings(max_examples=10, deadline=None)


def questions(seed: int) -> tuple[list[WorldQuestion], list[WorldQuestion]]:
    world = make_world(seed, SMALL)
    return training_questions(world, 140, seed), held_out_questions(world, 80, seed)


def stands_in(name: str, text: str) -> bool:
    """Whether a text has a name as whole words, since it may also be a part of longer invented names."""
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


@few
@seeds
def test_every_answer_follows_from_the_documents_on_the_way_of_the_oracle(seed: int) -> None:
    pages = dict(make_documents(make_world(seed, SMALL), seed))
    train, held_out = questions(seed)

    for question in (*train, *held_out):
        values: list[str] = []
        for lookup in question.lookups:
            assert stands_in(lookup.entity, question.text) or lookup.entity in values
            values.append(value_in(pages[lookup.entity], lookup.entity, lookup.fact) or "")
        assert KINDS[question.kind].answer(values) == question.answer


@few
@seeds
def test_no_question_holds_its_answer_or_a_value_on_the_way_to_it(seed: int) -> None:
    for question in (question for half in questions(seed) for question in half):
        assert question.answer not in re.findall(r"\w+", question.text)
        assert [each.value for each in question.lookups if stands_in(each.value, question.text)] == []


@few
@seeds
def test_training_names_nothing_that_is_held_out(seed: int) -> None:
    world = make_world(seed, SMALL)
    train, held_out = questions(seed)
    hidden = {each.name for each in world if each.is_held_out}
    pages = {title: text for title, text in make_documents(world, seed) if title not in hidden}

    told = " ".join([*(json.dumps(each.as_row()) for each in train), *pages, *pages.values()])
    assert [name for name in hidden if stands_in(name, told)] == []
    assert {lookup.entity for question in held_out for lookup in question.lookups} <= hidden
    assert {each.kind for each in held_out} - {each.kind for each in train} == {"mayor_birth_year"}


@few
@seeds
def test_only_the_document_of_an_entity_tells_its_facts(seed: int) -> None:
    documents = make_documents(make_world(seed, SMALL), seed)
    lookups = {lookup for half in questions(seed) for question in half for lookup in question.lookups}

    for lookup in lookups:
        assert [
            page.title for page in documents if lookup.entity in page.text and lookup.is_answered_by(page.text)
        ] == [lookup.entity]


@few
@seeds
def test_the_first_document_does_not_answer_a_question_of_several_hops(seed: int) -> None:
    pages = dict(make_documents(make_world(seed, SMALL), seed))
    several = [each for half in questions(seed) for each in half if len(each.lookups) > 1]

    for question in (each for each in several if not KINDS[each.kind].difference and not each.answer.isdigit()):
        assert not stands_in(question.answer, pages[question.lookups[0].entity])


def test_a_seed_gives_one_world_and_another_seed_another() -> None:
    assert make_world(1, SMALL) == make_world(1, SMALL) != make_world(2, SMALL)
    assert questions(1) == questions(1) != questions(2)
    names = [each.name for each in make_world(1)]
    assert len(set(names)) == len(names) == 3600


def test_kinds_are_drawn_equally_often_and_no_question_twice() -> None:
    train, held_out = questions(0)

    assert {name: sum(each.kind == name for each in train) for name in KINDS} == {
        **dict.fromkeys(KINDS, 20),
        "mayor_birth_year": 0,
    }
    assert {sum(each.kind == name for each in held_out) for name in KINDS} == {10}
    assert len({each.text for each in (*train, *held_out)}) == len(train) + len(held_out)
    assert {KINDS[each.kind].num_hops for each in train} == {1, 2, 3}


def test_the_oracle_tells_a_right_query_and_a_page_that_answers() -> None:
    lookup = Lookup("Vako Mills", "founder", "Brem Tazil")

    queries = ["Who founded vako mills?", "Mills, Vako", "Vakko Mills", "Mills"]
    assert [lookup.is_asked_by(query) for query in queries] == [True, True, False, False]
    pages = [
        "Doc 1(Title: Vako Mills) An inn. Vako Mills was founded by Brem Tazil.",
        "Vako Mills has as its founder Brem Tazil. Vako Mills is based in Dolvex.",
        "Vako Mills was founded by Brem Tazul.",
        "Old Vako Mills was founded in the year 1931.",
        "Brem Tazil was born in the year 1901.",
        "",
    ]
    assert [lookup.is_answered_by(page) for page in pages] == [True, True, False, False, False, False]


async def test_the_search_of_rollouts_finds_each_page_by_the_name_of_its_entity(tmp_path: Path) -> None:
    world = make_world(0)
    file = tmp_path / "documents.jsonl"
    file.write_text("".join(json.dumps(each._asdict()) + "\n" for each in make_documents(world, 0)))
    write_index(file, tmp_path / "index", lambda _: None)
    search = SearchTool(SearchToolOptions(index=tmp_path / "index"))

    for question in held_out_questions(world, 48, 0):
        for lookup in question.lookups:
            found = await search.call({"query": lookup.entity}, Workspace(metadata={}))
            assert lookup.is_answered_by(str(found.text)), (lookup, found)


def test_the_files_pass_through_index_and_qa_rows_and_no_row_is_left_out(tmp_path: Path) -> None:
    words = ["-m", "examples.world", "--out", str(tmp_path), "--questions", "70", "--held-out", "16"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=True)

    assert "3600 documents, 70 training and 16 held-out questions" in done.stdout
    printed = [line.split() for line in done.stdout.partition("Next:\n")[2].splitlines()]
    results = [CliRunner().invoke(app, words[1:], env={"COLUMNS": "200"}) for words in printed]
    assert [result.exit_code for result in results] == [0, 0, 0], results
    assert [re.findall(r"(\d+) (?:documents|rows)\.", result.stdout) for result in results] == [
        ["3600"],
        ["70"],
        ["16"],
    ]


@pytest.mark.parametrize("size", [{"towns": 2}, {"firms": 3}, {"people": 2000}])
def test_a_world_that_is_too_small_is_refused(size: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="a world needs 3 towns and 3 firms in each half"):
        WorldSize(**size)


def test_more_questions_than_entities_are_refused_in_one_sentence(tmp_path: Path) -> None:
    words = ["-m", "examples.world", "--out", str(tmp_path), "--questions", "9000"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "9000 questions need 1286 entities" in " ".join(done.stderr.split())
    assert not list(tmp_path.iterdir())
