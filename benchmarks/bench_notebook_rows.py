"""Tokens that an update processes with `pivot.notebook.rows=context`, beside `rows=step`: `make bench-notebook`.

The transcripts come from the careless and the careful agent of examples/l0, with the same tokens as in the agent loop.
"""

import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from verl_pivot.commands.tables import table_console
from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

from rich.table import Table  # noqa: E402

from examples.l0.agent import CARELESS  # noqa: E402
from examples.l0.policy import build_tokenizer  # noqa: E402
from examples.l0.transcripts import record_all, scaffold  # noqa: E402
from examples.quickstart.policy import IGNORED, encode  # noqa: E402
from examples.world.entities import make_documents, make_world  # noqa: E402
from examples.world.pages import Pages  # noqa: E402
from examples.world.questions import training_questions  # noqa: E402

NUM_QUESTIONS = 300
MOST_OF_STEP = 0.5
"""Target: the largest ratio of the tokens with `rows=context` to those with `rows=step`."""


def main() -> None:
    """Print the tokens of both layouts."""
    world = make_world(0)
    questions = training_questions(world, NUM_QUESTIONS, 0)
    table = Table("agent", "trajectories", "stretches", "steps", "tokens, rows=context", "rows=step", "ratio", "target")
    with tempfile.TemporaryDirectory() as folder:
        pages = Pages.of(make_documents(world, 0), Path(folder))
        tokenizer = build_tokenizer(record_all(questions, pages, CARELESS, scaffold(lambda text: len(text) // 12)))
        exact = scaffold(cache(lambda text: len(tokenizer.encode(text, add_special_tokens=False))))
        for name, factor in (("careful", 0.0), ("careless", 1.0)):
            stretches = record_all(questions, pages, CARELESS.scaled(factor), exact)
            ends = [list(step_ends(encode(tokenizer, each).labels)) for each in stretches]
            by_context, by_step = sum(each[-1] for each in ends), sum(map(sum, ends))
            counts = (NUM_QUESTIONS, len(stretches), sum(map(len, ends)), by_context, by_step)
            ratio = by_context / by_step
            table.add_row(name, *map(str, counts), f"{ratio:.2f}", f"{MOST_OF_STEP:.2f} at most")
    table_console().print(table)


def step_ends(labels: list[int]) -> Iterator[int]:
    """Number of tokens up to the end of each step, which is a run of tokens that the policy wrote.

    Args:
        labels: [num_tokens] the token itself where the policy wrote it, IGNORED elsewhere.
    """
    for place, label in enumerate(labels):
        if label != IGNORED and (place + 1 == len(labels) or labels[place + 1] == IGNORED):
            yield place + 1


if __name__ == "__main__":
    main()
