"""Tool servers of verl-tool: requests as its own client sends them, answers as its server gives them, and failures."""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.scripted_engine import Said, loop_of, rollout_config, row, scripted_model
from tests.support.web_servers import running
from verl_pivot.data.rollout_records import RECORD_FIELD
from verl_pivot.errors import ConfigError
from verl_pivot.rollout.tool_loop import ToolLoop
from verl_pivot.tools.calls import CallOutcome
from verl_pivot.tools.toolset import load_toolset
from verl_pivot.types import ErrorKind, ToolCall

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
CODE = "I run it.\n```python\nprint(6 * 7)\n```\n```output"


def answer(observation: object, *, done: bool = False, valid: bool = True) -> dict[str, Any]:
    """Answer of verl-tool's server to one action."""
    return {
        "observations": [observation], "dones": [done], "valids": [valid], "processing_time_ms": 1.5,
        "queue_time_ms": 0.1,
    }  # fmt: skip


class RecordedServer:
    """Gives the answers of a script in order, and keeps every request."""

    def __init__(self, *script: object) -> None:
        self.script = list(script)
        self.requests: list[dict[str, Any]] = []
        self.was_asked = asyncio.Event()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/get_observation", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.was_asked.set()
        if body["finish"] == [True]:  # the answer of verl-tool's finish tool
            return web.json_response(answer("", done=True))
        said = self.script.pop(0)
        if isinstance(said, bytes):
            return web.Response(body=said)
        if isinstance(said, int):
            return web.Response(status=said, text='{"detail": "Processing failed"}')
        if isinstance(said, float):
            await asyncio.sleep(said)
        return web.json_response(said)


def tools_file(folder: Path, url: str, more: str = "") -> str:
    """A tools file with a name of its own, since each file is read once."""
    path = folder / f"tools-{url.rpartition(':')[2].partition('/')[0]}.yaml"
    path.write_text(f"- tool_server: {{url: '{url}/get_observation'}}\n{more}")
    return str(path)


async def acts(tools: str, *actions: str, metadata: dict[str, Any] | None = None) -> list[CallOutcome]:
    """Outcomes of the actions of one trajectory."""
    calls = [ToolCall(name="tool_server", arguments={"action": action}) for action in actions]
    async with load_toolset(tools).open({"metadata": json.dumps(metadata or {})}) as opened:
        return await opened.toolbox.run(calls)


async def test_requests_are_those_of_verl_tools_client(tmp_path: Path) -> None:
    server = RecordedServer(answer("42"), answer("43"))

    async with running(server.app()) as url:
        outcomes = await acts(tools_file(tmp_path, url), "first ```output", "second", metadata={"gold": 42})

    assert [outcome.observation.text for outcome in outcomes if outcome.observation] == ["42", "43"]
    ids = {request["trajectory_ids"][0] for request in server.requests}
    assert len(ids) == 1
    assert [{**request, "trajectory_ids": []} for request in server.requests] == [
        {
            "trajectory_ids": [], "actions": [action], "extra_fields": [{"gold": 42}], "finish": [is_over],
            "is_last_step": [is_over],
        }
        for action, is_over in (("first ```output", False), ("second", False), ("", True))
    ]  # fmt: skip


async def test_trajectories_have_ids_of_their_own_and_one_without_an_action_sends_nothing(tmp_path: Path) -> None:
    server = RecordedServer(*[answer("42")] * 8)

    async with running(server.app()) as url:
        tools = tools_file(tmp_path, url)
        await asyncio.gather(*(acts(tools, "go") for _ in range(8)))
        await acts(tools)

    assert len({request["trajectory_ids"][0] for request in server.requests}) == 8
    assert sum(request["finish"] == [True] for request in server.requests) == 8


async def test_an_action_that_no_tool_reads_is_the_policys_mistake(tmp_path: Path) -> None:
    unread = {"obs": "", "invalid_reason": "No valid tool found for action", "available_tools": ""}

    async with running(RecordedServer(answer(unread, valid=False)).app()) as url:
        (outcome,) = await acts(tools_file(tmp_path, url), "Hm.")

    assert outcome.observation is not None
    assert (outcome.observation.text, outcome.observation.error) == ("", ErrorKind.REFUSED)
    assert (outcome.failure, outcome.observation.end) == ("", None)


@pytest.mark.parametrize(
    ("said", "failure"),
    [
        (
            answer({"obs": "", "error": "Tool processing failed: boom", "tool_type": "python_code"}, done=True),
            "failed: Tool processing failed: boom",
        ),
        (answer({"obs": "42", "error": ""}), "failed: "),
        (answer({"obs": "", "image": "data:image/png;base64,AA"}), "answered with an image or a sound, but"),
        (answer({"text": "42"}), "not in verl-tool's format: Object missing required field `obs`"),
        (answer(None), "sent an answer that is not in verl-tool's format: "),
        ({"observations": ["42"]}, "not in verl-tool's format: Object missing required field `dones`"),
        ({"observations": ["4", "2"], "dones": [False] * 2, "valids": [True] * 2}, "answered one action with 2 obs"),
        ({"observations": [], "dones": [], "valids": []}, "answered one action with 0 observations"),
        ({"observations": ["42"], "dones": ["no"], "valids": [True]}, "Expected `bool`, got `str`"),
        (b"<html>", "sent an answer that is not in verl-tool's format: JSON is malformed"),
        (b"[" * 100_000, "sent an answer that is not in verl-tool's format"),
        (
            b'{"observations": ["caf\xe9"], "dones": [false], "valids": [true]}',
            "verl-tool's format: 'utf-8' codec can't",
        ),
        (500, "answered /get_observation with status 500: "),
        (408, "answered /get_observation with status 408: "),
        (5.0, "did not answer within 0.5 s"),
    ],
)
async def test_what_the_server_gets_wrong_is_a_failure_of_the_system(
    tmp_path: Path, said: object, failure: str
) -> None:
    server, began = RecordedServer(said), time.monotonic()

    async with running(server.app()) as url:
        (outcome,) = await acts(tools_file(tmp_path, url, "  timeout_seconds: 0.5\n"), "go")
        assert outcome.failure.startswith(f"the tool server {url} ")

    assert outcome.observation is None
    assert failure in outcome.failure
    assert not outcome.is_bug
    assert [request["finish"] for request in server.requests] == [[False], [True]]  # the action, and then the end
    assert time.monotonic() - began < 10


async def test_a_server_that_is_down_masks_and_its_end_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(web.Application()) as url:
        pass

    with caplog.at_level(logging.WARNING):
        (outcome,) = await acts(tools_file(tmp_path, url), "go")

    assert outcome.failure.startswith(f"the tool server {url} cannot be reached: ClientConnectorError")
    assert "the tool server may keep the state" in caplog.text


async def test_an_answer_to_the_end_of_a_trajectory_that_is_not_utf_8_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def answers(request: web.Request) -> web.StreamResponse:
        is_over = (await request.json())["finish"] == [True]
        return web.Response(body=b'{"observations": ["caf\xe9"]}') if is_over else web.json_response(answer("42"))

    app = web.Application()
    app.router.add_post("/get_observation", answers)
    with caplog.at_level(logging.WARNING):
        async with running(app) as url:
            (outcome,) = await acts(tools_file(tmp_path, url), "go")

    assert (outcome.failure, outcome.observed().text) == ("", "42")
    assert "the tool server may keep the state" in caplog.text


async def test_a_trajectory_that_is_cancelled_is_ended_at_the_server(tmp_path: Path) -> None:
    server = RecordedServer(30.0)

    async with running(server.app()) as url:
        task = asyncio.create_task(acts(tools_file(tmp_path, url), "go"))
        await server.was_asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert [request["finish"] for request in server.requests] == [[False], [True]]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{url: 'http://host:5000'}", "give an address with its path, such as http://host:5000/get_observation, got"),
        ("{url: 'host:5000/get_observation'}", "give an address with its path"),
        ("{url: 'file:///get_observation'}", "give an address with its path"),
        ("{}", "url"),
        ("http://host:5000/get_observation", "tool_server"),
        ("{url: 'http://host:5000/get_observation', retries: 2}", "retries"),
    ],
)
def test_an_entry_that_is_wrong_is_refused(tmp_path: Path, entry: str, message: str) -> None:
    (tmp_path / "tools.yaml").write_text(f"- tool_server: {entry}\n")

    with pytest.raises(ConfigError, match=message) as caught:
        load_toolset(str(tmp_path / "tools.yaml"))
    assert str(caught.value).startswith(f"{tmp_path}/tools.yaml, entry 0: ")


async def played(tools: str, *script: Said | str) -> tuple[str, dict[str, Any]]:
    """Text after the prompt of one rollout, and its record."""
    config = rollout_config(scripted_model(), "+tool_format=verl_tool", f"pivot.rollout.tools={tools}")
    loop = loop_of(ToolLoop, config, script)
    output = await loop.run({}, **row("What is 6 times 7?"))
    return loop.tokenizer.decode(output.response_ids, skip_special_tokens=True), output.extra_fields[RECORD_FIELD]


async def test_the_turn_is_the_action_and_what_the_server_says_follows_in_the_same_turn(tmp_path: Path) -> None:
    server = RecordedServer(answer("\n42\n```\n"))

    async with running(server.app()) as url:
        text, record = await played(tools_file(tmp_path, url), Said(CODE, ended=False), "It is 42.")

    assert text == f"{CODE}\n42\n```\nIt is 42."
    assert record["stop_reason"] == "answered"
    assert [request["actions"] for request in server.requests] == [[CODE], [""]]


async def test_a_server_that_says_done_ends_the_trajectory(tmp_path: Path) -> None:
    server = RecordedServer(answer("You won.", done=True))

    async with running(server.app()) as url:
        text, record = await played(tools_file(tmp_path, url), Said(CODE, ended=False))

    assert text == CODE  # it ends with the policy's turn, whose last token carries the outcome
    assert (record["stop_reason"], record["is_masked"], record["num_calls"]) == ("ended_by_tool", False, 1)


async def test_a_failure_of_the_server_masks_the_trajectory(tmp_path: Path) -> None:
    server = RecordedServer(answer({"obs": "", "error": "Tool processing failed: boom"}, done=True, valid=False))

    async with running(server.app()) as url:
        _, record = await played(tools_file(tmp_path, url), Said(CODE, ended=False))

    assert (record["stop_reason"], record["is_masked"]) == ("tool_failure", True)
    assert server.requests[-1]["finish"] == [True]
