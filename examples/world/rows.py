"""Questions of a world -> rows that verl trains on, and the way back from the prompts in dumps to questions."""

import json
from collections.abc import Iterable
from pathlib import Path

from examples.world.questions import WorldQuestion
from verl_pivot.data.files import replacing
from verl_pivot.data.prompts import prompt_id
from verl_pivot.exports.qa_rows import Normalisation, write_qa_rows
from verl_pivot.types import Role


def write_rows(path: Path, questions: Iterable[WorldQuestion], normalisation: Normalisation) -> Path:
    """Write questions to a parquet file, as `verl-pivot qa-rows` does, and beside it the JSON lines it is made of."""
    lines = path.with_suffix(".jsonl")
    with replacing(lines) as unfinished:
        unfinished.write_text("".join(json.dumps(each.as_row()) + "\n" for each in questions))
    write_qa_rows([lines], path, normalisation=normalisation, on_rows=lambda _: None)
    return path


def read_questions(path: Path) -> list[WorldQuestion]:
    """Questions of the JSON lines that `write_rows` wrote."""
    return [WorldQuestion.of_row(json.loads(line)) for line in path.read_text().splitlines()]


def by_prompt(questions: Iterable[WorldQuestion]) -> dict[str, WorldQuestion]:
    """{prompt_id: question}"""
    return {prompt_id([{"role": Role.USER.value, "content": each.text}]): each for each in questions}
