"""Tasks and seeds -> what the agent does on their pages in the real browser, recorded as a policy would read it."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from random import Random

from rich.progress import Progress

from examples.web.agent import STOPPED, WebAgent, WebHabits
from examples.web.tasks import TASKS
from verl_pivot.all_at_once import all_at_once
from verl_pivot.data.files import replacing
from verl_pivot.data.trajectories import read_trajectories, trajectory_as_dict
from verl_pivot.environments.miniwob_rows import MiniwobProblem
from verl_pivot.errors import ConfigError, ToolFailureError
from verl_pivot.tools.toolset import load_toolset
from verl_pivot.types import JsonObject, Message, Role, ToolCall, Trajectory

TOOLS = Path(__file__).with_name("tools.yaml")
MAX_TURNS = 6
"""Most turns of a trajectory. A call in the last turn is not run. Without a mistake no task takes more than three
turns, or five with a popup and an idle turn."""
_AT_ONCE = 8
"""Number of pages that the browser has open at once."""
_BLOCK = 64
"""Number of episodes in one file of recordings."""
_TRIES = 5
"""Most attempts at an episode while the browser fails."""
_TASK = "Task: "


def sentence_of(opening: str) -> str:
    """The task's sentence, read from the environment's opening."""
    first, _, _ = opening.partition("\n")
    if not first.startswith(_TASK):
        raise ValueError(f"an opening of MiniWoB++ begins with {_TASK!r}, got {opening!r:.80}")
    return first.removeprefix(_TASK)


async def play(episode: MiniwobProblem, habits: WebHabits) -> Trajectory:
    """Play one episode; equal episodes and habits give equal trajectories.

    The trajectory has passed if the page says that the task is solved.

    Raises:
        ToolFailureError: If the browser failed, or the machine was too busy for it.
    """
    async with load_toolset(str(TOOLS)).open({"metadata": episode.metadata}) as tools:
        sentence = sentence_of(tools.opening)
        rng = Random(f"{episode.task} {episode.seed}")
        agent = WebAgent(steps=TASKS[episode.task].steps(sentence), rng=rng, habits=habits)
        page = tools.opening.removeprefix(f"{_TASK}{sentence}\n\n")
        # A rollout shows the page in the same way, below the row's prompt.
        messages = [Message(role=Role.USER, content=f"{sentence}\n\n{page}")]
        for _ in range(MAX_TURNS - 1):
            call = agent.act(page)
            messages.append(_said(call))
            if call is None:
                break
            (outcome,) = await tools.toolbox.run([call])
            observation = outcome.observed()
            if observation.end is not None:
                break
            messages.append(Message(role=Role.TOOL, content=observation.text))
            page = observation.text if observation.error is None else page
        verdict = await tools.score(None)
        schemas = tuple(each.schema for each in tools.toolbox.tools.values())
    assert verdict is not None, "MiniWoB++ gives an outcome also where a task is given up"
    solved = verdict.score is not None and verdict.score > 0
    return Trajectory(
        id=f"{episode.task} {episode.seed}",
        messages=tuple(messages),
        tools=schemas,
        passed=solved,
        metadata=_metadata(episode, habits, sentence),
    )


def _said(call: ToolCall | None) -> Message:
    if call is None:
        return Message(role=Role.ASSISTANT, content=STOPPED)
    return Message(role=Role.ASSISTANT, tool_calls=(call,))


async def _played(episode: MiniwobProblem, habits: WebHabits) -> Trajectory:
    """Play an episode, and repeat it if the system fails, as with a busy machine or a dead browser.

    Raises:
        ToolFailureError: If it fails every time.
    """
    for _ in range(_TRIES - 1):
        with suppress(ToolFailureError):
            return await play(episode, habits)
    return await play(episode, habits)


async def play_all(episodes: Sequence[MiniwobProblem], habits: WebHabits) -> list[Trajectory]:
    """Play many episodes in one browser; returns their trajectories in the same order.

    Raises:
        ToolFailureError: If the system failed in every attempt at an episode.
    """
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(episode: MiniwobProblem) -> Trajectory:
        async with room:
            return await _played(episode, habits)

    return await all_at_once(map(one, episodes))


def recorded(folder: Path, episodes: Sequence[MiniwobProblem], habits: WebHabits) -> list[Trajectory]:
    """The trajectories of these episodes; episodes whose recordings are in the folder are not played again.

    Raises:
        SystemExit: If the folder has recordings of other episodes or habits, the browser keeps failing, or there is no
            browser.
    """
    try:
        return asyncio.run(_recorded(folder, episodes, habits))
    except ConfigError as error:
        raise SystemExit(str(error)) from error
    except ToolFailureError as error:
        raise SystemExit(f"the browser failed {_TRIES} times in a row ({error}): run the command again") from error


async def _recorded(folder: Path, episodes: Sequence[MiniwobProblem], habits: WebHabits) -> list[Trajectory]:
    found: list[Trajectory] = []
    with Progress() as progress:
        task = progress.add_task(f"Recording {folder.name}", total=len(episodes))
        for start in range(0, len(episodes), _BLOCK):
            block, path = episodes[start : start + _BLOCK], folder / f"{start // _BLOCK}.jsonl"
            if not path.is_file():
                _write(path, await play_all(block, habits))
            part = list(read_trajectories(path))
            if [each.metadata | {"sentence": ""} for each in part] != [_metadata(each, habits) for each in block]:
                raise SystemExit(f"{path} has other episodes: give another --out, or remove the folder {folder}")
            found += part
            progress.advance(task, len(block))
    return found


def _metadata(episode: MiniwobProblem, habits: WebHabits, sentence: str = "") -> JsonObject:
    """Metadata of a recorded trajectory, which tell its origin."""
    return {"task": episode.task, "seed": episode.seed, "habits": asdict(habits), "sentence": sentence}


def _write(path: Path, trajectories: Iterable[Trajectory]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as unfinished:
        unfinished.write_text("".join(json.dumps(trajectory_as_dict(each)) + "\n" for each in trajectories))
