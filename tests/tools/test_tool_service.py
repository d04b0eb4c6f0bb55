"""`verl-pivot tools serve`: our tools in verl-tool's protocol, asked as its client asks, and through our own client."""

import asyncio
import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.web_servers import running
from verl_pivot.data.actions import read_turn
from verl_pivot.rollout.turn_parsers import TagPair, TagParser
from verl_pivot.tools.tool_service import ActionForm, ToolService
from verl_pivot.tools.toolset import load_toolset
from verl_pivot.types import ToolCall

ENVIRONMENT = """
from pathlib import Path

from verl_pivot.data.rollout_records import StopReason
from verl_pivot.tools.contract import Environment, Observation, ToolError, tool

class Shop(Environment):
    def __init__(self, metadata):
        self.stock = metadata["stock"]
        self.name = metadata.get("name", "")

    @tool
    def order(self, amount: int = 1) -> str:
        '''Order packs of tea.'''
        if amount > self.stock:
            raise ToolError("not so many")
        self.stock -= amount
        return f"{self.stock} left"

    @tool
    def crash(self) -> str:
        '''Break.'''
        raise ConnectionError("the database is down")

    @tool
    def leave(self) -> Observation:
        '''Leave.'''
        return Observation("Bye.", end=StopReason.ENDED_BY_TOOL)

    async def close(self):
        with Path(__file__).with_name("closed.txt").open("a") as file:
            file.write(self.name + " ")
"""


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def order(amount: int) -> str:
    return call("order", amount=amount)


def body(*actions: str, ids: list[str] | None = None, **more: Any) -> dict[str, Any]:
    """A request as verl-tool's client sends it, by default for actions of the trajectory "a"."""
    number = len(actions)
    return {
        "trajectory_ids": ids or ["a"] * number, "actions": list(actions), "finish": [False] * number,
        "is_last_step": [False] * number, "extra_fields": [{"stock": 3}] * number, **more,
    }  # fmt: skip


FINISH = body("", finish=[True], is_last_step=[True])


class Served:
    """A running service, and requests to it."""

    def __init__(self, url: str, service: ToolService, http: aiohttp.ClientSession) -> None:
        self.url, self.service, self._http = url, service, http

    async def asked(self, request: object) -> tuple[int, Any]:
        data = request if isinstance(request, bytes) else json.dumps(request).encode()
        async with self._http.post(f"{self.url}/get_observation", data=io.BytesIO(data)) as response:
            return response.status, await response.json()

    async def says(self, request: object) -> tuple[Any, ...]:
        """Observations, dones and valids in the answer to a request."""
        status, found = await self.asked(request)
        assert status == 200, found
        return found["observations"], found["dones"], found["valids"]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(ENVIRONMENT)
    (tmp_path / "tools.yaml").write_text(f"- environment: {tmp_path}/shop.py:Shop\n")
    return tmp_path / "tools.yaml"


@asynccontextmanager
async def serving(tools: Path, form: ActionForm | None = None, idle_seconds: float = 600.0) -> AsyncIterator[Served]:
    read = form or ActionForm(read=lambda action: read_turn(action).calls)
    service = ToolService(load_toolset(str(tools)), read, max_calls_per_turn=4, idle_seconds=idle_seconds)
    async with running(service.app()) as url, aiohttp.ClientSession() as http:
        yield Served(url, service, http)


async def test_a_trajectory_keeps_its_state_until_it_is_finished(shop: Path) -> None:
    async with serving(shop) as served:
        assert await served.says(body(order(2))) == (["1 left"], [False], [True])
        assert await served.says(body(order(1))) == (["0 left"], [False], [True])
        assert served.service.num_trajectories == 1
        assert await served.says(FINISH) == ([""], [True], [True])
        assert served.service.num_trajectories == 0
        assert await served.says(FINISH) == ([""], [True], [True])  # also if it is finished already
        assert await served.says(body(order(1))) == (["2 left"], [False], [True])


async def test_the_first_observation_of_an_environment_stands_before_that_of_the_first_action(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    entry = "- environment: gymnasium:tests.support.gym_environments:CountTo-v0\n"
    (tmp_path / "tools.yaml").write_text(entry)
    form = ActionForm(read=lambda action: read_turn(action).calls, template="<output>{text}</output>")
    step = body(call("step", action=1), extra_fields=[{"options": {"start": 1}}])

    async with serving(tmp_path / "tools.yaml", form) as served:
        assert await served.says(step) == (["<output>1\n\n2</output>"], [False], [True])
        assert (await served.says(step))[0] == ["<output>3\nThe environment has ended: terminated.</output>"]


async def test_trajectories_of_one_request_are_apart_and_one_acts_in_order(shop: Path) -> None:
    request = body(order(1), order(1), order(2), ids=["a", "b", "a"])
    request["extra_fields"] = [{"stock": 3}, {"stock": 9}, {"stock": 3}]

    async with serving(shop) as served:
        assert await served.says(request) == (["2 left", "8 left", "0 left"], [False] * 3, [True] * 3)


async def test_a_request_may_hold_ids_and_actions_alone(tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_text("- function: tests.support.tool_functions:add\n")

    async with serving(tmp_path / "tools.yaml") as served:
        found = await served.says({"trajectory_ids": ["a"], "actions": [call("add", a=2, b=3)]})

    assert found == (["5"], [False], [True])


@pytest.mark.parametrize(
    ("action", "observation", "valid"),
    [
        ("Hm.", {"obs": "", "invalid_reason": "the action holds no call"}, False),
        (call("buy"), "there is no tool 'buy'", False),
        (order("many"), "amount", False),  # type: ignore[arg-type]
        ("<tool_call>{</tool_call>", "error, ", False),
        (order(9), "not so many", True),
    ],
)
async def test_mistakes_of_the_policy_are_observations(
    shop: Path, action: str, observation: object, valid: bool
) -> None:
    async with serving(shop) as served:
        (found,), dones, valids = await served.says(body(action))

    assert (dones, valids) == ([False], [valid])
    if isinstance(observation, str):
        assert observation in found
    else:
        assert found == observation


async def test_failures_of_the_system_have_the_form_of_verl_tools_and_end_the_trajectory(shop: Path) -> None:
    async with serving(shop) as served:
        crashed = await served.says(body(call("crash")))
        assert served.service.num_trajectories == 0
        broken = await served.says(body(order(1), extra_fields=[{}]))

    assert crashed[1:] == broken[1:] == ([True], [False])
    assert crashed[0][0]["obs"] == broken[0][0]["obs"] == ""
    assert "ConnectionError: the database is down" in crashed[0][0]["error"]
    assert "KeyError: 'stock'" in broken[0][0]["error"]


async def test_a_tool_that_ends_the_trajectory_is_done(shop: Path) -> None:
    async with serving(shop) as served:
        assert await served.says(body(call("leave"))) == (["Bye."], [True], [True])
        assert await served.says(body(order(1), is_last_step=[True])) == (["2 left"], [False], [True])
        assert served.service.num_trajectories == 0


async def test_trajectories_that_nobody_finishes_are_ended(shop: Path) -> None:
    async with serving(shop, idle_seconds=0.2) as served:
        await served.says(body(order(1), extra_fields=[{"stock": 3, "name": "idle"}]))
        async with asyncio.timeout(10):
            while served.service.num_trajectories:  # noqa: ASYNC110  the service tells nobody
                await asyncio.sleep(0.05)

    assert shop.with_name("closed.txt").read_text() == "idle "


async def test_the_service_ends_all_trajectories_with_itself(shop: Path) -> None:
    async with serving(shop) as served:
        for name in ("x", "y"):
            await served.says(body(order(1), ids=[name], extra_fields=[{"stock": 3, "name": name}]))

    assert shop.with_name("closed.txt").read_text() == "x y "


@pytest.mark.parametrize(
    ("request_body", "sentence"),
    [
        (b"<html>", "the body is not a valid request to /get_observation: JSON is malformed"),
        (b"[" * 100_000, "the body is not a valid request to /get_observation"),
        ({"actions": ["a"]}, "missing required field `trajectory_ids`"),
        (body(), "a request needs at least one action"),
        (body("a", ids=["a", "b"]), "actions has 1 entries, and trajectory_ids has 2"),
        (body("a", extra_fields=[]), "extra_fields has 0 entries, and trajectory_ids has 1"),
        (body("a", finish=[True, False]), "finish has 2 entries, and trajectory_ids has 1"),
        (body("a", finish=["no"]), "Expected `bool`, got `str`"),
        (body("a", extra_fields=[3]), "Expected `object`, got `int`"),
    ],
)
async def test_a_request_that_is_none_is_refused_in_one_sentence(
    shop: Path, request_body: object, sentence: str
) -> None:
    async with serving(shop) as served:
        status, found = await served.asked(request_body)

    assert status == 422
    assert sentence in found["detail"]


async def test_a_request_of_more_than_8_mib_is_refused_in_one_sentence(shop: Path) -> None:
    async with serving(shop) as served:
        status, found = await served.asked(body("x" * (9 << 20)))

    assert (status, found) == (422, {"detail": "the body of a request to /get_observation has more than 8 MiB"})


async def test_an_action_that_races_with_the_end_of_its_trajectory_leaves_nothing_behind(shop: Path) -> None:
    async with serving(shop) as served:
        requests = [body(order(1), is_last_step=[True]), FINISH, body(order(1)), FINISH] * 8
        answers = await asyncio.gather(*map(served.says, requests))
        assert all(text in ("2 left", "1 left", "0 left", "") or "not so many" in text for (text,), _, _ in answers)
        await served.says(FINISH)
        assert served.service.num_trajectories == 0


async def test_a_template_of_observations_may_hold_other_braces(shop: Path) -> None:
    form = ActionForm(read=lambda action: read_turn(action).calls, template='{"result": "{text}", "more": {}}')

    async with serving(shop, form) as served:
        (text,), _, _ = await served.says(body(order(1)))

    assert text == '{"result": "2 left", "more": {}}'


async def test_our_own_client_reads_what_our_service_says(tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_text("- function: tests.support.tool_functions:add\n")
    pair = TagPair(open="<add>", close="</add>", tool="add", argument="a")
    form = ActionForm(read=TagParser([pair]).read, template="[{text}]")

    async with serving(tmp_path / "tools.yaml", form) as served:
        (tmp_path / "client.yaml").write_text(f"- tool_server: {{url: '{served.url}/get_observation'}}\n")
        async with load_toolset(str(tmp_path / "client.yaml")).open({}) as tools:
            calls = [ToolCall(name="tool_server", arguments={"action": each}) for each in ("<add>x</add>", "Hm.")]
            outcomes = await tools.toolbox.run(calls)
            assert served.service.num_trajectories == 1
        assert served.service.num_trajectories == 0

    texts = [outcome.observation.text for outcome in outcomes if outcome.observation]
    assert re.fullmatch(r"\[Tool call failure\nreason: error, .*\]", texts[0])
    assert texts[1] == ""


def test_the_command_serves_until_it_is_told_to_end(shop: Path) -> None:
    words = [sys.executable, "-m", "verl_pivot.cli", "tools", "serve", str(shop), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline().strip()

        async def asked() -> Any:
            async with aiohttp.ClientSession() as http, http.post(said.split()[-1], json=body(order(2))) as response:
                return await response.json()

        try:
            got = asyncio.run(asked())
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0

    assert re.fullmatch(rf"Serving {shop} at http://127\.0\.0\.1:\d+/get_observation", said)
    assert got == {"observations": ["1 left"], "dones": [False], "valids": [True]}
