"""ReTool, ToRL and ZeroTIR from config to reward: each method's loop runs code in the sandbox, and is paid."""

import math
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo.reward import get_custom_reward_fn

from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import use_service
from tests.support.scripted_engine import Said, loop_of, rollout_config, row, scripted_model
from verl_pivot.data.rollout_records import RECORD_FIELD
from verl_pivot.rewards.manager import PivotRewardManager
from verl_pivot.rewards.math_rewards import retool, torl, zerotir
from verl_pivot.rollout.tool_loop import ToolLoop

pytestmark = [needs_sandbox, pytest.mark.heavy]

RAN = "Tool call success\nstdout: 42"


@pytest.fixture(autouse=True)
def sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    use_service(monkeypatch)


async def played(method: str, *script: Said | str) -> tuple[str, dict[str, Any]]:
    """Text after the prompt, and the extra fields, of one rollout."""
    loop = loop_of(ToolLoop, rollout_config(scripted_model(), method=method), script)
    output = await loop.run({}, **row("What is 6 times 7?"))
    return loop.tokenizer.decode(output.response_ids, skip_special_tokens=True), output.extra_fields


@pytest.mark.parametrize(
    ("method", "function", "code", "observation", "wrong"),
    [
        (
            "retool", retool, "<code>\n```python\nprint(6 * 7)\n```\n</code>",
            f"\n<interpreter>\n{RAN}\n</interpreter>\n", -1.0,
        ),
        ("torl", torl, "```python\nprint(6 * 7)\n```\n```output", f"\n{RAN}\n```\n", -1.0),
        ("zerotir", zerotir, "```python\nprint(6 * 7)\n```\n", f"\n\n```output\n{RAN}\n```\n\n\n", 0.0),
    ],
)  # fmt: skip
async def test_code_runs_in_the_methods_format_and_the_answer_is_paid(
    method: str, function: Callable[..., Any], code: str, observation: str, wrong: float
) -> None:
    for answer, reward in (("42", 1.0), ("41", wrong)):
        text, fields = await played(method, Said(f"I run it.\n{code}", ended=False), f"So \\boxed{{{answer}}}.")

        assert text == f"I run it.\n{code}{observation}So \\boxed{{{answer}}}."
        assert fields[RECORD_FIELD]["stop_reason"] == "answered"
        assert await function("math", text, "42", fields) == reward


async def test_a_program_of_zerotir_stops_at_its_closing_fence_and_not_at_the_opening_one() -> None:
    config = rollout_config(scripted_model(), method="zerotir")
    loop = loop_of(ToolLoop, config, ["\\boxed{42}"])

    await loop.run({}, **row("What is 6 times 7?"))

    assert loop.server_manager.requests[0]["params"]["stop"] == ["```\n"]
    assert "```\n" not in "I run it.\n```python\nprint(6 * 7)\n"


@pytest.mark.parametrize(("method", "num_runs"), [("torl", 1), ("zerotir", 2)])
async def test_no_code_runs_beyond_the_published_number(method: str, num_runs: int) -> None:
    ending = "\n```output" if method == "torl" else "\n"
    runs = [Said(f"```python\nprint({number})\n```{ending}", ended=False) for number in range(num_runs + 1)]

    _, fields = await played(method, *runs)

    assert fields[RECORD_FIELD]["stop_reason"] == "max_turns"
    assert [call["arguments"]["code"] for call in fields[RECORD_FIELD]["calls"]] == [
        f"print({number})" for number in range(num_runs)
    ]


async def test_the_penalty_of_torl_is_taken_where_a_program_failed() -> None:
    text, fields = await played("torl", Said("```python\nprint(6 / 0)\n```\n```output", ended=False), "So \\boxed{42}.")

    assert "ZeroDivisionError" in text
    assert await torl("math", text, "42", fields, execution_error_penalty=0.5) == 0.5
    assert await torl("math", text, "42", fields) == 1.0


async def test_a_block_of_another_language_is_a_mistake_that_the_policy_reads() -> None:
    text, fields = await played("zerotir", Said("```latex\nx^2\n```\n", ended=False), "\\boxed{42}")

    assert [call["error_kind"] for call in fields[RECORD_FIELD]["calls"]] == ["malformed_call"]
    assert "without ```python before it" in text


async def paid(method: str, answer: str, *, ground_truth: Any = "42") -> dict[str, Any]:
    """What the reward manager says of a rollout of one turn, with the reward function that the method names."""
    config = rollout_config(scripted_model(), method=method)
    loop = loop_of(ToolLoop, config, [answer])
    output = await loop.run({}, **row("What is 6 times 7?"))
    responses = torch.tensor([output.response_ids])
    batch = TensorDict({"responses": responses, "attention_mask": torch.ones_like(responses)}, batch_size=1)
    columns = {
        "data_source": "math", "reward_model": {"ground_truth": ground_truth}, "extra_info": {"index": 7},
        "tool_extra_fields": output.extra_fields,
    }  # fmt: skip
    wrapped = {}
    for name, value in columns.items():
        wrapped[name] = numpy.empty(1, dtype=object)
        wrapped[name][0] = value
    manager = PivotRewardManager(config, loop.tokenizer, get_custom_reward_fn(config))
    reward = await manager.run_single(DataProto(batch=batch, non_tensor_batch=wrapped))
    return {"reward_score": reward["reward_score"], **reward["reward_extra_info"]}


async def test_the_reward_manager_asks_the_methods_own_reward() -> None:
    for method, worths in {"retool": (1.0, -1.0), "torl": (1.0, -1.0), "zerotir": (1.0, 0.0)}.items():
        rewards = [await paid(method, answer) for answer in ("\\boxed{42}", "\\boxed{41}")]
        assert tuple(reward["reward_score"] for reward in rewards) == worths
        assert [(reward["undecided"], reward["stop_reason"]) for reward in rewards] == [(0.0, "answered")] * 2


async def test_what_cannot_be_verified_is_undecided_and_a_broken_row_names_itself() -> None:
    unclear = await paid("retool", "\\boxed{42}", ground_truth="\\boxed{42} or \\boxed{43}")
    broken = await paid("torl", "\\boxed{42}", ground_truth=["42"])

    assert math.isnan(unclear["reward_score"])
    assert (unclear["undecided"], unclear["reason"]) == (1.0, "verifier_failed")
    assert math.isnan(broken["reward_score"])
    assert (broken["undecided"], broken["reason"]) == (1.0, "user_code_failed")
    assert broken["detail"].startswith(
        "row with extra_info.index 7: reward function torl raised DataError: reward_model.ground_truth must be a "
        "formula or a number, got ['42'] ("
    )
