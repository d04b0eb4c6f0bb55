r"""Text of a trajectory that calculates, with its record -> its reward, by the rules of ReTool, ToRL and ZeroTIR.

The functions have the arguments of verl's reward functions: `+method=retool`, `torl` and `zerotir` name them, and
numbers go into `reward.custom_reward_function.reward_kwargs`. The answer is the \boxed{} in the text that the policy
wrote itself, and the verifier `math` compares it. Several different answers count as no answer; the released code takes
the last one.
"""

from collections.abc import Mapping
from typing import Any

from verl_pivot.data.rollout_records import RECORD_FIELD, parse_record
from verl_pivot.data.tagged_text import split_at_tags
from verl_pivot.errors import DataError, VerifierError
from verl_pivot.types import ErrorKind, Message, Role, Turn
from verl_pivot.verifiers.math import MathOptions, MathVerifier

_EXECUTION_FAILURES = (ErrorKind.EXECUTION_ERROR, ErrorKind.TIME_LIMIT)
_TURN = Turn(trajectory_id="trajectory", index=0, state=(Message(role=Role.USER),), expert=Message(role=Role.ASSISTANT))
"""Turn that the verifier is given; the right answer is not in the turn, but in the verifier's options."""


async def retool(data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> float:
    """1 for the right answer, else -1, whether the code ran or failed.

    Source: ReTool (arXiv:2504.11536, section 2.3).

    Args:
        data_source: Not read.
        solution_str: Text after the prompt, with observations in <interpreter>.
        ground_truth: The right answer: a formula or a number.
        extra_info: May have the record of the rollout, as verl gives it to reward functions.

    Raises:
        DataError: If the right answer is neither text nor number.
        VerifierError: If the verifier cannot decide, which makes the rollout undecided.
    """
    written = _without_retries(solution_str, extra_info)
    return 1.0 if await _is_right(written, "<interpreter>", "</interpreter>", ground_truth) else -1.0


async def torl(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any],
    *,
    execution_error_penalty: float = 0.0,
) -> float:
    """1 for the right answer, else -1, minus a penalty if code failed.

    Source: ToRL (arXiv:2503.23383, section 2.3) and its `verl/workers/reward_manager/naive.py`, whose penalty of 0.5 is
    off by default, since it gained nothing. That code also subtracts it from a trajectory that ran no code.

    Args:
        data_source: Not read.
        solution_str: Text after the prompt, with observations in blocks ```output.
        ground_truth: The right answer: a formula or a number.
        extra_info: Has the record of the rollout, as verl gives it to reward functions.
        execution_error_penalty: Penalty if a call failed or exceeded its time limit, >= 0.

    Raises:
        DataError: If the right answer is neither text nor number, or there is no record.
        VerifierError: If the verifier cannot decide, which makes the rollout undecided.
    """
    if RECORD_FIELD not in extra_info:
        raise DataError(
            f"extra_info has no {RECORD_FIELD!r}, the record of a rollout with tools; set "
            "actor_rollout_ref.rollout.agent.default_agent_loop=pivot_tools"
        )
    record = parse_record(extra_info[RECORD_FIELD])
    has_failed = any(call.error_kind in _EXECUTION_FAILURES for call in record.calls)
    written = record.without_retry_message(solution_str)
    outcome = 1.0 if await _is_right(written, "```output", "```", ground_truth) else -1.0
    return outcome - execution_error_penalty * has_failed


async def zerotir(data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> float:
    """1 for the right answer, else 0.

    Source: ZeroTIR (arXiv:2505.07773). Its released code takes the larger of this reward and a model's judgement.

    Args:
        data_source: Not read.
        solution_str: Text after the prompt, with observations in blocks ```output.
        ground_truth: The right answer: a formula or a number.
        extra_info: May have the record of the rollout, as verl gives it to reward functions.

    Raises:
        DataError: If the right answer is neither text nor number.
        VerifierError: If the verifier cannot decide, which makes the rollout undecided.
    """
    return float(await _is_right(_without_retries(solution_str, extra_info), "```output", "```", ground_truth))


def _without_retries(text: str, extra_info: Mapping[str, Any]) -> str:
    """The text without the retry message; a row that another agent loop played has no record, and no such message."""
    record = extra_info.get(RECORD_FIELD)
    return text if record is None else parse_record(record).without_retry_message(text)


async def _is_right(text: str, opening: str, closing: str, ground_truth: Any) -> bool:
    """Whether the answer in the text outside of the observations is right.

    Args:
        text: Text after the prompt.
        opening: Text before each observation.
        closing: Text after each observation.
        ground_truth: The right answer.
    """
    if not isinstance(ground_truth, str | int | float) or isinstance(ground_truth, bool):
        raise DataError(f"reward_model.ground_truth must be a formula or a number, got {ground_truth!r:.200}")
    own = "".join(split_at_tags(text, opening, closing).outside)
    verify = MathVerifier(MathOptions(answer=str(ground_truth)))
    verdict = await verify(Message(role=Role.ASSISTANT, content=own), _TURN)
    if verdict.score is None:
        raise VerifierError(f"the answer cannot be verified: {verdict.reason}, {verdict.detail}")
    return verdict.score == 1.0
