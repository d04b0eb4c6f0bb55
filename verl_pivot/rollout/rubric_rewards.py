"""RubricRewards: a finished rollout -> the Verdict by its criteria; if criteria evolve, once its group has ended."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any, Self

from omegaconf import DictConfig

from verl_pivot.data.faults import fault_verdict, with_row_name
from verl_pivot.data.json_values import decode_json
from verl_pivot.data.prompts import prompt_id
from verl_pivot.data.rollout_records import CRITERIA_FIELD, RUBRIC_FIELD, VERDICT_FIELD, is_undecided
from verl_pivot.data.step_state import StepState, state_path
from verl_pivot.data.validation_rows import is_for_validation
from verl_pivot.engines.text_cut import Tokenizer
from verl_pivot.errors import ConfigError, DataError, StateError, VerifierError
from verl_pivot.loop_local import LoopLocal
from verl_pivot.rewards.principles import task_text
from verl_pivot.rewards.process_metrics import JUDGE_FAILED
from verl_pivot.rewards.rubric_group import QueryReport, RubricGroup, ScoredReport
from verl_pivot.rewards.rubric_judge import JudgedReport, RubricJudge
from verl_pivot.rewards.rubric_settings import RubricSettings, parse_rubrics
from verl_pivot.rewards.rubrics import parse_criteria
from verl_pivot.rewards.turn_rewards import TurnRewardOutput
from verl_pivot.rollout.group_rewards import FinishedRollout, GroupSizes
from verl_pivot.rollout.meeting import Meeting, MeetingError
from verl_pivot.types import EnvironmentReturn, Verdict
from verl_pivot.user_code import MAX_DETAIL
from verl_pivot.verifiers.judge_client import UnansweredQuestionError

STATE = "rubrics"
"""Name of the state that holds the criteria of all queries."""


class RubricRewards:
    """Scores rollouts by criteria; made once for an event loop.

    A rollout that the system failed is left out. In validation only the row's own criteria count, without a schedule of
    strictness, so that scores of different steps can be compared.
    """

    def __init__(
        self, settings: RubricSettings, sizes: GroupSizes, tokenizer: Tokenizer, num_workers: int, local_dir: str
    ) -> None:
        """Make the judge; nothing is asked yet.

        Raises:
            ConfigError: If the judge cannot be made of these settings, or criteria cannot be kept.
        """
        self._settings, self._sizes = settings, sizes
        self._judge = RubricJudge(settings, tokenizer, num_workers=num_workers)
        self._state = StepState(state_path(local_dir, STATE)) if settings.evolve else None
        training = RubricGroup(settings, self._judge, self._state)
        lasting = settings.model_copy(update={"strictness": None})  # a schedule would change what a score means
        self._in_training, self._in_validation = training, RubricGroup(lasting, self._judge, None)
        self._meeting: Meeting[QueryReport, ScoredReport | UnansweredQuestionError] = Meeting(
            training.scored, wait_seconds=settings.wait_seconds
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._judge.close()
        if self._state is not None:
            self._state.close()

    async def rewarded(
        self, row: Mapping[str, Any], play: Callable[[], Awaitable[FinishedRollout]]
    ) -> TurnRewardOutput | list[TurnRewardOutput]:
        """Play a rollout, and add the verdict by its criteria.

        Raises:
            ConfigError: If nothing says whether the row is for validation.
        """
        is_validation = is_for_validation(row, "pivot.rubrics", "rubrics")
        if is_validation or not self._settings.evolve:
            finished = await play()
            if isinstance(finished.output, list) or is_undecided(finished.output.extra_fields.get(VERDICT_FIELD)):
                return finished.output
            alone = self._in_validation if is_validation else self._in_training
            return await _with_verdict(finished.output, row, lambda: self._scored_alone(alone, row, finished))
        async with self._meeting.joined(str(row["uid"]), self._sizes.training, min_items=1) as member:
            finished = await play()
            if isinstance(finished.output, list) or is_undecided(finished.output.extra_fields.get(VERDICT_FIELD)):
                return finished.output

            async def scored() -> ScoredReport | UnansweredQuestionError:
                return await member.result(self._report(row, finished))

            return await _with_verdict(finished.output, row, scored)

    async def _scored_alone(
        self, group: RubricGroup, row: Mapping[str, Any], finished: FinishedRollout
    ) -> ScoredReport | UnansweredQuestionError:
        item = self._report(row, finished)
        if not item.fixed:
            raise DataError(
                "the row has no criteria, which validation and pivot.rubrics.evolve=False need to score it: "
                "give it a column criteria, a list of objects with text and weight"
            )
        (scored,) = await group.scored([item])
        return scored

    def _report(self, row: Mapping[str, Any], finished: FinishedRollout) -> QueryReport:
        turns = finished.turns
        observed = "\n\n".join(turn.observation for turn in turns[:-1] if turn.observation)
        report = JudgedReport(task_text(row["raw_prompt"]), observed, turns[-1].text)
        fixed = parse_criteria(_plain(row.get("criteria")), self._settings.scale)
        return QueryReport(prompt_id(row["raw_prompt"]), int(row.get("global_steps", 0)), fixed, report)


async def _with_verdict(
    output: TurnRewardOutput,
    row: Mapping[str, Any],
    score: Callable[[], Awaitable[ScoredReport | UnansweredQuestionError]],
) -> TurnRewardOutput:
    """The output with the judge's verdict; an undecided one if there is no judgement, never the policy's fault."""
    try:
        scored = await score()
        if isinstance(scored, UnansweredQuestionError):
            raise scored
        output.extra_fields[CRITERIA_FIELD] = scored.as_text()
        verdict: Verdict = EnvironmentReturn(score=scored.score, reason="graded")
    except MeetingError as error:
        verdict = Verdict.undecided(error.failure.value, str(error))
    except (VerifierError, StateError) as error:
        verdict = Verdict.undecided(JUDGE_FAILED, str(error)[:MAX_DETAIL])
    except (ConfigError, DataError) as error:
        verdict = fault_verdict(error)
    output.extra_fields[RUBRIC_FIELD] = asdict(with_row_name(verdict, row))
    return output


def _plain(value: Any) -> Any:
    """Criteria as JSON values: a text is decoded, and nulls, which parquet adds, are left out."""
    if isinstance(value, str):
        value = decode_json(value, what="criteria")
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        return value
    return [
        {name: each[name] for name in each if each[name] is not None} if isinstance(each, Mapping) else each
        for each in value
    ]


def rubric_rewards_of(config: DictConfig, tokenizer: Tokenizer) -> LoopLocal[RubricRewards] | None:
    """The scorer of the rollouts of this process, shared by all its agent loops; None without `pivot.rubrics`.

    Raises:
        ConfigError: If a key of the section is wrong.
    """
    if "rubrics" not in config.pivot:
        return None
    settings, sizes = parse_rubrics(config), GroupSizes.of(config)
    num_workers = int(config.actor_rollout_ref.rollout.agent.num_workers)
    local_dir = str(config.trainer.default_local_dir)
    made = LoopLocal(lambda: RubricRewards(settings, sizes, tokenizer, num_workers, local_dir))
    return _made.setdefault((settings, sizes, num_workers, local_dir), made)


_made: dict[tuple[RubricSettings, GroupSizes, int, str], LoopLocal[RubricRewards]] = {}
"""{settings: scorer} of this process, kept here since verl makes an agent loop for each rollout."""
