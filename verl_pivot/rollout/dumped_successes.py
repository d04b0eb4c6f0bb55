"""Dumps of rollouts -> the rollouts that succeeded, with their goals, and the workflows that a model finds in them."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from verl_pivot.all_at_once import all_at_once
from verl_pivot.data.files import read_rows
from verl_pivot.data.json_values import BadRowError, as_list, as_object
from verl_pivot.data.prompts import prompt_id
from verl_pivot.data.rollout_dumps import REPEATED, DumpedRollout, read_rollouts
from verl_pivot.data.rollout_records import RolloutRecord
from verl_pivot.engines.chat import ChatClient
from verl_pivot.errors import DataError
from verl_pivot.rewards.principle_answers import InvalidAnswerError, reason_to_count
from verl_pivot.rollout.workflow_memory import SucceededRollout
from verl_pivot.rollout.workflow_writer import MIN_STEPS, induction_question, workflows_of_answer
from verl_pivot.rollout.workflows import Workflow, WorkflowTask, task_of


@dataclass(slots=True, kw_only=True)
class DumpedSuccesses:
    """Rollouts that succeeded, and why the others were left out."""

    rollouts: list[SucceededRollout] = field(default_factory=list)
    steps: dict[str, int] = field(default_factory=dict)
    """{source of a rollout: its training step}; -1 in dumps that do not name it"""
    num_rollouts: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """{reason: number of rollouts, or of workflows of a model}"""


def tasks_of_rows(files: Sequence[Path]) -> dict[str, WorkflowTask]:
    """{prompt_id: goal and site} of rows for training.

    Raises:
        DataError: If a file cannot be read, or a row has no prompt of messages.
    """
    tasks: dict[str, WorkflowTask] = {}
    for row in (row for path in files for row in read_rows(path)):
        try:
            columns = row.decoded()
            prompt = [as_object(each, "a message") for each in as_list(columns.get("prompt"), "prompt")]
            tasks[prompt_id(prompt)] = task_of(prompt, columns)
        except (BadRowError, TypeError) as error:
            raise DataError(f"{row.place} has no prompt ({error}): give the data.train_files of the run") from error
    return tasks


def read_successes(
    dumps: Sequence[Path], tasks: Mapping[str, WorkflowTask] | None, min_score: float
) -> DumpedSuccesses:
    """The rollouts of dumps that succeeded, in the order of the dumps.

    Args:
        dumps: Files of the folder `pivot` of `trainer.rollout_data_dir`.
        tasks: {prompt_id: task}; None takes the prompts in the dumps.
        min_score: Score from which a rollout is a success.

    Raises:
        DataError: If a dump cannot be read.
    """
    found = DumpedSuccesses()
    prompts: dict[str, WorkflowTask] = {}
    recorded: set[str] = set()
    unrecorded: set[str] = set()
    for rollout in (rollout for path in dumps for rollout in read_rollouts(path)):
        if rollout.prompt is not None:  # only the first line of a group has it
            prompts[rollout.group] = task_of(rollout.prompt, {})
        task = prompts.get(rollout.group) if tasks is None else _task(rollout, tasks)
        if rollout.record is None:  # also all lines but the last of a rollout that has several
            unrecorded.add(rollout.id)
            continue
        why = REPEATED if rollout.id in recorded else _unusable(rollout.record, rollout.score, task, min_score)
        recorded.add(rollout.id)
        if why:
            found.left_out[why] += 1
            continue
        assert task is not None, rollout.uid
        name = f"{rollout.step}:{rollout.uid}"
        found.rollouts.append(SucceededRollout(task=task, calls=rollout.record.calls, source=name))
        found.steps[name] = -1 if rollout.step is None else rollout.step
    if num_others := len(unrecorded - recorded):
        found.left_out["rollout of one of verl's own agent loops, which writes no record"] = num_others
    found.num_rollouts = len(found.rollouts) + found.left_out.total()
    return found


def _task(rollout: DumpedRollout, tasks: Mapping[str, WorkflowTask]) -> WorkflowTask | None:
    return None if rollout.record is None else tasks.get(rollout.record.prompt_id)


def _unusable(record: RolloutRecord, score: float | None, task: WorkflowTask | None, min_score: float) -> str:
    """Why a rollout gives no workflow; "" if it may."""
    if record.is_masked or score is None:
        return "undecided, or masked because the system failed"
    if score < min_score:
        return "score below --min-score"
    return "prompt that is in neither --rows nor the dump" if task is None else ""


async def asked_workflows(
    client: ChatClient,
    sources: Sequence[Workflow],
    max_tokens: int,
    left_out: Counter[str],
    on_source: Callable[[int], object],
) -> list[Workflow]:
    """Workflows that a model finds in trajectories, in the order of the trajectories.

    Args:
        client: The model.
        sources: Calls of each trajectory.
        max_tokens: Most tokens of an answer.
        left_out: {reason: number refused}, to which this function adds.
        on_source: Called with the number of trajectories that are done since the previous call.

    Raises:
        EngineError: If the model cannot be reached or keeps failing.
        ConfigError: If it refuses a request.
    """

    async def ask(source: Workflow) -> list[Workflow]:
        question = induction_question(source, lambda texts, order: texts)
        answer = await client.ask(question.messages, {"max_tokens": max_tokens, "temperature": 0.0})
        on_source(1)
        try:
            found = workflows_of_answer(answer.text, source)
        except InvalidAnswerError as error:
            left_out[f"answer of the model: {reason_to_count(str(error))}"] += 1
            return []
        left_out.update(f"workflow of the model: {reason}" for reason in found.refused)
        return found.workflows

    long_enough = [source for source in sources if len(source.steps) >= MIN_STEPS]
    if short := len(sources) - len(long_enough):
        left_out[f"fewer than {MIN_STEPS} calls"] += short
        on_source(short)
    return [each for found in await all_at_once(map(ask, long_enough)) for each in found]
