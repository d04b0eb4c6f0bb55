"""The study's world in a folder: its index for the tool `search`, a tools file, and questions as rows of a parquet."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from examples.l0.transcripts import Pages
from examples.world.entities import make_documents, make_world
from examples.world.questions import KINDS, WorldQuestion, held_out_questions, training_questions
from verl_pivot.data.files import replacing
from verl_pivot.data.prompts import prompt_id
from verl_pivot.exports.qa_rows import write_qa_rows
from verl_pivot.types import Role

_SEED = 0
"""Seed of the world and of its held-out questions, which are the same for all seeds of the study."""
_NUM_TRAINING = 3500
_HARD_HOPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Files of the study's world."""

    tools: Path
    training: Path
    """Questions of every kind but one, whose people, towns and firms no other file has."""
    hard: Path
    """Those of the training questions that take three hops."""
    held_out: Path
    questions: dict[str, WorldQuestion]
    """{prompt_id: held-out question}"""


def make_corpus(folder: Path, num_held_out: int) -> Corpus:
    """Write the files into a folder; those that are there already are the same."""
    folder = folder.resolve()  # the trainer's processes run elsewhere
    world = make_world(_SEED)
    Pages.of(make_documents(world, _SEED), folder)
    tools = folder / "tools.yaml"
    tools.write_text(f"# One page for each search.\n- tool: search\n  index: {folder / 'index'}\n  num_documents: 1\n")
    training = training_questions(world, _NUM_TRAINING, _SEED)
    held_out = held_out_questions(world, num_held_out, _SEED)
    return Corpus(
        tools=tools,
        training=_rows(folder / "training.parquet", training),
        hard=_rows(folder / "hard.parquet", [each for each in training if KINDS[each.kind].num_hops == _HARD_HOPS]),
        held_out=_rows(folder / "held_out.parquet", held_out),
        questions={prompt_id([{"role": Role.USER.value, "content": each.text}]): each for each in held_out},
    )


def _rows(path: Path, questions: Iterable[WorldQuestion]) -> Path:
    lines = path.with_suffix(".jsonl")
    with replacing(lines) as unfinished:
        unfinished.write_text("".join(json.dumps(each.as_row()) + "\n" for each in questions))
    write_qa_rows([lines], path, normalisation="l0", on_rows=lambda _: None)
    return path
