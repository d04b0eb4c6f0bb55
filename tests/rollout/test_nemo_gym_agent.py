"""Rollouts driven by an agent server of NeMo Gym, which asks for the policy at the port in its configuration.

NeMo Gym's simple agent, model server and counter run in the interpreter that the environment variable
VERL_PIVOT_NEMO_GYM_PYTHON names; the other agents are written for these tests.
"""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import aiohttp
import pytest
from omegaconf import OmegaConf

from tests.rollout.test_tool_loop import SAMPLING
from tests.support.framework_servers import free_port, served
from tests.support.nemo_gym_agent import Agent
from tests.support.nemo_gym_counter import ROW
from tests.support.scripted_engine import Said, call, make_loop, row
from tests.support.web_servers import running
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.launch_checks.environments import check_environment
from verl_pivot.rewards.turn_rewards import TurnRewardOutput
from verl_pivot.rollout.driven_trajectory import DrivenTrajectory
from verl_pivot.rollout.model_gateway import ModelGateway
from verl_pivot.rollout.policy_relay import METADATA_KEY, PolicyRelay, address_of
from verl_pivot.rollout.settings import NemoGymAgent, RolloutSettings, parse_settings

PYTHON = os.environ.get("VERL_PIVOT_NEMO_GYM_PYTHON")
WITHOUT_PACKAGE = pytest.mark.skipif(
    PYTHON is None, reason="no interpreter with nemo-gym: set VERL_PIVOT_NEMO_GYM_PYTHON"
)
SCRIPT = [
    "<think>\nOne first.\n</think>\n\n" + call("increment_counter", count=1),
    call("increment_counter", count=2),
    call("get_counter_value"),
    "It is 6.",
]


class Gym(NamedTuple):
    """An agent server, and the port at which it asks for the policy."""

    url: str
    policy_port: int


@pytest.fixture(params=["by_hand", pytest.param("nemo-gym", marks=[WITHOUT_PACKAGE, pytest.mark.heavy])])
async def gym(request: pytest.FixtureRequest) -> AsyncIterator[Gym]:
    port = free_port()
    if request.param == "by_hand":
        async with running(Agent(port).app()) as url:
            yield Gym(url, port)
    else:
        assert PYTHON is not None
        with served(PYTHON, "nemo_gym_agent_example.py", "/openapi.json", str(port)) as url:
            yield Gym(url, port)


async def played(gym: Gym, script: Sequence[Said | str], *overrides: str, **columns: Any) -> list[TurnRewardOutput]:
    loop = make_loop(
        script,
        f"pivot.rollout.environment.nemo_gym_agent={gym.url}",
        f"pivot.rollout.environment.policy_port={gym.policy_port}",
        *overrides,
    )
    outputs = await loop.run(SAMPLING, **row(**{"metadata": json.dumps(ROW), **columns}))
    assert isinstance(outputs, list)
    return outputs


async def test_an_agent_plays_a_row_with_the_policy_and_its_reward_is_the_outcome(gym: Gym) -> None:
    (right,), (wrong,) = await asyncio.gather(played(gym, SCRIPT), played(gym, [SCRIPT[1], "It is 5."]))

    assert [len(right.turn_ends), len(wrong.turn_ends)] == [4, 2]
    verdicts = [each.extra_fields["verdict"] for each in (right, wrong)]
    assert [(each["score"], each["reason"]) for each in verdicts] == [(1.0, "environment"), (0.0, "environment")]


async def test_a_policy_that_uses_up_its_turns_is_wrong(gym: Gym) -> None:
    (output,) = await played(gym, SCRIPT, "pivot.rollout.max_turns=2")

    verdict = output.extra_fields["verdict"]
    assert (verdict["score"], verdict["reason"]) == (0.0, "max_turns")
    assert "/run answered with status 500" in verdict["detail"]


async def test_an_agent_goes_on_with_other_rows_after_one_that_was_refused(gym: Gym) -> None:
    """NeMo Gym's model server would send no more requests if its key were refused with status 401."""
    await played(gym, SCRIPT, "pivot.rollout.max_turns=2")
    async with PolicyRelay(gym.policy_port) as relay, aiohttp.ClientSession() as http:
        await relay.start()
        late = {METADATA_KEY: "http://127.0.0.1:9/v1 sk-late"}
        body = {**ROW, "responses_create_params": {**ROW["responses_create_params"], "metadata": late}}  # type: ignore[dict-item]
        async with http.post(f"{gym.url}/run", json=body) as refused:
            assert refused.status == 500
    (output,) = await played(gym, SCRIPT)

    assert output.extra_fields["verdict"]["score"] == 1.0


async def test_the_end_of_the_agent_server_masks_a_rollout_that_has_reached_a_limit_too() -> None:
    port = free_port()
    async with running(Agent(port, dies=True).app()) as url:
        (output,) = await played(Gym(url, port), SCRIPT, "pivot.rollout.max_turns=1")

    verdict = output.extra_fields["verdict"]
    assert (verdict["score"], verdict["reason"]) == (None, "tool_failure")
    assert f"{url}/run: " in verdict["detail"]


async def test_numbers_that_the_environment_adds_are_metrics() -> None:
    port = free_port()
    async with running(Agent(port).app()) as url:
        (output,) = await played(Gym(url, port), SCRIPT)

    assert output.extra_fields["scores"] == {"environment/num_items": 8}


@pytest.mark.parametrize(
    ("faults", "detail"),
    [
        ({"told": {"reward": None}}, "NeMo Gym gave the reward None"),
        ({"told": {"reward": 0.0, "mask_sample": True, "failure_kind": "lost"}}, "NeMo Gym masks the rollout: lost"),
        ({"told": {"_ng_failure_class": "judge_failed"}}, "NeMo Gym could not verify: judge_failed"),
    ],
)
async def test_a_reward_that_does_not_count_masks_the_rollout(faults: Any, detail: str) -> None:
    port = free_port()
    async with running(Agent(port, **faults).app()) as url:
        (output,) = await played(Gym(url, port), SCRIPT)

    verdict = output.extra_fields["verdict"]
    assert (verdict["score"], verdict["reason"]) == (None, "tool_failure")
    assert detail in verdict["detail"]


@pytest.mark.parametrize("metadata", [{}, {METADATA_KEY: "http://10.0.0.1:80/v1 sk-a"}, {METADATA_KEY: 5}])
async def test_an_agent_that_drops_the_metadata_gives_no_row_and_the_log_says_why(
    metadata: Any, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    async with running(Agent(port, metadata=metadata).app()) as url:
        assert await played(Gym(url, port), SCRIPT) == []

    assert f"the request has no metadata.{METADATA_KEY}" in caplog.text


async def test_a_port_that_another_program_has_gives_no_row_and_the_log_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        async with running(Agent(port).app()) as url:
            assert await played(Gym(url, port), SCRIPT) == []

    assert f"the policy cannot listen on port {port}" in caplog.text


async def test_a_row_that_is_none_of_nemo_gym_stops_the_run() -> None:
    for metadata in (None, "{}", "x"):
        with pytest.raises(DataError, match="the column metadata must hold the row of NeMo Gym"):
            await played(Gym("http://127.0.0.1:9", free_port()), SCRIPT, metadata=metadata)


async def test_workers_that_share_a_port_answer_each_for_its_own_trajectories() -> None:
    """Whichever of the relays takes a connection, the request reaches the gateway of its trajectory."""
    port, scripts = free_port(), [["One."] * 8, ["Two."] * 8]
    async with (
        PolicyRelay(port) as first,
        PolicyRelay(port) as second,
        ModelGateway() as gateway,
        ModelGateway() as other,
        aiohttp.ClientSession() as http,
    ):
        await asyncio.gather(first.start(), second.start(), first.start())
        owners = [DrivenTrajectory(make_loop(script)._parts, {"logprobs": True}) for script in scripts]
        async with gateway.opened(owners[0]) as one, other.opened(owners[1]) as two:
            texts = []
            for endpoint in [one, two] * 8:
                body = {"input": "Say.", "metadata": {METADATA_KEY: address_of(endpoint)}}
                headers = {"Connection": "close"}
                async with http.post(f"http://127.0.0.1:{port}/v1/responses", json=body, headers=headers) as answer:
                    texts.append((await answer.json())["output"][0]["content"][0]["text"])

    assert texts == ["One.", "Two."] * 8


async def test_a_request_that_an_agent_gives_up_is_given_up_at_the_gateway_too() -> None:
    port = free_port()
    trajectory = DrivenTrajectory(make_loop(["One.", "Two."], seconds=0.5)._parts, {"logprobs": True})
    async with (
        PolicyRelay(port) as relay,
        ModelGateway() as gateway,
        gateway.opened(trajectory) as endpoint,
        aiohttp.ClientSession() as http,
    ):
        await relay.start()
        url = f"http://127.0.0.1:{port}/v1/responses"
        body = {"input": "Say.", "metadata": {METADATA_KEY: address_of(endpoint)}}
        with pytest.raises(asyncio.TimeoutError):
            await http.post(url, json=body, timeout=aiohttp.ClientTimeout(total=0.1))
        async with http.post(url, json=body) as answer:
            text = (await answer.json())["output"][0]["content"][0]["text"]

    assert (text, len(trajectory.conversations)) == ("Two.", 1)


async def test_a_server_that_is_no_agent_stops_the_launch() -> None:
    async with running(Agent(1, openapi={"paths": {"/verify": {}}}).app()) as url:
        with pytest.raises(ConfigError, match="has no /run; give the address of an agent server of NeMo Gym"):
            await asyncio.to_thread(check_environment, NemoGymAgent(nemo_gym_agent=url))
    async with running(Agent(1).app()) as url:
        await asyncio.to_thread(check_environment, NemoGymAgent(nemo_gym_agent=url))


async def test_an_agent_has_a_short_and_a_long_name() -> None:
    def settings(environment: object) -> RolloutSettings:
        tools = make_loop([])._parts.settings.tools
        return parse_settings(OmegaConf.create({"pivot": {"rollout": {"tools": tools, "environment": environment}}}))

    url = "http://127.0.0.1:8001"
    assert settings(f"nemo_gym_agent:{url}") == settings({"nemo_gym_agent": url, "policy_port": 8790})
    for wrong in (
        "nemo_gym_agent:127.0.0.1:80",
        {"nemo_gym_agent": url, "policy_port": 0},
        {"nemo_gym_agent": url, "a": 1},
    ):
        with pytest.raises(ConfigError, match=r"pivot\.rollout\.environment"):
            settings(wrong)
