"""Sessions with resources servers of NeMo Gym: calls, cookies, rewards, and servers that fail.

NeMo Gym's own example runs in an interpreter with nemo-gym, which the environment variable VERL_PIVOT_NEMO_GYM_PYTHON
names; the other servers were written by hand.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from openai.types.responses import Response
from pydantic import TypeAdapter

from tests.support.framework_servers import served
from tests.support.nemo_gym_counter import ROW, TOOLS, Counters
from tests.support.web_servers import running
from verl_pivot.data.tool_schemas import name_of
from verl_pivot.errors import ConfigError, DataError, ToolFailureError
from verl_pivot.tools.calls import CallOutcome
from verl_pivot.tools.rollout_tools import RolloutTools
from verl_pivot.tools.toolset import Toolset
from verl_pivot.types import EnvironmentReturn, ErrorKind, Message, Role, ToolCall, Verdict

PYTHON = os.environ.get("VERL_PIVOT_NEMO_GYM_PYTHON")
WITHOUT_PACKAGE = pytest.mark.skipif(
    PYTHON is None, reason="no interpreter with nemo-gym: set VERL_PIVOT_NEMO_GYM_PYTHON"
)
METADATA = {"metadata": json.dumps(ROW)}
ANSWER = Message(role=Role.ASSISTANT, content="It is 6.")


async def toolset(url: str, **options: Any) -> Toolset:
    made = Toolset("tools.yaml")
    await asyncio.to_thread(made.add_entry, {"environment": f"nemo_gym:{url}", **options})
    return made


async def called(tools: RolloutTools, name: str, **arguments: Any) -> CallOutcome:
    (outcome,) = await tools.toolbox.run([ToolCall(name=name, arguments=arguments)])
    return outcome


def text(outcome: CallOutcome) -> str:
    assert outcome.observation is not None, outcome.failure
    return outcome.observation.text


@pytest.fixture(scope="module")
def real_server() -> Iterator[str]:
    assert PYTHON is not None
    with served(PYTHON, "nemo_gym_example.py", "/openapi.json") as url:
        yield url


@pytest.fixture(params=["by_hand", pytest.param("nemo-gym", marks=[WITHOUT_PACKAGE, pytest.mark.heavy])])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """Address of a server with a counter for each session."""
    if request.param == "by_hand":
        async with running(Counters().app()) as url:
            yield url
    else:
        yield request.getfixturevalue("real_server")


async def test_the_tools_of_the_row_are_run_by_the_server_and_verify_gives_the_reward(server: str) -> None:
    async with (await toolset(server)).open(METADATA) as tools:
        outcomes = [
            await called(tools, "increment_counter", count=1),
            await called(tools, "increment_counter", count="2"),
            await called(tools, "increment_counter", count=2),
            await called(tools, "get_counter_value"),
        ]
        verdict = await tools.score(ANSWER)

    assert list(map(name_of, tools.toolbox.schemas)) == ["increment_counter", "get_counter_value"]
    assert [text(each).replace(" ", "") for each in outcomes] == [
        '{"success":true}',
        "Toolcallfailure\nreason:error,$.count:'2'isnotoftype'integer'",
        '{"success":true}',
        '{"count":6}',
    ]
    assert verdict == EnvironmentReturn(score=1.0, reason="verified")


async def test_calls_of_one_turn_reach_the_server_in_their_order() -> None:
    async with running(Counters().app()) as url, (await toolset(url)).open(METADATA, parallel_calls=True) as tools:
        counts = [ToolCall(name="increment_counter", arguments={"count": 2}) for _ in range(3)]
        outcomes = await tools.toolbox.run([*counts, ToolCall(name="get_counter_value", arguments={})])

    assert json.loads(text(outcomes[-1])) == {"count": 9}


async def test_each_rollout_has_a_session_of_its_own(server: str) -> None:
    made = await toolset(server)
    async with made.open(METADATA) as first, made.open(METADATA) as second:
        await called(first, "increment_counter", count=3)
        seen = [text(await called(each, "get_counter_value")) for each in (first, second)]
        scores = [await each.score(None) for each in (first, second)]

    assert [json.loads(each) for each in seen] == [{"count": 6}, {"count": 3}]
    assert scores == [EnvironmentReturn(score=score, reason="verified") for score in (1.0, 0.0)]


async def test_a_server_whose_own_code_raises_masks_the_rollout(server: str) -> None:
    row: Any = {**ROW, "initial_count": "many"}
    with pytest.raises(ToolFailureError, match=r"/seed_session answered with status (422|500)"):
        async with (await toolset(server)).open({"metadata": json.dumps(row)}):
            pass


async def test_verify_gets_the_row_and_the_response() -> None:
    counters = Counters()
    async with running(counters.app()) as url, (await toolset(url)).open(METADATA) as tools:
        await called(tools, "increment_counter", count=1)
        await called(tools, "get_counter_value")
        await tools.score(ANSWER)

    (asked,) = counters.asked
    response = asked.pop("response")
    own = [item for item in response["output"] if item["type"] != "function_call_output"]  # not in OpenAI's format
    assert asked == ROW
    assert TypeAdapter(Response).validate_python({**response, "output": own}).output_text == "It is 6."
    assert response["tools"] == TOOLS
    assert response["output"][:2] == [
        {"type": "function_call", "name": "increment_counter", "arguments": '{"count": 1}', "call_id": "call_0"},
        {"type": "function_call_output", "call_id": "call_0", "output": '{"success": true}'},
    ]
    assert [item["type"] for item in response["output"][2:]] == ["function_call", "function_call_output", "message"]


async def test_arguments_that_the_server_refuses_are_read_by_the_policy() -> None:
    async with running(Counters().app()) as url, (await toolset(url)).open(METADATA) as tools:
        outcome = await called(tools, "increment_counter", count=101)
        after = await called(tools, "get_counter_value")

    assert "Input should be less than or equal to 100" in text(outcome)
    assert outcome.observation is not None
    assert outcome.observation.error is ErrorKind.INVALID_ARGUMENT
    assert text(after) == '{"count": 3}'


@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        (500, '/get_counter_value answered with status 500: "Internal Server Error"'),
        (404, "/get_counter_value answered with status 404"),
        ("abort", "/get_counter_value: ServerDisconnectedError"),
        ("huge", "/get_counter_value answered more than 1 MiB"),
    ],
)
async def test_a_server_that_fails_in_a_call_masks_the_rollout(fault: Any, failure: str) -> None:
    async with running(Counters(get_counter_value=fault).app()) as url:
        made = await toolset(url, max_message_mib=1)
        async with made.open(METADATA) as tools:
            outcome = await called(tools, "get_counter_value")

    assert failure in outcome.failure


@pytest.mark.parametrize(
    ("fault", "detail"),
    [
        (500, "/verify answered with status 500"),
        ("abort", "/verify: ServerDisconnectedError"),
        ([], "/verify must be a JSON object, got a list"),
        ({}, "gave the reward None"),
        ({"reward": "1"}, "gave the reward '1'"),
        ({"reward": True}, "gave the reward True"),
        ({"reward": 0.0, "_ng_failure_class": "judge_failed"}, "judge_failed"),
        ({"reward": 0.0, "mask_sample": True, "failure_reason": "the sandbox was lost"}, "the sandbox was lost"),
    ],
)
async def test_a_reward_that_the_server_does_not_give_is_undecided(fault: Any, detail: str) -> None:
    async with running(Counters(verify=fault).app()) as url, (await toolset(url)).open(METADATA) as tools:
        verdict = await tools.score(ANSWER)

    assert isinstance(verdict, Verdict)
    assert (verdict.score, verdict.reason) == (None, "environment_failed")
    assert detail in verdict.detail


async def test_a_session_that_cannot_begin_gives_no_reward() -> None:
    async with running(Counters(seed_session=500).app()) as url:
        with pytest.raises(ToolFailureError, match="/seed_session answered with status 500"):
            async with (await toolset(url)).open(METADATA):
                pass
        made = await toolset(url)
    with pytest.raises(ToolFailureError, match="Cannot connect to host"):
        async with made.open(METADATA):
            pass


@pytest.mark.parametrize(
    ("metadata", "detail"),
    [
        ({}, "metadata.responses_create_params must be a JSON object"),
        ({"responses_create_params": {"tools": [{"type": "function"}]}}, "a tool needs a name"),
        ({"responses_create_params": {"tools": [{"name": "verify"}]}}, "the row has a tool 'verify'"),
    ],
)
async def test_a_row_that_is_none_of_nemo_gym_is_refused(metadata: Any, detail: str) -> None:
    async with running(Counters().app()) as url:
        made = await toolset(url)

    with pytest.raises(DataError) as caught:
        made.open({"metadata": json.dumps(metadata)})
    assert detail in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (500, "/openapi.json answered with status 500"),
        ({"paths": {"/run": {}}}, "has no /seed_session and /verify; give the address of a resources server"),
    ],
)
async def test_a_server_of_another_kind_stops_the_launch(fault: Any, sentence: str) -> None:
    async with running(Counters(openapi=fault).app()) as url:
        with pytest.raises(ConfigError) as caught:
            await toolset(url)

    assert sentence in str(caught.value)


def test_options_of_stepped_environments_are_unknown_here() -> None:
    with pytest.raises(ConfigError, match=r"reward: unknown key; known: environment, headers, max_characters"):
        Toolset("tools.yaml").add_entry({"environment": "nemo_gym:http://127.0.0.1:9", "reward": "last"})
