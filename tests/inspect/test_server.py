"""inspect.server over real HTTP: who may read rollouts, what is answered, and the errors of broken requests."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.dumped_runs import make_line, read_index, write_run
from tests.support.web_servers import running
from verl_pivot.data.rollout_records import CallRecord, CallStatus
from verl_pivot.inspect.filters import RolloutFilter, RolloutOrder
from verl_pivot.inspect.guarded_page import STATIC
from verl_pivot.inspect.queries import OrderedRollouts, RunIndex
from verl_pivot.inspect.server import InspectPage
from verl_pivot.rewards.process_record import ProcessRecord
from verl_pivot.runs.run import TrainingRun
from verl_pivot.tools.http_service import serve

TOKEN = "t0ken"


@asynccontextmanager
async def page(*folders: Path, host: str = "127.0.0.1") -> AsyncIterator[str]:
    async with running(InspectPage(read_index(*folders), token=TOKEN, host=host).app()) as url:
        yield url


async def status(url: str, path: str, **headers: str) -> int:
    async with aiohttp.ClientSession() as client, client.get(url + path, headers=headers) as answer:
        return answer.status


async def ask(url: str, path: str, **query: str) -> Any:
    headers = {"X-Inspect-Token": TOKEN}
    async with (
        aiohttp.ClientSession() as client,
        client.get(f"{url}/api/{path}", params=query, headers=headers) as answer,
    ):
        return await answer.json()


@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [
        ("/api/run", {"X-Inspect-Token": TOKEN}, 200),
        ("/api/run", {"X-Inspect-Token": TOKEN, "Host": "localhost:80"}, 200),
        ("/api/run", {}, 403),
        ("/api/run", {"X-Inspect-Token": "t\u00f6ken"}, 403),
        ("/api/run?token=other", {}, 403),
        ("/api/events?token=", {}, 403),
        ("/api/run", {"X-Inspect-Token": TOKEN, "Host": "evil.example"}, 403),
        ("/api/run", {"X-Inspect-Token": TOKEN, "Host": "127.0.0.1.evil.example"}, 403),
        ("/api/run", {"X-Inspect-Token": TOKEN, "Host": "10.0.0.7"}, 403),
        ("/", {"Host": "evil.example"}, 403),
        ("/", {}, 200),
        ("/app.js", {}, 200),
        ("/../server.py", {}, 404),
        ("/%2e%2e/server.py", {}, 404),
        ("/static/app.js", {}, 404),
    ],
)
async def test_only_who_has_the_address_reads_rollouts(
    tmp_path: Path, path: str, headers: dict[str, str], expected: int
) -> None:
    async with page(write_run(tmp_path, {1: [make_line()]})) as url:
        assert await status(url, path, **headers) == expected


async def test_a_server_for_others_answers_to_addresses_and_its_name_alone(tmp_path: Path) -> None:
    async with page(write_run(tmp_path, {1: [make_line()]}), host="0.0.0.0") as url:
        assert await status(url, "/", Host="10.0.0.7:8000") == 200
        assert await status(url, "/", Host="evil.example") == 403


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="the machine has no IPv6")
async def test_the_address_of_a_page_on_ipv6_can_be_opened(tmp_path: Path) -> None:
    app = InspectPage(read_index(write_run(tmp_path, {1: [make_line()]})), token=TOKEN, host="::1").app()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(app, "::1", 0, ready.set_result))
    try:
        url = await ready
        assert url.startswith("http://[::1]:")
        assert (await ask(url, "run"))["num_rollouts"] == 1
    finally:
        serving.cancel()
        await asyncio.wait([serving])


async def test_pages_may_run_no_script_but_ours_and_ask_nobody_else(tmp_path: Path) -> None:
    async with page(write_run(tmp_path, {1: [make_line()]})) as url, aiohttp.ClientSession() as client:
        for path in ("/", "/app.js", "/api/run"):
            async with client.get(url + path) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';")
                assert "unsafe" not in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_the_page_parses_no_text_as_html_and_is_small() -> None:
    sources = {path.name: path.read_text() for path in STATIC.iterdir()}

    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "DOMParser"):
        assert [name for name, text in sources.items() if word in text] == []
    assert [
        name
        for name, text in sources.items()
        if "http://" in text.replace("http://www.w3.org", "") or "https://" in text
    ] == []
    assert sum(map(len, sources.values())) < 150_000


@pytest.mark.parametrize(
    ("path", "query", "sentence"),
    [
        ("ordered", {"condition": "score >"}, "the condition is not valid SQL"),
        ("ordered", {"sort": "byte_offset; DROP"}, "a parameter of the address is unknown, missing or invalid"),
        ("ordered", {"score_from": "much"}, "the filter cannot be used: score_from must be a number, not 'much'"),
        ("ordered", {"unknown": "1"}, "the filter cannot be used: Object contains unknown field `unknown`"),
        ("rows", {"ids": "1,x"}, "a parameter of the address is unknown, missing or invalid"),
        ("rows", {"ids": "-1"}, "the condition cannot be used"),
        ("rollout", {"run": "0"}, "a parameter of the address is unknown, missing or invalid"),
        ("rollout", {"run": "0", "file": "../../etc/passwd", "line": "1"}, "has no rollout at line 1"),
        ("find", {"run": "9", "file": "rollouts/pivot/1.jsonl", "line": "1"}, "has no rollout at line 1"),
    ],
)
async def test_a_request_for_what_there_is_not_is_told_so(
    tmp_path: Path, path: str, query: dict[str, str], sentence: str
) -> None:
    async with page(write_run(tmp_path, {1: [make_line()]})) as url:
        assert sentence in (await ask(url, path, **query))["detail"]


async def test_a_rollout_has_its_turns_with_calls_observations_and_rewards(tmp_path: Path) -> None:
    call = CallRecord(turn=0, name="add", arguments={"a": 2}, status=CallStatus.OK, seconds=0.5)
    process = ProcessRecord(rewards=(0.25, 1.0), scores=(0.5,), num_asked=1).as_text()
    line = make_line(
        "g_0_0", 1.0, ["I add.", "It is 5."], observations=[["5"], []], calls=(call,), reward_info={"process": process}
    )
    folder = write_run(tmp_path, {1: [line, make_line("g_1_0", 0.0)]})
    verl = {"input": "user\nWhat is 2 + 3?", "output": "It is 5.", "uid": "g_1_0", "step": 1, "score": 0.0}
    (folder / "rollouts" / "1.jsonl").write_text(
        json.dumps({**verl, "uid": "f_0_0", "input": "no"}) + "\n" + json.dumps(verl)
    )

    async with page(folder) as url:
        opened = await ask(url, "rollout", run="0", file="rollouts/pivot/1.jsonl", line="1")

    first, last = opened["turns"]
    assert (first["text"], first["observations"], first["reward"], last["reward"]) == ("I add.", ["5"], 0.25, 1.0)
    assert [(each["name"], each["arguments"], each["seconds"]) for each in first["calls"]] == [("add", {"a": 2}, 0.5)]
    assert opened["prompt"] == [{"role": None, "content": "user\nWhat is 2 + 3?"}]
    assert [each["uid"] for each in opened["group"]] == ["g_0_0", "g_1_0"]
    assert opened["fields"]["prompt_id"] == "0" * 16


async def test_a_prompt_is_found_from_within_the_folder_of_dumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path, {1: [make_line("g_0_0")]}) / "rollouts"
    (folder / "1.jsonl").write_text(json.dumps({"uid": "g_0_0", "input": "What is 2 + 3?"}) + "\n")
    monkeypatch.chdir(folder / "pivot")

    async with page(Path()) as url:
        opened = await ask(url, "rollout", run="0", file="1.jsonl", line="1")

    assert opened["prompt"] == [{"role": None, "content": "What is 2 + 3?"}]


async def test_runs_are_told_apart_by_the_folders_in_which_they_lie(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / seed / "grpo", {1: [make_line()]}) for seed in ("seed-0", "seed-1")]

    async with page(*folders) as url:
        assert [run["name"] for run in (await ask(url, "run"))["runs"]] == ["seed-0/grpo", "seed-1/grpo"]


async def test_dumps_of_verl_alone_are_shown_with_what_they_have(tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    line = {"input": "What is 2 + 3?", "output": "It is 5.", "gts": "5", "score": 1.0, "step": 3, "acc": float("nan")}
    (tmp_path / "rollouts" / "3.jsonl").write_text(json.dumps(line) + "\n")

    async with page(tmp_path) as url:
        opened = await ask(url, "rollout", run="0", file="rollouts/3.jsonl", line="1")

    assert [turn["text"] for turn in opened["turns"]] == ["It is 5."]
    assert opened["prompt"][0]["content"] == "What is 2 + 3?"
    assert opened["fields"] == {"gts": "5", "score": 1.0, "step": 3, "acc": None}


class ChangingIndex(RunIndex):
    """An index that reads something new during each query."""

    def ordered(self, wanted: RolloutFilter, order: RolloutOrder) -> OrderedRollouts:
        found = super().ordered(wanted, order)
        self.generation += 1
        return found


async def test_a_list_names_the_generation_that_it_has_seen_so_that_the_page_asks_again(tmp_path: Path) -> None:
    index = ChangingIndex([TrainingRun(write_run(tmp_path, {1: [make_line()]}))])
    while index.refresh():
        pass
    before = index.generation

    async with running(InspectPage(index, token=TOKEN, host="127.0.0.1").app()) as url:
        assert (await ask(url, "ordered"))["generation"] == before
        assert (await ask(url, "run"))["generation"] == before + 1


async def test_events_tell_of_what_is_new(tmp_path: Path) -> None:
    folder = write_run(tmp_path, {1: [make_line("a_0_0")]})
    async with page(folder) as url, aiohttp.ClientSession() as client:
        async with client.get(f"{url}/api/events?token={TOKEN}") as events:
            before = int((await events.content.readline()).removeprefix(b"data: "))
            await events.content.readline()
            write_run(folder, {2: [make_line("b_0_0", step=2)]})
            assert int((await events.content.readline()).removeprefix(b"data: ")) == before + 1
        assert (await ask(url, "run"))["num_rollouts"] == 2


async def test_a_browser_that_is_closed_in_mid_stream_leaves_the_page_running_without_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_run(tmp_path, {1: [make_line("a_0_0")]})
    async with page(folder) as url:
        for step in (2, 3):
            async with aiohttp.ClientSession() as client, client.get(f"{url}/api/events?token={TOKEN}") as events:
                await events.content.readline()
                events.close()
            write_run(folder, {step: [make_line(f"{step}_0_0", step=step)]})
        async with aiohttp.ClientSession() as client, client.get(f"{url}/api/events?token={TOKEN}") as events:
            while (await ask(url, "run"))["num_rollouts"] < 3:
                await events.content.readline()

    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
