"""The study's world in a folder: its search index, and questions of one fact, half of which the policy was taught."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from examples.world.entities import Entity, WorldSize, make_documents, make_world
from examples.world.pages import Pages, write_tools
from examples.world.questions import WorldQuestion, held_out_questions, training_questions
from examples.world.rows import by_prompt, write_rows
from verl_pivot.tools.search_files import SearchKind

KINDS_ASKED = ("birth_year", "seat")
"""Kinds of questions, of one hop each: one search is enough, and none is needed if the answer was taught."""
SIZE = WorldSize(people=800, firms=300, towns=60, held_out_share=0.4)
SEED = 0
"""Seed of the study's world, which is the same for all seeds of the study."""
NUM_PER_PART = 80
"""Number of questions in each of the four parts: taught or not, in training or held out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Files of the study's world."""

    tools: Mapping[SearchKind, Path]
    """{kind of search: tools file}"""
    training: Path
    """Equally many taught and untaught questions."""
    held_out: Path
    """Equally many taught and untaught questions about other facts, which training never asks for."""
    questions: Mapping[str, WorldQuestion]
    """{prompt_id: question} of both files"""
    taught: frozenset[str]
    """prompt_id of the questions whose answer the policy was taught"""


def make_small_world(seed: int) -> tuple[Entity, ...]:
    """All entities of a world."""
    return make_world(seed, SIZE)


def taught_questions() -> list[WorldQuestion]:
    """Questions of the study's world whose answers SFT teaches: first those of training, then the held-out ones."""
    return training_questions(make_small_world(SEED), 3 * NUM_PER_PART, SEED, KINDS_ASKED)[: 2 * NUM_PER_PART]


def make_corpus(folder: Path) -> Corpus:
    """Write the files into a folder; a repetition writes the same files."""
    folder = folder.resolve()  # the trainer's processes may run in another directory
    world = make_small_world(SEED)
    documents = make_documents(world, SEED, num_fillers=1)
    tools: dict[SearchKind, Path] = {}
    for kind in (SearchKind.BM25, SearchKind.HYBRID):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        Pages.of(documents, folder / kind, kind)
        tools[kind] = write_tools(folder / kind)
    drawn = training_questions(world, 3 * NUM_PER_PART, SEED, KINDS_ASKED)
    taught, untaught = drawn[: 2 * NUM_PER_PART], drawn[2 * NUM_PER_PART :]
    training = [*taught[:NUM_PER_PART], *untaught]
    held_out = [*taught[NUM_PER_PART:], *held_out_questions(world, NUM_PER_PART, SEED, KINDS_ASKED)]
    return Corpus(
        tools=tools,
        training=write_rows(folder / "training.parquet", training, "search_r1"),
        held_out=write_rows(folder / "held_out.parquet", held_out, "search_r1"),
        questions=by_prompt([*training, *held_out]),
        taught=frozenset(by_prompt(taught)),
    )
