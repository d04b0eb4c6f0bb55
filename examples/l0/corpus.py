"""The study's world in a folder: its index for the tool `search`, a tools file, and questions as rows of a parquet."""

from dataclasses import dataclass
from pathlib import Path

from examples.world.entities import make_documents, make_world
from examples.world.pages import Pages, write_tools
from examples.world.questions import KINDS, WorldQuestion, held_out_questions, training_questions
from examples.world.rows import by_prompt, write_rows

_SEED = 0
"""Seed of the world and of its held-out questions, which are the same for all seeds of the study."""
_NUM_TRAINING = 3500
_HARD_HOPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Files of the study's world."""

    tools: Path
    training: Path
    """Questions of every kind but the held-out one; their people, towns and firms are not in the held-out file."""
    hard: Path
    """The training questions that take three hops."""
    held_out: Path
    questions: dict[str, WorldQuestion]
    """{prompt_id: held-out question}"""


def make_corpus(folder: Path, num_held_out: int) -> Corpus:
    """Write the files into a folder; a repetition writes the same files."""
    folder = folder.resolve()  # the trainer's processes may run in another directory
    world = make_world(_SEED)
    Pages.of(make_documents(world, _SEED), folder)
    training = training_questions(world, _NUM_TRAINING, _SEED)
    hard = [each for each in training if KINDS[each.kind].num_hops == _HARD_HOPS]
    held_out = held_out_questions(world, num_held_out, _SEED)
    return Corpus(
        tools=write_tools(folder),
        training=write_rows(folder / "training.parquet", training, "l0"),
        hard=write_rows(folder / "hard.parquet", hard, "l0"),
        held_out=write_rows(folder / "held_out.parquet", held_out, "l0"),
        questions=by_prompt(held_out),
    )
