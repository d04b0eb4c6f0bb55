"""The study's rows: tasks and seeds, with their sentences as read in the browser, and the checklist of each."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.web.episodes import TOOLS
from examples.web.tasks import SEEN, TASKS, UNSEEN
from verl_pivot.environments.miniwob_rows import MiniwobProblem, miniwob_row, read_sentences
from verl_pivot.environments.verifiers_rows import write_rows
from verl_pivot.errors import BrowserError, ConfigError
from verl_pivot.rewards.process_rewards import CHECKLIST_COLUMN
from verl_pivot.types import JsonObject

SOURCE = "miniwob/"
"""Prefix of a row's `data_source`; the name of the task follows."""
NUM_TRAINING, NUM_HELD_OUT, NUM_UNSEEN = 40, 24, 32
"""Numbers of seeds per task: seen tasks in training, seen tasks held out, unseen tasks."""
_FIRST_TRAINING, _FIRST_HELD_OUT = 10_000, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WebRows:
    """Files of the study's tasks."""

    tools: Path
    training: Path
    """Seen tasks."""
    held_out: Path
    """Other seeds of all tasks, the unseen ones among them."""


def make_rows(folder: Path) -> WebRows:
    """Write the files into a folder; files that exist already are kept."""
    folder = folder.resolve()  # the trainer's processes may run in another directory
    training = episodes_of(SEEN, _FIRST_TRAINING, NUM_TRAINING)
    unseen = episodes_of(UNSEEN, _FIRST_HELD_OUT, NUM_UNSEEN)
    held_out = [*episodes_of(SEEN, _FIRST_HELD_OUT, NUM_HELD_OUT), *unseen]
    return WebRows(
        tools=TOOLS,
        training=_written(folder / "training.parquet", training),
        held_out=_written(folder / "held_out.parquet", held_out),
    )


def episodes_of(tasks: Iterable[str], first_seed: int, num_seeds: int) -> list[MiniwobProblem]:
    """One episode for each seed and task, in the order of the seeds."""
    names = list(tasks)
    return [MiniwobProblem(name, seed) for seed in range(first_seed, first_seed + num_seeds) for name in names]


def row_of(episode: MiniwobProblem, sentence: str, index: int) -> JsonObject:
    """The row of an episode as `verl-pivot environment-rows` makes it, with a checklist and without a system message.

    The policy of the study knows few words, and no instructions.
    """
    return {
        **miniwob_row(episode, sentence, index),
        "data_source": f"{SOURCE}{episode.task}",
        "prompt": [{"role": "user", "content": sentence}],
        CHECKLIST_COLUMN: [*TASKS[episode.task].checklist(sentence)],
    }


def _written(path: Path, episodes: Sequence[MiniwobProblem]) -> Path:
    if not path.is_file():
        try:
            sentences = asyncio.run(read_sentences(episodes))
        except (ConfigError, BrowserError) as error:
            raise SystemExit(str(error)) from error
        write_rows([row_of(*each, index) for index, each in enumerate(zip(episodes, sentences, strict=True))], path)
    return path
