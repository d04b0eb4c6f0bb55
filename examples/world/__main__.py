"""A generated corpus and questions about it: `python -m examples.world --help`."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from examples.world.entities import make_documents, make_world
from examples.world.questions import KINDS, held_out_questions, training_questions
from verl_pivot.commands.next_steps import next_command
from verl_pivot.data.files import replacing
from verl_pivot.types import JsonObject


def main(
    out: Annotated[Path, typer.Option(help="Folder to write documents.jsonl, train.jsonl and held_out.jsonl into.")],
    seed: Annotated[int, typer.Option(help="Seed of the world and its questions.")] = 0,
    questions: Annotated[int, typer.Option(min=1, help="Training questions.")] = 4000,
    held_out: Annotated[int, typer.Option(min=1, help="Held-out questions.")] = 600,
) -> None:
    """Write documents on invented people, towns and firms, and questions of one to three hops about them.

    Held-out questions are about other people, towns and firms than those of training, and some are of a kind that
    training never asks. Each question has the lookups by which an oracle finds its answer.

    Example: python -m examples.world --out outputs/world
    """
    try:
        world = make_world(seed)
        train, test = training_questions(world, questions, seed), held_out_questions(world, held_out, seed)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    documents = make_documents(world, seed)
    _write(out / "documents.jsonl", ({"title": each.title, "text": each.text} for each in documents))
    _write(out / "train.jsonl", (each.as_row() for each in train))
    _write(out / "held_out.jsonl", (each.as_row() for each in test))
    unseen = [name for name, kind in KINDS.items() if kind.is_held_out]
    typer.echo(f"Wrote {out}: {len(documents)} documents, {len(train)} training and {len(test)} held-out questions.")
    typer.echo(f"Kinds of questions: {', '.join(KINDS)}; not in training: {', '.join(unseen)}.")
    typer.echo("Next:\n" + next_command(["index", str(out / "documents.jsonl"), "--out", str(out / "index")]))
    for name in ("train", "held_out"):
        typer.echo(next_command(["qa-rows", str(out / f"{name}.jsonl"), "--out", str(out / f"{name}.parquet")]))


def _write(path: Path, rows: Iterable[JsonObject]) -> None:
    with replacing(path) as unfinished:
        unfinished.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    typer.run(main)
