"""The study's world in a folder: its index for the tool `search`, a tools file, and questions as rows of a parquet."""

from dataclasses import dataclass
from pathlib import Path

from examples.ppr.world import KINDS_ASKED, make_pages, make_small_world
from examples.world.pages import write_tools
from examples.world.questions import WorldQuestion, held_out_questions, training_questions
from examples.world.rows import by_prompt, write_rows

_SEED = 0
"""Seed of the world and of its held-out questions, which are the same for all seeds of the study."""
_NUM_TRAINING = 320
MOST_HELD_OUT = 280
"""Most held-out questions for which the world has enough held-out firms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Files of the study's world."""

    tools: Path
    training: Path
    """Questions of every kind but the held-out one; their people, towns and firms are not in the held-out file."""
    held_out: Path
    questions: dict[str, WorldQuestion]
    """{prompt_id: question} of both files"""

    @property
    def question_files(self) -> tuple[Path, Path]:
        """Both files as JSON lines, which hold the lookups that lead to each answer."""
        return self.training.with_suffix(".jsonl"), self.held_out.with_suffix(".jsonl")


def make_corpus(folder: Path, num_held_out: int) -> Corpus:
    """Write the files into a folder; a repetition writes the same files."""
    folder = folder.resolve()  # the trainer's processes may run in another directory
    world = make_small_world(_SEED)
    make_pages(world, _SEED, folder)
    training = training_questions(world, _NUM_TRAINING, _SEED, KINDS_ASKED)
    held_out = held_out_questions(world, num_held_out, _SEED, KINDS_ASKED)
    return Corpus(
        tools=write_tools(folder),
        training=write_rows(folder / "training.parquet", training, "search_r1"),
        held_out=write_rows(folder / "held_out.parquet", held_out, "search_r1"),
        questions=by_prompt([*training, *held_out]),
    )
