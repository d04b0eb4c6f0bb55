"""The study's world in a folder: its search index, and tasks about people, some of whom are held out."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from examples.rubrics.reports import by_prompt, people, write_tasks
from examples.search.questions import make_small_world
from examples.world.entities import Entity, make_documents
from examples.world.pages import Pages, write_tools

SEED = 0
"""Seed of the study's world, which is the same for all seeds of the study."""
NUM_TRAINING, NUM_HELD_OUT = 64, 160
"""Numbers of people in training, each of whom recurs every few steps, and of held-out people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Files of the study's world."""

    tools: Path
    training: Path
    held_out: Path
    people: Mapping[str, Entity]
    """{prompt_id: person} of both files"""


def pages_of(world: tuple[Entity, ...], seed: int, folder: Path) -> Pages:
    """The pages of a world; each world needs its own folder, since an open index stays in memory."""
    folder.mkdir(parents=True, exist_ok=True)
    return Pages.of(make_documents(world, seed, num_fillers=1), folder)


def make_corpus(folder: Path) -> Corpus:
    """Write the files into a folder; a repetition writes the same files."""
    folder = folder.resolve()  # the trainer's processes may run in another directory
    world, rng = make_small_world(SEED), Random(SEED)
    pages_of(world, SEED, folder)
    training = rng.sample(people(world, held_out=False), NUM_TRAINING)
    held_out = rng.sample(people(world, held_out=True), NUM_HELD_OUT)
    return Corpus(
        tools=write_tools(folder),
        training=write_tasks(folder / "training.parquet", training),
        held_out=write_tasks(folder / "held_out.parquet", held_out),
        people=by_prompt([*training, *held_out]),
    )
