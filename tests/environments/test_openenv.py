"""Sessions with OpenEnv servers: a real one, one that replays recorded answers, and servers that fail.

The real one runs in an interpreter with openenv-core, which the environment variable VERL_PIVOT_OPENENV_PYTHON names.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.framework_servers import served
from tests.support.openenv_wire import SCHEMA, Recorded
from tests.support.web_servers import running
from verl_pivot.errors import ConfigError, DataError, ToolFailureError
from verl_pivot.tools.calls import CallOutcome
from verl_pivot.tools.rollout_tools import RolloutTools
from verl_pivot.tools.toolset import Toolset
from verl_pivot.types import EnvironmentReturn, ErrorKind, ToolCall

PYTHON = os.environ.get("VERL_PIVOT_OPENENV_PYTHON")
WITHOUT_PACKAGE = pytest.mark.skipif(
    PYTHON is None, reason="no interpreter with openenv-core: set VERL_PIVOT_OPENENV_PYTHON"
)


async def toolset(url: str, **options: Any) -> Toolset:
    made = Toolset("tools.yaml")
    await asyncio.to_thread(made.add_entry, {"environment": f"openenv:{url}", **options})
    return made


async def step(tools: RolloutTools, by: Any = 1) -> CallOutcome:
    (outcome,) = await tools.toolbox.run([ToolCall(name="step", arguments={"by": by})])
    return outcome


def text(outcome: CallOutcome) -> str:
    assert outcome.observation is not None, outcome.failure
    return outcome.observation.text


@pytest.fixture(scope="module")
def real_server() -> Iterator[str]:
    assert PYTHON is not None
    with served(PYTHON, "openenv_counter.py", "/health") as url:
        yield url


@pytest.fixture(params=["recorded", pytest.param("openenv-core", marks=[WITHOUT_PACKAGE, pytest.mark.heavy])])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """Address of a server that counts to 3 and has two sessions at most."""
    if request.param == "recorded":
        async with running(Recorded().app()) as url:
            yield url
    else:
        yield request.getfixturevalue("real_server")


async def test_the_policy_steps_an_environment_over_the_wire(server: str) -> None:
    async with (await toolset(server)).open({"metadata": '{"options": {"start": 1}}'}) as tools:
        schema: Any = tools.toolbox.schemas[0]["function"]
        outcomes = [await step(tools, by) for by in (3, 1, 1, 1)]
        outcome = await tools.score(None)

    assert schema["parameters"] == {
        **SCHEMA["action"],
        "properties": {
            "by": {"description": "How much.", "maximum": 2, "minimum": 0, "title": "By", "type": "integer"}
        },
    }
    assert tools.opening == '{"count": 1}'
    assert [text(each) for each in outcomes] == [
        "Tool call failure\nreason: error, $.by: 3 is greater than the maximum of 2",
        '{"count": 2}',
        '{"count": 3}\nThe environment has ended: terminated.',
        "Tool call failure\nreason: error, the environment has ended (terminated); it takes no further step",
    ]
    assert outcome == EnvironmentReturn(score=2.0, reason="environment_terminated")


async def test_an_error_of_the_environment_masks(server: str) -> None:
    async with (await toolset(server)).open({}) as tools:
        outcome = await step(tools, 0)
        verdict = await tools.score(None)

    assert outcome.failure.endswith("""answered with an error: {"message": "'zero'", "code": "EXECUTION_ERROR"}""")
    assert verdict is not None
    assert (verdict.score, verdict.reason) == (None, "environment_failed")


async def test_rollouts_wait_while_the_server_has_no_room(server: str) -> None:
    made = await toolset(server)

    async def played() -> float | None:
        async with made.open({}) as tools:
            await step(tools, 2)
            await asyncio.sleep(0.2)
            verdict = await tools.score(None)
            return None if verdict is None else verdict.score

    assert await asyncio.gather(*(played() for _ in range(6))) == [2.0] * 6


async def test_a_rollout_does_not_wait_for_ever_for_room(server: str) -> None:
    made = await toolset(server, wait_seconds=0.3)

    async with made.open({}), made.open({}):
        with pytest.raises(ToolFailureError, match=r"had no room for another session: Server at capacity: 2/2"):
            async with made.open({}):
                pass
    async with made.open({}) as tools:
        assert text(await step(tools)) == '{"count": 1}'


@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        ("close", "ended the session (1000) instead of answering"),
        ("abort", "ended the session (code 1006) instead of answering"),
        ("silent", "tool step did not answer within 0.4 s"),
        ("binary", "ended the session (b'\\x00') instead of answering"),
        ("huge", "ended the session ("),
        ("[1]", "sent an invalid message: a message must be a JSON object"),
        ("nonsense", "sent an invalid message: "),
        ('{"type": "state", "data": {}}', "answered without an observation: "),
        ('{"type": "observation", "data": {"reward": 1.0, "done": false}}', "answered without an observation: "),
        (
            '{"type": "observation", "data": {"observation": {}, "reward": "1", "done": false}}',
            "gave an invalid reward '1' or done",
        ),
        (
            '{"type": "observation", "data": {"observation": {}, "reward": NaN, "done": false}}',
            "sent an invalid message",
        ),
        ('{"type": "observation", "data": {"observation": {}, "reward": 1e999, "done": false}}', "reward"),
    ],
)
async def test_a_server_that_fails_in_a_step_masks_the_rollout(fault: str, failure: str) -> None:
    async with running(Recorded(fault).app()) as url:
        made = await toolset(url, timeout_seconds=0.4, max_message_mib=1)
        async with made.open({}) as tools:
            outcome = await step(tools)
            later = await step(tools)
            verdict = await tools.score(None)

    assert failure in outcome.failure
    assert "failed in an earlier call" in later.failure
    assert verdict is not None
    assert verdict.score is None


async def test_a_server_that_refuses_an_action_tells_the_policy_why() -> None:
    async with running(Recorded("refuse").app()) as url, (await toolset(url)).open({}) as tools:
        outcome = await step(tools)

    assert text(outcome).endswith("the server refuses the action: by: Input should be less than or equal to 2")
    assert outcome.observation is not None
    assert outcome.observation.error is ErrorKind.INVALID_ARGUMENT


async def test_a_server_that_goes_down_gives_no_reward() -> None:
    async with running(Recorded().app()) as url:
        made = await toolset(url)
    with pytest.raises(ToolFailureError, match="Cannot connect to host"):
        async with made.open({}):
            pass
    async with running(Recorded("no_handshake").app()) as url:
        with pytest.raises(ToolFailureError, match="500"):
            async with (await toolset(url)).open({}):
                pass


async def test_a_reset_without_an_answer_is_given_up_though_a_rollout_may_wait_for_room() -> None:
    async with running(Recorded("silent_reset").app()) as url:
        made = await toolset(url, timeout_seconds=0.2)
        with pytest.raises(ToolFailureError, match=r"did not begin within 0\.2 s"):
            async with made.open({}):
                pass


async def test_the_seed_of_the_row_is_given_to_the_server() -> None:
    recorded = Recorded()
    async with running(recorded.app()) as url:
        made = await toolset(url)
        for metadata in ('{"seed": 7}', '{"seed": 7, "options": {"seed": 8, "start": 2}}'):
            async with made.open({"metadata": metadata}):
                pass
        with pytest.raises(DataError, match=r"metadata\.seed of a row"):
            made.open({"metadata": '{"seed": -7}'})

    assert recorded.resets == [{"seed": 7}, {"seed": 8, "start": 2}]


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        (500, "/schema answered with status 500: 'Internal Server Error'"),
        ([], "/schema did not answer with a JSON object"),
        ({}, "/schema gives no schema of actions under `action`, got None"),
        ({"action": {"type": "array"}}, "must be a JSON schema of type object"),
        ({"action": {"type": "object", "properties": {"by": {"type": "number?"}}}}, "are not a JSON schema"),
    ],
)
async def test_a_server_that_no_policy_can_use_stops_the_launch(schema: Any, sentence: str) -> None:
    async with running(Recorded(schema=schema).app()) as url:
        with pytest.raises(ConfigError) as caught:
            await toolset(url)

    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"environment": "openenv:http://127.0.0.1:9"}, "http://127.0.0.1:9/schema cannot be reached: "),
        ({"environment": "openenv:127.0.0.1:9"}, "openenv.environment: String should match pattern"),
        (
            {"environment": "openenv:http://127.0.0.1:9", "headers": {"Authorization": "NO_SUCH_VARIABLE"}},
            "the environment variable NO_SUCH_VARIABLE is not set",
        ),
    ],
)
def test_an_address_that_does_not_answer_stops_the_launch(entry: Any, sentence: str) -> None:
    add: Callable[[Any], None] = Toolset("tools.yaml").add_entry

    with pytest.raises(ConfigError) as caught:
        add(entry)

    assert sentence in str(caught.value)


async def test_actions_that_differ_from_the_frozen_ones_stop_the_launch(server: str, tmp_path: Path) -> None:
    frozen = tmp_path / "actions.json"
    async with aiohttp.ClientSession() as http, http.get(f"{server}/schema") as answer:
        frozen.write_bytes(await answer.read())
    schema = json.loads(frozen.read_text())
    await toolset(server, frozen=str(frozen))

    schema["action"]["properties"]["by"]["maximum"] = 3
    frozen.write_text(json.dumps(schema))
    with pytest.raises(ConfigError, match=r"differ from those frozen in .*actions\.json; run `curl http"):
        await toolset(server, frozen=str(frozen))
    for text_, detail in (("{", "not JSON"), ("[]", "JSON object"), ("{}", "no schema of actions under `action`")):
        frozen.write_text(text_)
        with pytest.raises(ConfigError, match=detail):
            await toolset(server, frozen=str(frozen))
    with pytest.raises(ConfigError, match="holds no answer of /schema"):
        await toolset(server, frozen=str(tmp_path / "gone.json"))


async def test_the_order_of_arguments_is_part_of_what_is_frozen(tmp_path: Path) -> None:
    """The order counts because chat templates write a schema's keys in the order in which they stand."""
    properties = {"by": {"type": "integer"}, "how": {"type": "string"}}
    turned = {name: properties[name] for name in ("how", "by")}
    frozen = tmp_path / "actions.json"
    frozen.write_text(json.dumps({"action": {"type": "object", "properties": properties}}))
    async with running(Recorded(schema={"action": {"type": "object", "properties": turned}}).app()) as url:
        with pytest.raises(ConfigError, match="differ from those frozen in"):
            await toolset(url, frozen=str(frozen))
