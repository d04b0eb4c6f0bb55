"""Dumps of rollouts and the rows of their prompts -> the turns that a judge is asked about; the rest is counted."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from verl_pivot.data.files import read_rows
from verl_pivot.data.json_values import BadRowError, as_list, as_object
from verl_pivot.data.prompts import prompt_id
from verl_pivot.data.rollout_dumps import REPEATED, DumpedRollout, read_rollouts
from verl_pivot.errors import DataError
from verl_pivot.rewards.labelled_turns import JudgedTurn
from verl_pivot.rewards.principles import ShownTurn, task_text


@dataclass(slots=True, kw_only=True)
class DumpCounts:
    """Counts of the rollouts that were read and of their turns."""

    num_rollouts: int = 0
    num_turns: int = 0
    """Turns that a judge can be asked about."""
    left_out: Counter[str] = field(default_factory=Counter)
    """{reason: number of rollouts or turns that were left out}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpedJudgedTurn:
    """A turn that a judge can be asked about, and its place in the dump."""

    judged: JudgedTurn
    rollout: DumpedRollout
    """The turn's rollout; its prompt is that of its group where the dump has one."""
    number: int
    """Index among the rollout's turns, from 0."""


def tasks_by_prompt(files: Sequence[Path]) -> dict[str, str]:
    """{prompt_id: the task as text} of rows for training.

    Raises:
        DataError: If a file cannot be read, or a row has no prompt of messages with texts.
    """
    tasks: dict[str, str] = {}
    for row in (row for path in files for row in read_rows(path)):
        try:
            prompt = [as_object(each, "a message") for each in as_list(row.decoded().get("prompt"), "prompt")]
            tasks[prompt_id(prompt)] = _whole(task_text(prompt))
        except (BadRowError, TypeError) as error:
            raise DataError(
                f"{row.place} has no prompt of texts ({error}): give the data.train_files of the run with --rows"
            ) from error
    return tasks


def dumped_turns(
    dumps: Sequence[Path],
    tasks: dict[str, str],
    counts: DumpCounts,
    *,
    needs_outcome: bool,
    on_rollouts: Callable[[int], object],
) -> Iterator[DumpedJudgedTurn]:
    """Every sampled turn but the last of each rollout, in the order of the dumps.

    Args:
        dumps: Files of the folder `pivot` of `trainer.rollout_data_dir`.
        tasks: {prompt_id: task}
        counts: Counts, to which this function adds.
        needs_outcome: Whether rollouts without an outcome in [0, 1] are left out.
        on_rollouts: Called with the number of rollouts read since the previous call.

    Raises:
        DataError: If a dump cannot be read.
    """
    seen: set[str] = set()
    prompts: dict[str, tuple[dict[str, Any], ...]] = {}
    for rollout in (rollout for path in dumps for rollout in read_rollouts(path)):
        counts.num_rollouts += 1
        on_rollouts(1)
        if rollout.prompt is not None:
            prompts[rollout.group] = rollout.prompt
        else:  # it equals that of the line before, also where the turns of that line are left out
            rollout = msgspec.structs.replace(rollout, prompt=prompts.get(rollout.group))
        why = REPEATED if rollout.uid in seen else _unusable(rollout, tasks, needs_outcome=needs_outcome)
        seen.add(rollout.uid)
        if why:
            counts.left_out[why] += 1
            continue
        for turn in _turns(rollout, tasks):
            if turn.judged.turn.text.strip():
                counts.num_turns += 1
                yield turn
            else:
                counts.left_out["turn without text, which scores 0 without a question"] += 1


def _unusable(rollout: DumpedRollout, tasks: dict[str, str], *, needs_outcome: bool) -> str:
    """Why the turns of a rollout cannot be judged; "" if they can."""
    if any(turn.step is not None for turn in rollout.turns):
        return "rollout in a notebook"
    if rollout.record is None:
        return "rollout of one of verl's own agent loops, which writes no record"
    if rollout.record.is_masked:
        return "masked: the system failed"
    if rollout.record.prompt_id not in tasks:
        return "prompt that is not in --rows"
    if not rollout.has_texts:
        return "rollout whose texts pivot.record left out"
    if len(rollout.turns) < 2:
        return "rollout of one turn, since the last turn is not judged"
    return _unusable_outcome(rollout.score) if needs_outcome else ""


def _unusable_outcome(score: float | None) -> str:
    """Why turns cannot be compared with their outcome; "" if they can."""
    if score is None:
        return "undecided outcome"
    return "" if 0.0 <= score <= 1.0 else "outcome outside of [0, 1]"


def _turns(rollout: DumpedRollout, tasks: dict[str, str]) -> Iterator[DumpedJudgedTurn]:
    assert rollout.record is not None, rollout.uid
    shown = [
        ShownTurn(text=_whole(turn.recorded_text), observation=_whole("\n".join(turn.observations).strip()))
        for turn in rollout.turns
    ]
    for number, turn in enumerate(shown[:-1]):
        judged = JudgedTurn(
            id=f"{rollout.step}:{rollout.uid}:{number}",
            task=tasks[rollout.record.prompt_id],
            earlier=tuple(shown[:number]),
            turn=turn,
            outcome=rollout.score,
        )
        yield DumpedJudgedTurn(judged=judged, rollout=rollout, number=number)


def _whole(text: str) -> str:
    """The text with `?` for each lone surrogate, which no file can hold and which a judge does not see either."""
    return text.encode(errors="replace").decode()
