"""PlayedConversation and its problem -> Outcome: the reward that training would give, and the reason."""

import asyncio
import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from verl_pivot.data.actions import TRUNCATED
from verl_pivot.data.faults import SYSTEM_FAILURE, FaultReason, fault_verdict
from verl_pivot.data.json_values import as_object, decode_json
from verl_pivot.data.pivots import row_to_turn
from verl_pivot.data.rollout_records import RECORD_FIELD
from verl_pivot.errors import ConfigError, DataError, UserCodeError, VerifierError
from verl_pivot.playing.conversation import PlayedConversation
from verl_pivot.playing.player import PlayerTurn
from verl_pivot.playing.problems import Problem
from verl_pivot.rollout.notebook_outcome import judged_answer
from verl_pivot.rollout.outcome import decided_outcome
from verl_pivot.tools.rollout_tools import RolloutTools
from verl_pivot.types import JsonObject, Malformed, Role, Turn, Verdict
from verl_pivot.user_code import code_error
from verl_pivot.user_modules import load_object
from verl_pivot.verifiers.scoring import score_message

_FAULTS = (*FaultReason, SYSTEM_FAILURE, "environment_failed")
"""Reasons of undecided verdicts that mean a failure, and not just an outcome that cannot be decided."""
_OBJECTS = ("reward_model", "extra_info")
"""Columns that a reward function reads as objects."""
RewardFunction = Callable[..., Any]
"""verl's reward function: `compute_score(data_source, solution_str, ground_truth, extra_info)`, async or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The reward of a conversation.

    Example:
        Outcome(reward=1.0, by="environment", reason="solved")
    """

    reward: float | None
    """Reward; None if it is undecided, masked, or left to verl's reward function."""
    by: str
    """Source of the reward: "environment", "answer", the name of a verifier, "reward_function" or "nobody"."""
    reason: str = ""
    """Short code in snake_case, or the name of the reward function."""
    detail: str = ""
    """Explanation for the user."""
    is_masked: bool = False
    """Whether the system failed, so that training would exclude the conversation from the update."""

    def as_dict(self) -> JsonObject:
        return {"score": self.reward, "by": self.by, "reason": self.reason, "detail": self.detail}

    @property
    def is_fault_of_code(self) -> bool:
        """Whether the user's own code raised an exception or returned an invalid value."""
        return self.reason == FaultReason.USER_CODE_FAILED

    @property
    def passed(self) -> bool | None:
        """Whether the conversation may serve as an expert trajectory; None if undecided, False if it is masked."""
        if self.is_masked:
            return False
        return None if self.reward is None else self.reward >= 1.0


def load_reward_function(name: str) -> RewardFunction:
    """The function that `--reward-function` names.

    Raises:
        ConfigError: If there is no such function.
    """
    function = load_object(name, "reward function")
    if not callable(function):
        raise ConfigError(f"--reward-function {name} is not a function, but {function!r}")
    return function  # type: ignore[no-any-return]  # a wrong signature shows only when it is called


async def outcome_of(
    played: PlayedConversation,
    problem: Problem,
    tools: RolloutTools,
    reward_function: RewardFunction | None,
    *,
    is_notebook: bool = False,
) -> Outcome:
    """The outcome by the first that decides: a failure, an environment, a pivot's verifier, the reward function.

    The order is that of training. In a notebook, an environment or the row's accepted answers judge the submitted
    answer first.

    Raises:
        ConfigError: If the verifier is not registered.
        DataError: If the row of a pivot cannot be read.
    """
    masks = played.stop_reason.is_masked
    if is_notebook:
        judged = await judged_answer(played, problem.columns, tools)
        is_open = judged.is_compared and judged.verdict.score is None
        if not is_open or reward_function is None:
            by = "nobody" if judged.verdict.score is None else "answer"
            return _of_verdict(judged.verdict, by, is_masked=masks)
    last = played.turns[-1].message if played.turns else played.messages[0]
    verdict = None  # of an environment in a notebook: it has been asked about the submitted answer
    if not is_notebook:
        verdict = await decided_outcome(tools, played.stop_reason, last, played.failure, is_bug=played.is_bug)
    if verdict is not None:
        return _of_verdict(verdict, "nobody" if masks else "environment", is_masked=masks)
    try:
        if problem.columns.get("expert") is not None and played.turns:
            turn = _turn_of_row(problem)
            return _of_verdict(await _score_action(played.turns[0], turn), turn.verifier)
        if reward_function is not None:
            return await _call(reward_function, problem, played)
    except (UserCodeError, VerifierError) as error:
        return _of_verdict(fault_verdict(error), "nobody")
    source = problem.columns.get("data_source")
    detail = "no environment decides the reward" + (
        f"; in training verl's reward for data_source {source!r} does" * bool(source)
    )
    return Outcome(reward=None, by="nobody", reason="not_scored", detail=detail)


def outcome_of_failure(error: Exception) -> Outcome:
    """The outcome of a conversation whose tools failed to start or to close."""
    return _of_verdict(fault_verdict(error), "nobody", is_masked=True)


def _of_verdict(verdict: Verdict, by: str, *, is_masked: bool = False) -> Outcome:
    return Outcome(
        reward=verdict.score, by=by, reason=verdict.reason, detail=verdict.detail,
        is_masked=is_masked or verdict.reason in _FAULTS,
    )  # fmt: skip


def _turn_of_row(problem: Problem) -> Turn:
    try:
        return row_to_turn(problem.columns)
    except DataError as error:
        raise DataError(f"{problem.place}: {error}") from error


async def _score_action(action: PlayerTurn, turn: Turn) -> Verdict:
    """Verdict on the first turn, which is the action at the pivot; equals `score_completion` in training."""
    malformed = next((call for call in action.calls if isinstance(call, Malformed)), None)
    mistake = malformed if action.ended else TRUNCATED
    if mistake is not None:
        return Verdict.refuse(mistake.reason, mistake.detail)
    return await score_message(action.message, turn)


def transcript(played: PlayedConversation) -> str:
    """Text after the prompt, close to verl's decoded response: turns, and observations after the name of their role."""
    parts: list[str] = []
    shown = played.messages[played.num_prompt_messages :]
    if len(shown) == 1:  # a single turn, or all turns in one message
        return shown[0].content if len(played.turns) > 1 else played.turns[0].raw_text
    turns = iter(played.turns)
    for message in shown:
        is_turn = message.role is Role.ASSISTANT
        text = next(turns).raw_text if is_turn else message.content
        parts.append(text if not parts else f"{message.role.value}\n{text}")
    return "\n".join(parts)


async def _call(function: RewardFunction, problem: Problem, played: PlayedConversation) -> Outcome:
    columns = problem.columns
    record = played.record(problem.prompt_id).as_dict()
    model, info = (_as_mapping(problem, column) for column in _OBJECTS)
    values = {
        "data_source": columns.get("data_source"),
        "solution_str": transcript(played),
        "ground_truth": model.get("ground_truth"),
        "extra_info": {**info, RECORD_FIELD: record},
    }
    name = getattr(function, "__name__", repr(function))
    try:
        is_async = inspect.iscoroutinefunction(function)
        result = await (function(**values) if is_async else asyncio.to_thread(function, **values))
    except VerifierError:  # a reward function of this package that cannot decide
        raise
    except Exception as error:  # the user's reward function, which may raise anything
        raise code_error(f"reward function {name}", error) from error
    score = result.get("score") if isinstance(result, dict) else result
    if not isinstance(score, bool | int | float) or not math.isfinite(score):
        raise UserCodeError(
            f"reward function {name} returned {result!r:.80}; return a finite number, or a dict with one as `score`"
        )
    return Outcome(reward=float(score), by="reward_function", reason=name)


def check_reward_columns(problems: Iterable[Problem]) -> None:
    """Refuse rows with which a reward function could not be called, before anything is played.

    Raises:
        DataError: If a column of a row is no object; the message names both.
    """
    for problem in problems:
        for column in _OBJECTS:
            _as_mapping(problem, column)


def _as_mapping(problem: Problem, column: str) -> JsonObject:
    """The object in a column, which may be JSON text; empty if the row does not have the column."""
    value = problem.columns.get(column)
    try:
        decoded = decode_json(value, what=column) if isinstance(value, str) else value
        return {} if decoded is None else as_object(decoded, column)
    except DataError as error:
        raise DataError(f"{problem.place}: {error}; a reward function is given this column as an object") from error
