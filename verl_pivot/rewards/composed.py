"""RewardComposer: a finished rollout and its scores -> its reward by the terms of `pivot.rewards`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from transformers import PreTrainedTokenizerBase

from verl_pivot.data.pivots import row_to_turn
from verl_pivot.data.rollout_records import (
    GROUP_VERDICT_FIELD,
    RECORD_FIELD,
    RUBRIC_FIELD,
    parse_record,
)
from verl_pivot.errors import ConfigError, DataError, PivotError, UserCodeError
from verl_pivot.rewards.compose import (
    ComposedReward,
    Composition,
    TermValue,
    TermVerifier,
    compose,
    named_terms,
)
from verl_pivot.rewards.process_record import ProcessRecord
from verl_pivot.rewards.process_rewards import played_turns
from verl_pivot.rewards.task_turns import turn_of_task, with_verifier
from verl_pivot.rewards.term_values import VALUES, RolloutFacts
from verl_pivot.types import Verdict
from verl_pivot.user_code import MAX_DETAIL
from verl_pivot.verifiers.scoring import score_completion


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRollout:
    """A finished rollout that was not masked, and its scores."""

    response_ids: list[int]
    row: Mapping[str, Any]
    """Columns of the dataset's row."""
    extra_fields: Mapping[str, Any]
    """Fields that the agent loop wrote beside the tokens."""
    outcome: TermValue | None = None
    process: ProcessRecord | TermValue | None = None
    """Judge's scores of its turns, or the undecided value of a judge that failed; None where no term reads them."""


class RewardComposer:
    """Computes rewards by the terms of one composition."""

    def __init__(
        self,
        composition: Composition,
        max_turns: int,
        tokenizer: PreTrainedTokenizerBase,
        end_token_ids: frozenset[int],
    ) -> None:
        self._composition, self._max_turns = composition, max_turns
        self._tokenizer, self._end_token_ids = tokenizer, end_token_ids
        self._terms = {name: term for name, term, _ in named_terms(composition) if term.terms is None}
        self.names = tuple(composition.terms)
        """Names of the outermost terms."""

    def reads(self, value: str) -> bool:
        """Whether a term has this value."""
        return any(term.value == value for term in self._terms.values())

    async def reward(self, rollout: ScoredRollout) -> ComposedReward:
        """The reward of a rollout.

        Raises:
            DataError: If the agent loop wrote no record, or the row lacks what a verifier needs.
            ConfigError: If a verifier cannot be made for the row.
            UserCodeError: If a verifier raises.
        """
        fields = rollout.extra_fields.get(RECORD_FIELD)
        if fields is None:
            raise DataError(
                "pivot.rewards needs the record of a rollout with tools, and another loop played this row: remove the "
                "row's column agent_name, or set actor_rollout_ref.rollout.agent.default_agent_loop=pivot_tools"
            )
        needs_turns = any(term.verifier is not None for term in self._terms.values())
        turns = (
            played_turns(rollout.response_ids, rollout.extra_fields, self._tokenizer, self._end_token_ids)
            if needs_turns
            else []
        )
        facts = RolloutFacts(
            record=parse_record(fields),
            outcome=rollout.outcome,
            compared=_verdict_value(rollout.extra_fields.get(GROUP_VERDICT_FIELD)),
            rubric=_verdict_value(rollout.extra_fields.get(RUBRIC_FIELD)),
            process=rollout.process,
        )
        values = {
            name: VALUES[term.value].of(facts)
            if term.value is not None
            else await _verified(term.verifier, [turn.text for turn in turns], facts, rollout.row)
            for name, term in self._terms.items()
        }
        return compose(self._composition, values, self._max_turns)


def _verdict_value(verdict: Mapping[str, Any] | None) -> TermValue | None:
    """Value of a term from a verdict that the agent loop wrote; None without a verdict."""
    if verdict is None:
        return None
    return TermValue(value=verdict["score"], reason=str(verdict["reason"]), detail=str(verdict["detail"]))


def value_of_verdict(verdict: Verdict) -> TermValue:
    return TermValue(value=verdict.score, reason=verdict.reason, detail=verdict.detail)


def verifier_failed(error: PivotError) -> Verdict:
    """Undecided verdict: a system that a verifier needs has failed."""
    return Verdict.undecided("verifier_failed", str(error)[:MAX_DETAIL])


async def _verified(
    verifier: TermVerifier | None, texts: Sequence[str], facts: RolloutFacts, row: Mapping[str, Any]
) -> TermValue:
    """A verifier's score of the first turn if the row holds the expert's action, else of the last turn.

    Undecided if a system that the verifier asks fails: the reward may not need the term.
    """
    assert verifier is not None, "a term has a value, a verifier or terms"
    is_pivot = row.get("expert") is not None
    number = 0 if is_pivot else len(texts) - 1
    is_last = number == len(texts) - 1
    ended = not (is_last and facts.record.is_cut_off)
    name, options = verifier.name, verifier.options
    asked = with_verifier(row_to_turn(row), name, options) if is_pivot else turn_of_task(row, name, options)
    try:
        return value_of_verdict(await score_completion(texts[number], ended, asked))
    except (DataError, ConfigError, UserCodeError):
        raise
    except PivotError as error:
        return value_of_verdict(verifier_failed(error))


def paid_on_last_turn(record: ProcessRecord, total: float) -> ProcessRecord:
    """Record with the whole reward on the last turn, for judged turns whose mean score is a term of the reward."""
    return msgspec.structs.replace(record, rewards=(*(0.0,) * (len(record.rewards) - 1), total))
