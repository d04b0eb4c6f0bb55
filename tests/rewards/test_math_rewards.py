r"""Rewards of ReTool, ToRL and ZeroTIR: the worth of texts by each rule, and answers that the policy did not write."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.rollout_records import make_record
from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import use_service
from verl_pivot.data.rollout_records import CallRecord, CallStatus, RolloutRecord, StopReason
from verl_pivot.errors import DataError, VerifierError
from verl_pivot.rewards.math_rewards import retool, torl, zerotir
from verl_pivot.types import ErrorKind

pytestmark = [needs_sandbox, pytest.mark.heavy]

RETOOL = "<code>\n```python\nprint(6 * 7)\n```\n</code>\n<interpreter>\n%s\n</interpreter>\n"
FENCED = "```python\nprint(6 * 7)\n```\n\n```output\n%s\n```\n\n\n"


@pytest.fixture(autouse=True)
def sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    use_service(monkeypatch)


def extra_info(errors: Sequence[ErrorKind | None]) -> dict[str, Any]:
    """What verl gives to reward functions of a trajectory with these calls."""
    calls = tuple(
        CallRecord(
            turn=turn, name="jupyter_code", arguments={"code": "6 * 7"}, error_kind=error,
            status=CallStatus.OK if error is None else CallStatus.TOOL_ERROR,
        )
        for turn, error in enumerate(errors)
    )  # fmt: skip
    record = RolloutRecord(
        prompt_id="p", stop_reason=StopReason.ANSWERED, calls=calls, turn_tokens=(9,) * (len(calls) + 1),
        prompt_tokens=9, response_tokens=99, generate_seconds=0.1, tool_seconds=0.1,
    )  # fmt: skip
    return {"rollout": record.as_dict(), "question": "?"}


async def rewards(text: str, ground_truth: Any = "42", *errors: ErrorKind | None) -> list[float]:
    """The rewards of ReTool, ToRL and ZeroTIR for one text."""
    given = ("math_dapo", text, ground_truth, extra_info(errors))
    return list(await asyncio.gather(retool(*given), torl(*given), zerotir(*given)))


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("It is \\boxed{42}.", True),
        ("<answer>\\boxed{6 \\cdot 7}</answer>", True),
        ("First \\boxed{42}, and again \\boxed{42}.", True),
        ("It is \\boxed{41}.", False),
        ("It is 42.", False),
        ("It is \\boxed{41}. No, \\boxed{42}.", False),
        ("", False),
    ],
)
async def test_the_worths_are_those_of_the_papers(text: str, is_right: bool) -> None:
    assert await rewards(text) == ([1.0, 1.0, 1.0] if is_right else [-1.0, -1.0, 0.0])


async def test_an_answer_in_an_observation_is_none_of_the_policy() -> None:
    right, wrong = "\\boxed{42}", "\\boxed{41}"

    assert await rewards(RETOOL % right) == [-1.0, 1.0, 1.0]  # these tags mark an observation for ReTool alone
    assert await rewards(FENCED % right) == [1.0, -1.0, 0.0]
    assert (await rewards(RETOOL % wrong + right))[0] == 1.0
    assert (await rewards(FENCED % wrong + right))[1:] == [1.0, 1.0]


async def test_an_answer_in_the_retry_message_is_none_of_the_policy() -> None:
    message = "Give the answer in \\boxed{}, such as \\boxed{42}."
    read = {"rollout": make_record(turn_tokens=(9, 9), retry_message=message).as_dict()}

    for function, wrong in ((retool, -1.0), (torl, -1.0), (zerotir, 0.0)):
        assert await function("math", "Hm. " + message, "42", read) == wrong
        assert await function("math", "Hm. " + message + "\\boxed{41}", "41", read) == 1.0


async def test_the_right_answer_is_a_formula_or_a_number() -> None:
    for right in (42, 42.0, "42", "\\boxed{42}", "$42$"):
        assert await zerotir("math", "\\boxed{42}", right, {}) == 1.0
    for wrong in (["42"], {"target": "42"}, None, True):
        with pytest.raises(DataError, match=r"reward_model\.ground_truth must be a formula or a number, got"):
            await zerotir("math", "\\boxed{42}", wrong, {})


@pytest.mark.parametrize(
    ("errors", "has_failed"),
    [
        ([], False),
        ([None], False),
        ([ErrorKind.MALFORMED_CALL], False),
        ([ErrorKind.EXECUTION_ERROR], True),
        ([ErrorKind.TIME_LIMIT, None], True),
        ([ErrorKind.EXECUTION_ERROR] * 3, True),
    ],
)
async def test_the_penalty_of_torl_is_taken_once_where_code_failed(
    errors: list[ErrorKind | None], has_failed: bool
) -> None:
    given = ("math_dapo", "\\boxed{42}", "42", extra_info(errors))
    wrong = ("math_dapo", "\\boxed{41}", "42", extra_info(errors))

    assert await torl(*given) == 1.0
    assert await torl(*given, execution_error_penalty=0.5) == 1.0 - 0.5 * has_failed
    assert await torl(*wrong, execution_error_penalty=0.5) == -1.0 - 0.5 * has_failed


async def test_torl_needs_the_record_of_the_rollout() -> None:
    with pytest.raises(DataError, match="extra_info has no 'rollout', the record of a rollout with tools; set"):
        await torl("math_dapo", "\\boxed{42}", "42", {})


async def test_a_row_with_several_right_answers_gives_no_reward() -> None:
    with pytest.raises(VerifierError, match=r"the answer cannot be verified: broken_gold, "):
        await retool("math_dapo", "\\boxed{42}", "\\boxed{42} or \\boxed{43}", {})


async def test_a_sandbox_that_is_down_is_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl_pivot.verifiers import math_batches

    monkeypatch.setattr(math_batches, "_RUNNER", "import no_such_library")

    with pytest.raises(VerifierError, match=r"the answer cannot be verified: sandbox_failed, [\s\S]*no_such_library"):
        await zerotir("math_dapo", "\\boxed{6 + 36}", "42", {})


@pytest.mark.parametrize("function", [retool, zerotir])
async def test_a_text_of_opened_observations_alone_takes_little_time(function: Any) -> None:
    text = "<interpreter>```output\\boxed{" * 16_000

    assert await function("math_dapo", text, "42", {}) <= 0.0
