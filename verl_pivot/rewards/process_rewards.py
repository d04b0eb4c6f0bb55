"""ProcessRewards: a finished rollout and its outcome -> the ProcessRecord with a reward for each of its turns."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
from transformers import PreTrainedTokenizerBase

from verl_pivot.data.rollout_records import OPENING_FIELD, RECORD_FIELD, TURN_ENDS_FIELD, parse_record
from verl_pivot.data.validation_rows import is_for_validation
from verl_pivot.engines.rendering import action_text
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.rewards.checklist import checked_items
from verl_pivot.rewards.checklist_judge import ChecklistJudge, ChecklistJudgement, ChecklistTask
from verl_pivot.rewards.principles import ShownTurn, task_text
from verl_pivot.rewards.process import ProcessRule, turn_rewards
from verl_pivot.rewards.process_record import ProcessRecord
from verl_pivot.rewards.process_settings import ProcessSettings
from verl_pivot.rewards.turn_judge import TrajectoryJudgement, TurnJudge

CHECKLIST_COLUMN = "checklist"
"""Column of a row with the items of its checklist; without it the judge writes one."""


class ProcessRewards:
    """Rewards of a rollout's turns by the mode, the judge and the outcome.

    With mode outcome, and in validation without `judge_validation`, no judge is asked and the outcome alone counts.
    """

    def __init__(
        self,
        settings: ProcessSettings,
        tokenizer: PreTrainedTokenizerBase,
        end_token_ids: frozenset[int],
        *,
        num_workers: int,
    ) -> None:
        """Make the judge; nothing is asked yet.

        Args:
            settings: The section `pivot.process`.
            tokenizer: Tokenizer of the policy.
            end_token_ids: Tokens that end a turn.
            num_workers: Reward workers of the run, which share `max_concurrency`.

        Raises:
            ConfigError: If the judge cannot be made of these settings.
        """
        self._settings = settings
        self._tokenizer = tokenizer
        self._end_token_ids = end_token_ids
        self._judge: TurnJudge | ChecklistJudge | None = None
        if settings.mode != "outcome":
            judge = ChecklistJudge if settings.has_checklist else TurnJudge
            self._judge = judge(settings, tokenizer, num_workers=num_workers)

    async def close(self) -> None:
        if self._judge is not None:
            await self._judge.close()

    async def record(
        self, response_ids: list[int], outcome: float, row: Mapping[str, Any], extra_fields: Mapping[str, Any]
    ) -> ProcessRecord:
        """Judge the turns of a rollout.

        Args:
            response_ids: Tokens of the rollout after its prompt.
            outcome: Score of the rollout.
            row: Columns of its row.
            extra_fields: Fields that the agent loop wrote beside the tokens.

        Raises:
            VerifierError: If the judge cannot be reached.
            ConfigError: If the judge refuses every question, or the mode does not allow this outcome.
            DataError: If the agent loop wrote no record of turns, or the row's checklist is not valid.
        """
        judge, rule = self._judge_and_rule(row)
        if rule.mode == "renorm" and not 0.0 <= outcome <= 1.0:
            raise ConfigError(
                f"pivot.process.mode=renorm needs outcomes in [0, 1], but an outcome is {outcome:g}: choose another "
                "reward function, or another pivot.process.mode"
            )
        turns = played_turns(response_ids, extra_fields, self._tokenizer, self._end_token_ids)
        judgement = await _judgement(judge, turns, row, extra_fields)
        judged = judgement.judged
        scores = [turn.score for turn in judged.turns] if judge is not None else [0.0] * (len(turns) - 1)
        about_turns = [answer for turn in judged.turns for answer in turn.answers]
        answers = [*judgement.writing, *about_turns]
        return ProcessRecord(
            rewards=tuple(turn_rewards(scores, outcome, rule)),
            scores=tuple(scores) if judge is not None else (),
            checklist=judgement.items,
            reasons=tuple(turn.reason for turn in judged.turns if turn.reason),
            num_asked=len(about_turns),
            num_cached=sum(answer.is_cached for answer in answers),
            num_prompt_tokens=sum(answer.num_prompt_tokens for answer in answers if not answer.is_cached),
            num_completion_tokens=sum(answer.num_completion_tokens for answer in answers if not answer.is_cached),
            seconds=judged.seconds,
        )

    def _judge_and_rule(self, row: Mapping[str, Any]) -> tuple[TurnJudge | ChecklistJudge | None, ProcessRule]:
        """Judge for a rollout of this row, and the rule by which its turns are paid."""
        if self._settings.judge_validation or not is_for_validation(row, "pivot.process.judge_validation", "ppr"):
            return self._judge, self._settings
        return None, _OUTCOME_ALONE


_OUTCOME_ALONE = ProcessRule(mode="outcome")


async def _judgement(
    judge: TurnJudge | ChecklistJudge | None,
    turns: Sequence[ShownTurn],
    row: Mapping[str, Any],
    extra_fields: Mapping[str, Any],
) -> ChecklistJudgement:
    """Judgement of the turns; without items if the judge goes by principles or is None."""
    if judge is None:
        return ChecklistJudgement(items=(), judged=TrajectoryJudgement(turns=()))
    task = task_text(row["raw_prompt"])
    if isinstance(judge, TurnJudge):
        return ChecklistJudgement(items=(), judged=await judge.judge(task, turns))
    about = ChecklistTask(task=task, first_page=str(extra_fields.get(OPENING_FIELD) or ""), items=row_checklist(row))
    return await judge.judge(about, turns)


def row_checklist(row: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The checklist in a row's column `checklist`; None if the row has none.

    Raises:
        DataError: If the column holds something else; the message says what.
    """
    given = row.get(CHECKLIST_COLUMN)
    if given is None:
        return None
    items = given.tolist() if isinstance(given, numpy.ndarray) else given  # a list of a parquet file is an array
    if not isinstance(items, list | tuple):
        raise DataError(
            f"the column {CHECKLIST_COLUMN}: must be a list of texts, got {type(items).__name__}; correct the row"
        )
    try:
        return checked_items(items)
    except ValueError as error:
        raise DataError(
            f"the column {CHECKLIST_COLUMN}: {error}; correct the row, or leave the column empty, so that the judge "
            "writes a checklist"
        ) from error


def played_turns(
    response_ids: Sequence[int],
    extra_fields: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    end_token_ids: frozenset[int],
) -> list[ShownTurn]:
    """Turns of a rollout, each with the text that the policy read after it.

    Args:
        response_ids: Tokens of the rollout after its prompt.
        extra_fields: Fields that the agent loop wrote beside the tokens: where turns end, and how many tokens each has.
        tokenizer: Tokenizer of the policy.
        end_token_ids: Tokens that end a turn.

    Raises:
        DataError: If there is no record of turns, or it does not fit the tokens.
    """
    ends, record = extra_fields.get(TURN_ENDS_FIELD), extra_fields.get(RECORD_FIELD)
    if not ends or record is None:
        raise DataError(
            "pivot.process judges the turns of the agent loop pivot_tools, and another loop played this row: remove "
            "the row's column agent_name, or set actor_rollout_ref.rollout.agent.default_agent_loop=pivot_tools"
        )
    sizes = parse_record(record).turn_tokens
    starts = [end - size for end, size in zip(ends, sizes, strict=False)]
    bounds = [0, *(position for turn in zip(starts, ends, strict=False) for position in turn), len(response_ids)]
    if len(sizes) != len(ends) or sorted(bounds) != bounds:
        raise DataError(f"turns of {list(sizes)} tokens that end at {list(ends)} do not fit {len(response_ids)} tokens")
    following = [*starts[1:], len(response_ids)]
    return [
        ShownTurn(
            text=action_text(list(response_ids[start:end]), tokenizer, end_token_ids)[0],
            observation=str(tokenizer.decode(list(response_ids[end:then]), skip_special_tokens=True)).strip(),
        )
        for start, end, then in zip(starts, ends, following, strict=True)
    ]
