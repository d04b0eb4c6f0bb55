"""Tasks and seeds of MiniWoB++ -> rows for training; the prompt is the sentence with which the page states its task."""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from verl_pivot.all_at_once import all_at_once
from verl_pivot.browser.settings import BrowserSettings, PageSettings, find_browser
from verl_pivot.browser.shared import opened_page
from verl_pivot.data.journal import Journal, open_journal
from verl_pivot.environments.miniwob import FOLDER, begun_sentence, miniwob_tasks, pages_folder
from verl_pivot.environments.verifiers_rows import write_rows
from verl_pivot.errors import BrowserError, ConfigError, PageError
from verl_pivot.types import JsonObject

_HOW = "Do the task on the web page below with the tools. The number in brackets before an element names it in calls."
_SENTENCES, _ROWS = "sentences.jsonl", "rows.parquet"
_DONE = "done"
_BLOCK = 64
"""Number of problems whose sentences are saved together; an interrupted command goes on after the last saved ones."""
_AT_ONCE = 8
"""Number of pages that are open in the browser at once."""
_TRIES = 5
"""Number of attempts to open a page before the command fails."""


class MiniwobProblem(NamedTuple):
    """One task, with the seed from which its page makes the problem."""

    task: str
    seed: int

    @property
    def metadata(self) -> str:
        """Value of the column `metadata`, from which the environment makes the problem."""
        return json.dumps(self._asdict())


def miniwob_problems(tasks: Sequence[str], seeds: Iterable[int]) -> list[MiniwobProblem]:
    """One problem for each task and seed, ordered by seed.

    Raises:
        ConfigError: If a name is no task of MiniWoB++.
    """
    if unknown := [name for name in tasks if name not in miniwob_tasks()]:
        raise ConfigError(f"MiniWoB++ has no task {unknown[0]!r}; its tasks are {', '.join(sorted(miniwob_tasks()))}")
    return [MiniwobProblem(name, seed) for seed in seeds for name in tasks]


def miniwob_row(problem: MiniwobProblem, sentence: str, index: int) -> JsonObject:
    """Row of a problem. The user's message is the sentence alone, since workflows tell tasks apart by it.

    Args:
        problem: The problem.
        sentence: Sentence with which its page states the task.
        index: Number of the row.
    """
    return {
        "data_source": "miniwob",
        "prompt": [{"role": "system", "content": _HOW}, {"role": "user", "content": sentence}],
        "ability": "agent",
        "reward_model": {"style": "rule", "ground_truth": ""},
        "metadata": problem.metadata,
        "extra_info": {"index": index, "task": problem.task},
    }


async def read_sentences(problems: Sequence[MiniwobProblem]) -> list[str]:
    """[num_problems] sentences with which the pages state their tasks, read in the browser.

    Raises:
        ConfigError: If no browser is installed, or this machine has no sandbox for it.
        BrowserError: If the browser fails in every attempt at a page.
    """
    room = asyncio.Semaphore(_AT_ONCE)
    browser = BrowserSettings(folders={FOLDER: pages_folder()})

    async def one(problem: MiniwobProblem) -> str:
        async with room:
            return await _read_sentence(problem, browser)

    return await all_at_once(map(one, problems))


async def _read_sentence(problem: MiniwobProblem, browser: BrowserSettings) -> str:
    for number in range(1, _TRIES + 1):
        try:
            async with opened_page(PageSettings(), browser) as page:
                return await begun_sentence(page, *problem)
        except (PageError, BrowserError) as error:
            if number == _TRIES:
                raise BrowserError(
                    f"the page of {problem.task} with seed {problem.seed} did not open in {_TRIES} tries, the last "
                    f"error was: {error}; run the same command again to go on"
                ) from error
    raise AssertionError("the last try returns or raises")


def write_miniwob_rows(problems: Sequence[MiniwobProblem], out: Path, on_rows: Callable[[int], object]) -> int:
    """Write the rows of problems as a parquet file; returns their number. An interrupted call goes on.

    Args:
        problems: The problems.
        out: The file.
        on_rows: Called with the number of rows that have been finished since its last call.

    Raises:
        ConfigError: As `read_sentences`, or if the file cannot be written.
        BrowserError: As `read_sentences`.
    """
    find_browser()
    with open_journal(out, {"problems": [list(each) for each in problems]}) as journal:
        if not journal.is_finished:
            sentences = journal.append_to(_SENTENCES)
            on_rows(int(str(journal.state.get(_DONE, 0))))
            asyncio.run(_read_all(problems, journal, sentences, on_rows))
            write_rows(_rows(problems, journal.folder / _SENTENCES), journal.folder / _ROWS)
        journal.finish({_ROWS: out})
    return len(problems)


async def _read_all(
    problems: Sequence[MiniwobProblem], journal: Journal, sentences: BinaryIO, on_rows: Callable[[int], object]
) -> None:
    for start in range(int(str(journal.state.get(_DONE, 0))), len(problems), _BLOCK):
        block = problems[start : start + _BLOCK]
        found = await read_sentences(block)
        sentences.write(b"".join(json.dumps(each).encode() + b"\n" for each in found))
        journal.commit({_DONE: start + len(block)})
        on_rows(len(block))


def _rows(problems: Sequence[MiniwobProblem], sentences: Path) -> Iterator[JsonObject]:
    lines = sentences.read_text().splitlines()
    for index, (problem, line) in enumerate(zip(problems, lines, strict=True)):
        yield miniwob_row(problem, json.loads(line), index)
