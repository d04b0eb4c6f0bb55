"""The agent loop of single turns: its limit of tokens, beside that of whole trajectories in the same launch."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from tests.rollout.test_tool_loop import RecordingRouter, tools_file
from tests.support.scripted_engine import Said, call, loop_of, pivot_config, row
from verl_pivot.errors import ConfigError
from verl_pivot.launch import check_config
from verl_pivot.rollout.pivot_turn import PivotTurnLoop
from verl_pivot.rollout.tool_loop import ToolLoop
from verl_pivot.routing.client import is_only_turn, reports_end

LONG = "x" * 60
"""An answer of 60 tokens and an end token, since the tokenizer of these tests has one token for each byte."""


def pivot(**columns: Any) -> dict[str, Any]:
    return row(tools="[]", trajectory_id="t", turn_index=0, **columns)


def limits(loop: Any) -> list[int]:
    """Maximum number of tokens that each request to the engine asked for."""
    return [request["params"]["max_tokens"] for request in loop.server_manager.requests]


async def test_a_turn_may_fill_the_response_by_default() -> None:
    loop = loop_of(PivotTurnLoop, pivot_config("data.max_response_length=100"), [LONG])

    output = await loop.run({"temperature": 1.0}, **pivot())

    assert limits(loop) == [100]
    assert (len(output.response_ids), output.response_mask) == (61, [1] * 61)


async def test_a_limit_for_one_turn_is_the_engines_limit_and_other_parameters_stay() -> None:
    config = pivot_config("data.max_response_length=100", "pivot.max_turn_tokens=20", "trainer.rollout_data_dir=dumps")
    loop = loop_of(PivotTurnLoop, config, [LONG, "short"])

    cut, whole = await loop.run({"top_k": 5}, **pivot()), await loop.run({"top_k": 5}, **pivot())

    assert limits(loop) == [20, 20]
    assert [request["params"]["top_k"] for request in loop.server_manager.requests] == [5, 5]
    assert (len(cut.response_ids), len(cut.response_mask), len(cut.response_logprobs)) == (20, 20, 20)
    assert [json.loads(output.transcript)["stop_reason"] for output in (cut, whole)] == [
        "max_turn_tokens", "single_turn",
    ]  # fmt: skip


async def test_the_end_of_a_turn_is_reported_to_the_router_also_when_it_is_cancelled() -> None:
    router = RecordingRouter()
    config = pivot_config("data.max_response_length=100")
    whole = loop_of(PivotTurnLoop, config, [LONG], _load_balancer=router)
    cancelled = loop_of(PivotTurnLoop, config, [LONG], _load_balancer=router, seconds=60.0)

    await whole.run({}, **pivot())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(cancelled.run({}, **pivot()), 2.0)

    ids = [loop.server_manager.requests[0]["id"] for loop in (whole, cancelled)]
    assert [(name, tokens) for name, tokens, _ in router.ended] == [(ids[0], 61), (ids[1], None)]
    assert all(is_only_turn(name) and reports_end(name) for name in ids)


async def test_an_empty_or_aborted_completion_is_sampled_again() -> None:
    config = pivot_config("data.max_response_length=100", "trainer.rollout_data_dir=dumps")
    script = [Said("", ended=False), Said("half of an act", ended=False, stop_reason="abort"), "Done."]
    loop = loop_of(PivotTurnLoop, config, script)

    output = await loop.run({"top_k": 5}, **pivot())

    assert loop.tokenizer.decode(output.response_ids) == "Done.<|im_end|>"
    assert (output.response_mask, output.response_logprobs, output.turn_ends) == ([1] * 6, [-0.5] * 6, [6])
    assert [request["params"] for request in loop.server_manager.requests] == [{"top_k": 5, "max_tokens": 100}] * 3
    dumped = json.loads(output.transcript)
    assert (dumped["stop_reason"], dumped["num_empty_answers"]) == ("single_turn", 2)


async def test_an_engine_that_never_returns_a_token_masks_the_row() -> None:
    router = RecordingRouter()
    script = [Said("", ended=False), Said("half", ended=False, stop_reason="abort"), Said("", ended=False), "late"]
    config = pivot_config("data.max_response_length=100", "trainer.rollout_data_dir=dumps")
    loop = loop_of(PivotTurnLoop, config, script, _load_balancer=router)

    fields = (await loop.run({}, **pivot())).as_dict()

    assert fields["response_mask"].tolist() == [0]
    assert fields["extra_fields"] == {
        "verdict": {
            "score": None, "reason": "engine_failure", "detail": "the engine returned no token 3 times in a row",
        }
    }  # fmt: skip
    assert [tokens for _, tokens, _ in router.ended] == [0]


def launch_with_tools(folder: Path) -> DictConfig:
    """Config of single-turn training whose validation may play whole tasks with tools."""
    overrides = ("data.max_response_length=600", "pivot.max_turn_tokens=20", f"+{tools_file(folder, 'add')}")
    config = pivot_config(*overrides)
    check_config(config, overrides)
    return config


async def test_whole_tasks_beside_single_turns_have_the_whole_response(tmp_path: Path) -> None:
    """One launch: the rows of the training file sample one short turn, those of validation play on with tools."""
    config = launch_with_tools(tmp_path)
    script = [call("add", a=2, b=3), LONG]
    tasks, turns = loop_of(ToolLoop, config, script), loop_of(PivotTurnLoop, config, [LONG])

    task, turn = await tasks.run({}, **row()), await turns.run({}, **pivot())

    assert limits(turns) == [20]
    assert len(turn.response_ids) == 20
    assert limits(tasks)[0] == 600
    assert limits(tasks)[1] < 600
    assert tasks.tokenizer.decode(task.response_ids).count(LONG) == 1
    assert sum(task.response_mask) > 61


@pytest.mark.parametrize("value", ["0", "-1", "101", "1.5", "many"])
def test_a_limit_that_is_none_or_does_not_fit_into_the_response_is_refused(value: str) -> None:
    overrides = ("data.max_response_length=100", f"pivot.max_turn_tokens={value}")

    with pytest.raises(ConfigError) as caught:
        check_config(pivot_config(*overrides), overrides)
    assert str(caught.value) == (
        f"pivot.max_turn_tokens must be a number of tokens from 1 to data.max_response_length=100, got {value}"
    )
