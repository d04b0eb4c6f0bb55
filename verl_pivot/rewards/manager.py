"""PivotRewardManager: a finished rollout -> its reward and the reason, from the verifier that its row names."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from omegaconf import DictConfig
from transformers import PreTrainedTokenizerBase
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

from verl_pivot.browser.settings import use_browser_of
from verl_pivot.data.faults import FaultReason, fault_verdict, with_row_name
from verl_pivot.data.labels import has_label
from verl_pivot.data.pivots import row_to_turn
from verl_pivot.data.rollout_records import (
    CRITERIA_FIELD,
    GROUP_VERDICT_FIELD,
    RECORD_FIELD,
    SCORES_FIELD,
    TURN_ENDS_FIELD,
    VERDICT_FIELD,
    is_undecided,
    parse_record,
)
from verl_pivot.engines.rendering import action_text, end_token_ids
from verl_pivot.errors import ConfigError, DataError, PivotError, UserCodeError, VerifierError
from verl_pivot.rewards.compose import ComposedReward, TermValue
from verl_pivot.rewards.compose_settings import composition_of
from verl_pivot.rewards.composed import (
    RewardComposer,
    ScoredRollout,
    paid_on_last_turn,
    value_of_verdict,
    verifier_failed,
)
from verl_pivot.rewards.process_metrics import JUDGE_FAILED
from verl_pivot.rewards.process_record import PROCESS_FIELD, ProcessRecord
from verl_pivot.rewards.process_rewards import ProcessRewards
from verl_pivot.rewards.process_settings import parse_process
from verl_pivot.rewards.reward_terms import PAID, TERMS_FIELD, paid_keys, terms_text
from verl_pivot.rewards.ruler_metrics import INDEPENDENT_REWARD, RULER
from verl_pivot.types import EnvironmentReturn, Verdict
from verl_pivot.user_code import MAX_DETAIL, code_error
from verl_pivot.verifiers.registry import load_verifier_modules
from verl_pivot.verifiers.scoring import score_completion


class PivotRewardManager(NaiveRewardManager):  # type: ignore[misc]  # verl is untyped here
    """Reward manager that scores pivots with the verifier of their row, and rows of any other file as stock verl does.

    A verdict that comes with the rollout, from its environment or for a failure of the system, is used as it is. A
    verdict from the comparison with the other rollouts of the prompt replaces all others except that of a fault.
    If a rollout goes on after its pivot, only its first turn is scored, since that turn is the action at the pivot.
    With `pivot.rewards` the score of a rollout is one of the terms that its reward is composed of.
    """

    def __init__(self, config: DictConfig, tokenizer: PreTrainedTokenizerBase, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, tokenizer, *args, **kwargs)
        use_browser_of(config.pivot)
        load_verifier_modules(config.pivot.verifier_modules)
        self.end_token_ids = end_token_ids(config.actor_rollout_ref.model.path, tokenizer)

        self.process = _process_rewards(config, tokenizer, self.end_token_ids)
        self.composed = _composed_rewards(config, tokenizer, self.end_token_ids)

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        rollout = data[-1]  # if a rollout has several outputs, the last one gets the reward
        extra_fields = rollout.non_tensor_batch.get("tool_extra_fields") or {}
        if self.composed is not None:
            return await self._composed_reward(self.composed, data, rollout, extra_fields)
        if (compared := extra_fields.get(GROUP_VERDICT_FIELD)) is not None:
            return await self._group_reward(msgspec.convert(compared, Verdict), data, rollout, extra_fields)
        reward = await self._outcome(data, rollout)
        return reward if self.process is None else await _with_turn_rewards(reward, self.process, rollout)

    async def _group_reward(
        self, verdict: Verdict, data: DataProto, rollout: Any, extra_fields: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Reward by the comparison with other rollouts; the row's own reward, if there is one, is kept beside it."""
        record_info = _record_info(extra_fields.get(RECORD_FIELD))
        reward = _reward(verdict, verifier=RULER, record_info=record_info)
        if VERDICT_FIELD not in extra_fields and not has_label(rollout.non_tensor_batch):
            return reward
        own = await self._outcome(data, rollout)
        if own["reward_extra_info"].get("reason") in set(FaultReason):  # a fault that the user should correct
            return own
        info = {**reward["reward_extra_info"], INDEPENDENT_REWARD: float(own["reward_score"])}
        return {**reward, "reward_extra_info": info}

    async def _composed_reward(
        self, composed: RewardComposer, data: DataProto, rollout: Any, extra_fields: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Reward by the terms of `pivot.rewards`; for a masked rollout or a fault, an undecided one with these keys."""
        row = rollout.non_tensor_batch
        own, record = None, None
        if composed.reads("outcome") or is_undecided(extra_fields.get(VERDICT_FIELD)):
            own = await self._outcome(data, rollout)
            info = own["reward_extra_info"]
            if is_undecided(extra_fields.get(VERDICT_FIELD)) or info.get("reason") in set(FaultReason):
                return _with_terms(own, None, extra_fields, composed)
        ids, judge = _response_ids(rollout), self.process if composed.reads("process") else None
        try:
            record = None if judge is None else await _judged_turns(judge, ids, row, extra_fields)
            made = await composed.reward(
                ScoredRollout(
                    response_ids=ids, row=row, extra_fields=extra_fields, outcome=_outcome_value(own), process=record
                )
            )
        except (DataError, ConfigError, UserCodeError) as error:
            made = _not_composed(with_row_name(fault_verdict(error), row))
        known = {} if own is None else own["reward_extra_info"]
        reward = _with_terms(_composed(made, known, extra_fields), made, extra_fields, composed)
        if judge is not None:
            return _with_record(reward, record, made, len(extra_fields.get(TURN_ENDS_FIELD) or []))
        return reward if self.process is None else await _with_turn_rewards(reward, self.process, rollout)

    async def _outcome(self, data: DataProto, rollout: Any) -> dict[str, Any]:
        """Reward of the rollout as a whole."""
        row = rollout.non_tensor_batch
        extra_fields = row.get("tool_extra_fields") or {}
        record_info = {**_record_info(extra_fields.get(RECORD_FIELD)), **(extra_fields.get(SCORES_FIELD) or {})}
        if (outcome := extra_fields.get(VERDICT_FIELD)) is not None:
            verdict = with_row_name(msgspec.convert(outcome, EnvironmentReturn), row)
            return _reward(verdict, verifier="outcome", record_info=record_info)
        if row.get("expert") is None:
            return await self._stock_reward(data, row, record_info)
        ids = _first_turn(_response_ids(rollout), extra_fields.get(TURN_ENDS_FIELD) or [])
        text, ended = action_text(ids, self.tokenizer, self.end_token_ids)
        try:
            verdict = await score_completion(text, ended, row_to_turn(row))
        except (DataError, ConfigError, UserCodeError) as error:
            verdict = with_row_name(fault_verdict(error), row)
        except PivotError as error:  # a system that the verifier needs has failed
            verdict = verifier_failed(error)
        return _reward(verdict, verifier=str(row.get("verifier")), record_info=record_info)

    async def _stock_reward(
        self, data: DataProto, row: Mapping[str, Any], record_info: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Reward of verl's own reward function, of one of ours, or of the user's."""
        place = f"reward function {_name_of(self.compute_score)}"
        try:
            reward = dict(await super().run_single(data))
            _check_score(place, reward["reward_score"])
        except VerifierError as error:  # a system that the function needs has failed
            verdict = verifier_failed(error)
            return _reward(verdict, verifier="reward_function", record_info=record_info)
        except UserCodeError as error:
            return _reward(
                with_row_name(fault_verdict(error), row), verifier="reward_function", record_info=record_info
            )
        except Exception as error:  # noqa: BLE001  the user's own code: verl would log it once per rollout
            verdict = with_row_name(fault_verdict(code_error(place, error)), row)
            return _reward(verdict, verifier="reward_function", record_info=record_info)
        return _with_own_keys(reward, record_info)


def _check_score(place: str, score: object) -> None:
    """Refuse a score that no update can use.

    Raises:
        UserCodeError: If it is no finite number.
    """
    try:
        is_finite = math.isfinite(score)  # type: ignore[arg-type]  # any value that the user returned
    except TypeError:
        is_finite = False
    if not is_finite:
        raise UserCodeError(f"{place} returned the score {score!r:.80}; return a finite number, or raise an error")


def _outcome_value(own: Mapping[str, Any] | None) -> TermValue | None:
    """Score of the rollout as the value of a term; None if there is no score to read."""
    if own is None:
        return None
    info = own["reward_extra_info"]
    score = None if info["undecided"] else float(own["reward_score"])
    return TermValue(value=score, reason=str(info.get("reason", "")), detail=str(info.get("detail", "")))


def _not_composed(verdict: Verdict) -> ComposedReward:
    return ComposedReward(total=None, terms=(), reason=verdict.reason, detail=verdict.detail)


def _composed(made: ComposedReward, known: Mapping[str, Any], extra_fields: Mapping[str, Any]) -> dict[str, Any]:
    """A composed reward as verl's dictionary, with the other values that came with the outcome's score."""
    verdict = EnvironmentReturn(score=made.total, reason=made.reason, detail=made.detail)
    reward = _reward(verdict, verifier="rewards", record_info=_record_info(extra_fields.get(RECORD_FIELD)))
    return {**reward, "reward_extra_info": {**known, **reward["reward_extra_info"]}}


def _with_terms(
    reward: Mapping[str, Any], made: ComposedReward | None, extra_fields: Mapping[str, Any], composed: RewardComposer
) -> dict[str, Any]:
    """A reward with the terms that it comes from, and with the criteria of `pivot.rubrics`."""
    shown = made or ComposedReward(total=None, terms=(), reason=str(reward["reward_extra_info"].get("reason", "")))
    terms = {TERMS_FIELD: terms_text(shown), **paid_keys(shown, composed.names)}
    criteria = {CRITERIA_FIELD: str(extra_fields.get(CRITERIA_FIELD, ""))} if composed.reads("rubric") else {}
    return {**reward, "reward_extra_info": {**reward["reward_extra_info"], **terms, **criteria}}


def _with_record(
    reward: dict[str, Any], record: ProcessRecord | TermValue | None, made: ComposedReward, num_turns: int
) -> dict[str, Any]:
    """A reward with the record of the judged turns, whose mean score is one of its terms.

    The record has no scores if the judge failed and the reward does not need them.
    """
    if not isinstance(record, ProcessRecord):
        record = ProcessRecord(rewards=(0.0,) * num_turns, scores=())
    text = "" if made.total is None else paid_on_last_turn(record, made.total).as_text()
    return {**reward, "reward_extra_info": {**reward["reward_extra_info"], PROCESS_FIELD: text}}


async def _judged_turns(
    process: ProcessRewards, ids: list[int], row: Mapping[str, Any], extra_fields: Mapping[str, Any]
) -> ProcessRecord | TermValue:
    """Record of the judged turns; an undecided value if the judge failed, since the reward may not need it."""
    try:
        return await process.record(ids, 0.0, row, extra_fields)
    except (DataError, ConfigError):
        raise
    except PivotError as error:
        return value_of_verdict(_not_judged(error))


def _composed_rewards(
    config: DictConfig, tokenizer: PreTrainedTokenizerBase, end_token_ids: frozenset[int]
) -> RewardComposer | None:
    """Composer of rewards; None without `pivot.rewards`."""
    composition = composition_of(config)
    if composition is None:
        return None
    return RewardComposer(composition, int(config.pivot.rollout.max_turns), tokenizer, end_token_ids)


def _not_judged(error: PivotError) -> Verdict:
    return Verdict.undecided(JUDGE_FAILED, str(error)[:MAX_DETAIL])


def _name_of(function: Callable[..., object]) -> str:
    """Name of a reward function; verl wraps it in a partial to bind `reward_kwargs`, or a function of the user."""
    while isinstance(function, partial):
        function = function.args[0] if function.args else function.func
    return function.__qualname__


def _process_rewards(
    config: DictConfig, tokenizer: PreTrainedTokenizerBase, end_token_ids: frozenset[int]
) -> ProcessRewards | None:
    """Source of rewards for single turns; None without the section `pivot.process`."""
    if "process" not in config.pivot:
        return None
    num_workers = int(config.reward.num_workers)
    return ProcessRewards(parse_process(config), tokenizer, end_token_ids, num_workers=num_workers)


async def _with_turn_rewards(reward: dict[str, Any], process: ProcessRewards, rollout: Any) -> dict[str, Any]:
    """The reward with a record of the turns' rewards, which `TurnRewardOutput` puts on their tokens.

    An undecided rollout is not judged. A rollout whose turns cannot be judged becomes undecided.
    """
    info: dict[str, Any] = {**reward["reward_extra_info"], PROCESS_FIELD: ""}
    outcome, row = float(reward["reward_score"]), rollout.non_tensor_batch
    if math.isnan(outcome) or info["undecided"]:
        return {**reward, "reward_extra_info": info}
    extra_fields = row.get("tool_extra_fields") or {}
    try:
        record = await process.record(_response_ids(rollout), outcome, row, extra_fields)
    except (DataError, ConfigError) as error:
        return _undecided(with_row_name(fault_verdict(error), row), info)
    except PivotError as error:
        return _undecided(_not_judged(error), info)
    return {**reward, "reward_extra_info": {**info, PROCESS_FIELD: record.as_text()}}


def _undecided(verdict: Verdict, info: Mapping[str, Any]) -> dict[str, Any]:
    """Undecided reward in place of the given one, because the turns could not be judged."""
    undecided = _reward(verdict, verifier="process", record_info={})
    return {**undecided, "reward_extra_info": {**info, **undecided["reward_extra_info"]}}


def _response_ids(rollout: Any) -> list[int]:
    responses = rollout.batch["responses"]
    length = int(rollout.batch["attention_mask"][-responses.shape[-1] :].sum())
    ids: list[int] = responses[:length].tolist()
    return ids


def _first_turn(response_ids: list[int], turn_ends: Sequence[int]) -> list[int]:
    return response_ids[: turn_ends[0]] if turn_ends else response_ids


def _record_info(fields: Mapping[str, Any] | None) -> dict[str, Any]:
    """Columns that verl's dumps show for a rollout with tools; empty for rollouts of other agent loops."""
    if fields is None:
        return {}
    record = parse_record(fields)
    return {
        "stop_reason": record.stop_reason.value,
        "num_calls": record.num_calls,
        "num_tool_errors": record.num_tool_errors,
    }


_OWN_KEYS = frozenset(
    {
        *("undecided", "verifier", "reason", "detail", "steps", "failed_steps"),
        *("stop_reason", "num_calls", "num_tool_errors"),
        *(CRITERIA_FIELD, INDEPENDENT_REWARD, PROCESS_FIELD, TERMS_FIELD),
    }
)
"""Keys of `reward_extra_info` that have a meaning in this package, which a reward function cannot know."""


def _with_own_keys(reward: dict[str, Any], record_info: Mapping[str, Any]) -> dict[str, Any]:
    """A reward of stock verl, with the keys that our replay buffer reads in every row.

    What a reward function returned under such a key, such as its `reason`, is kept as `returned_reason`.
    """
    own = {"score": float(reward["reward_score"]), "undecided": 0.0}
    returned = {
        f"returned_{key}" if key in _OWN_KEYS or key.startswith(PAID) else key: value
        for key, value in reward["reward_extra_info"].items()
    }
    return {**reward, "reward_extra_info": {**returned, **own, **record_info}}


def _reward(verdict: Verdict, *, verifier: str, record_info: Mapping[str, Any]) -> dict[str, Any]:
    """A verdict as verl's dictionary of a reward, with the same keys for every rollout.

    The reward of an undecided verdict is NaN: our replay buffer drops the row; without that buffer the update raises.
    """
    score = math.nan if verdict.score is None else verdict.score
    return {
        "reward_score": score,
        "reward_extra_info": {
            "score": score,
            "undecided": float(verdict.score is None),
            "verifier": verifier,
            "reason": verdict.reason,
            "detail": verdict.detail,
            **record_info,
        },
    }
