"""One rollout that a foreign environment drives: its task and the policy's endpoint -> the rows that verl stores."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict
from functools import cache, partial
from typing import Any

from verl_pivot.data.faults import MAX_SENTENCE
from verl_pivot.data.prompts import prompt_id
from verl_pivot.data.rollout_records import (
    RECORD_FIELD,
    SCORES_FIELD,
    TURN_ENDS_FIELD,
    VERDICT_FIELD,
    RolloutRecord,
    RoutingCost,
    StopReason,
)
from verl_pivot.environments.verifiers_rows import verifiers_command, verifiers_task
from verl_pivot.errors import DataError, EnvironmentLostError, ToolFailureError
from verl_pivot.loop_local import LoopLocal
from verl_pivot.rewards.turn_rewards import TurnRewardOutput
from verl_pivot.rollout.context_rows import RowLayout, Stretch, rows_of
from verl_pivot.rollout.driven_trajectory import DrivenTrajectory
from verl_pivot.rollout.dumped_output import add_transcript
from verl_pivot.rollout.environment_process import EnvironmentReport, run_environment
from verl_pivot.rollout.environment_worker import EnvironmentWorker
from verl_pivot.rollout.model_gateway import PolicyEndpoint, gateway
from verl_pivot.rollout.nemo_gym_agent import run_agent
from verl_pivot.rollout.played_rollout import ToolLoopParts
from verl_pivot.rollout.settings import (
    CommandEnvironment,
    ForeignEnvironment,
    NemoGymAgent,
    VerifiersEnvironment,
    is_dumped,
)
from verl_pivot.rollout.text_difference import text_differs
from verl_pivot.types import EnvironmentReturn, Verdict

logger = logging.getLogger(__name__)

_COLUMNS = ("data_source", "reward_model", "extra_info")
"""Columns of a row that an environment gets besides the prompt."""


async def driven_rows(
    parts: ToolLoopParts,
    environment: ForeignEnvironment,
    sampling_params: Mapping[str, Any],
    columns: Mapping[str, Any],
) -> list[TurnRewardOutput]:
    """Rows of one rollout; an empty list if the policy sampled no token.

    If the environment fails after the policy reached a limit, the rollout counts as failed, since a program whose
    further requests are refused ends with an error. If the environment fails by itself or is lost with other rollouts,
    or the engine fails, the rollout is masked.

    Args:
        parts: The agent loop.
        environment: The environment.
        sampling_params: verl's sampling parameters.
        columns: Columns of the dataset's row.

    Raises:
        DataError: If the policy got no prompt but one that is too long.
    """
    async with await _place(environment):
        trajectory = DrivenTrajectory(parts, sampling_params)
        try:
            report, error = await _reported(trajectory, environment, columns, parts.settings.max_wall_seconds)
        finally:
            journey = await trajectory.end()
    stop = StopReason.TOOL_FAILURE if _masks(error, trajectory) else trajectory.stop_reason
    failure = trajectory.failure or ("" if error is None else str(error))
    fields: dict[str, Any] = {}
    if stop.is_masked:
        logger.error("a rollout is masked (%s): %s", stop.value, failure)
        fields[VERDICT_FIELD] = asdict(Verdict.undecided(stop.value, failure[:MAX_SENTENCE]))
    elif failure:
        fields[VERDICT_FIELD] = asdict(Verdict.refuse(stop.value, failure[:MAX_SENTENCE]))
    elif report.reward is not None:
        fields[VERDICT_FIELD] = asdict(EnvironmentReturn(score=report.reward, reason="environment"))
        fields[SCORES_FIELD] = {f"environment/{name}": value for name, value in report.metrics.items()}
    if not trajectory.conversations:
        if trajectory.prompt_problem and not trajectory.failure:
            raise DataError(trajectory.prompt_problem)
        logger.error("a rollout gives no training row, since %s", _why_no_turn(trajectory, failure))
        return []
    record = _record(trajectory, parts, columns, stop, failure, journey)
    return _outputs(trajectory, parts, columns, record, fields)


def _masks(error: ToolFailureError | None, trajectory: DrivenTrajectory) -> bool:
    """Whether a failure of the environment masks the rollout, and does not follow from a refused request."""
    if error is None or trajectory.failure:
        return False
    return isinstance(error, EnvironmentLostError) or not trajectory.is_limited


def _why_no_turn(trajectory: DrivenTrajectory, failure: str) -> str:
    """Why an environment got no turn of the policy."""
    why = f"its last request was refused: {trajectory.refusal}" if trajectory.refusal else "it sent no request"
    return "; ".join(filter(None, ("its environment got no turn of the policy", why, failure)))


async def _place(environment: ForeignEnvironment) -> AbstractAsyncContextManager[None]:
    """A slot for one process of a worker; other environments start no process per rollout."""
    if isinstance(environment, CommandEnvironment):
        return await _places(environment.max_processes).get()
    return nullcontext()


@cache
def _places(number: int) -> LoopLocal[asyncio.Semaphore]:
    """Slots for the processes of an event loop."""
    return LoopLocal(lambda: nullcontext(asyncio.Semaphore(number)))


async def _reported(
    trajectory: DrivenTrajectory, environment: ForeignEnvironment, columns: Mapping[str, Any], max_idle_seconds: float
) -> tuple[EnvironmentReport, ToolFailureError | None]:
    """What the environment reports at its end, or else how it failed."""
    is_stuck = lambda: trajectory.idle_seconds > max_idle_seconds  # noqa: E731
    async with (await gateway.get()).opened(trajectory) as endpoint:
        try:
            return await _report(environment, columns, endpoint, is_stuck), None
        except ToolFailureError as error:
            return EnvironmentReport(), error


async def _report(
    environment: ForeignEnvironment,
    columns: Mapping[str, Any],
    endpoint: PolicyEndpoint,
    is_stuck: Callable[[], bool],
) -> EnvironmentReport:
    if isinstance(environment, VerifiersEnvironment):
        worker = await _worker(environment.model_dump_json()).get()
        return await worker.play(verifiers_task(columns), endpoint, is_stuck=is_stuck)
    if isinstance(environment, NemoGymAgent):
        return await run_agent(environment, columns, endpoint, is_stuck=is_stuck)
    task = {"prompt": columns["raw_prompt"], **{name: columns[name] for name in _COLUMNS if name in columns}}
    return await run_environment(environment.command, task, endpoint, is_stuck=is_stuck)


@cache
def _worker(settings: str) -> LoopLocal[EnvironmentWorker]:
    """The process of an environment of verifiers, the same for all agent loops of this process."""
    environment = VerifiersEnvironment.model_validate_json(settings)
    command = verifiers_command(environment.python, environment.verifiers, environment.arguments, "play")
    return LoopLocal(partial(EnvironmentWorker, command, f"verifiers:{environment.verifiers}"))


def _record(
    trajectory: DrivenTrajectory,
    parts: ToolLoopParts,
    columns: Mapping[str, Any],
    stop: StopReason,
    failure: str,
    journey: RoutingCost | None,
) -> RolloutRecord:
    tokens = [each.tokens for each in trajectory.conversations]
    return RolloutRecord(
        prompt_id=prompt_id(columns["raw_prompt"]),
        stop_reason=stop,
        calls=(),
        turn_tokens=tuple(trajectory.turn_tokens),
        prompt_tokens=tokens[0].num_prompt_tokens,
        response_tokens=sum(len(each.mask) for each in tokens),
        generate_seconds=trajectory.engine.seconds,
        tool_seconds=0.0,
        num_empty_answers=trajectory.engine.num_empty_answers,
        is_cut_off=not trajectory.conversations[-1].may_go_on,
        text_differs=any(
            text_differs(parts.loop, each.written, each.tokens.token_ids, each.tools)
            for each in trajectory.conversations
        ),
        journey=journey,
        oldest_weights=trajectory.engine.oldest_step,
        newest_weights=trajectory.engine.newest_step,
        failure=failure if stop.is_masked else "",
    )


def _outputs(
    trajectory: DrivenTrajectory,
    parts: ToolLoopParts,
    columns: Mapping[str, Any],
    record: RolloutRecord,
    fields: Mapping[str, Any],
) -> list[TurnRewardOutput]:
    """One row per conversation, of which the last has the record and the outcome; the last alone if masked."""
    outputs = []
    conversations = trajectory.conversations[-1 if record.stop_reason.is_masked else 0 :]
    for conversation in conversations:
        is_last = conversation is conversations[-1]
        (row,) = rows_of([Stretch(tokens=conversation.tokens, first_step=0)], RowLayout.CONTEXT)
        outcome = {RECORD_FIELD: record.as_dict(), **fields} if is_last else {}
        output = TurnRewardOutput(
            prompt_ids=row.prompt_ids,
            response_ids=row.response_ids,
            response_mask=row.mask,
            response_logprobs=row.logprobs,
            turn_ends=row.step_ends,
            num_turns=2 * len(trajectory.turn_tokens),
            routed_experts=conversation.routed_experts,
            metrics=trajectory.engine.metrics,
            extra_fields={**trajectory.engine.extra_fields, TURN_ENDS_FIELD: row.step_ends, **outcome},
        )
        if is_dumped(parts.loop.config):
            add_transcript(
                output, parts.loop.config, columns, record if is_last else None, conversation.turns,
                conversation.prompt,
            )  # fmt: skip
        outputs.append(output)
    return outputs
