"""ChatClient over several servers, with its cache, its formats of answers and logprobs; servers are fakes over HTTP."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.chat_server import chat_server, said
from tests.support.fake_engine import Answer, fake_server
from tests.support.paths import ROOT
from verl_pivot.engines.answer_cache import AnswerCache
from verl_pivot.engines.chat import ChatAnswer, ChatClient, TokenLogprob, response_format
from verl_pivot.engines.retries import Retries, UnknownModelError
from verl_pivot.errors import ConfigError, EngineError
from verl_pivot.types import JsonObject

QUICK = Retries(num_attempts=4, longest_wait_seconds=0.01, timeout_seconds=5.0)
HELLO: list[JsonObject] = [{"role": "user", "content": "hi"}]


def echo(path: str, body: JsonObject) -> Answer:
    """Answer with the last message."""
    messages: object = body["messages"]
    assert isinstance(messages, list)
    return said(messages[-1]["content"])


async def ask(urls: str | Sequence[str], text: str = "hi", **options: object) -> ChatAnswer:
    cache, parameters = options.pop("cache", None), options.pop("parameters", {})
    client = ChatClient(urls, "judge", "key", QUICK, cache=cache)  # type: ignore[arg-type]
    try:
        return await client.ask([{"role": "user", "content": text}], parameters, **options)  # type: ignore[arg-type]
    finally:
        await client.close()


async def test_several_servers_share_the_requests() -> None:
    with fake_server(echo) as first, fake_server(echo) as second:
        client = ChatClient([first.url, second.url], "judge", "key", QUICK)
        answers = await asyncio.gather(*(client.ask([{"role": "user", "content": str(n)}], {}) for n in range(40)))
        await client.close()

    assert [answer.text for answer in answers] == [str(n) for n in range(40)]
    assert len(first.requests) + len(second.requests) == 40
    assert min(len(first.requests), len(second.requests)) >= 10


async def test_a_request_moves_to_another_server_when_its_own_is_down_and_the_others_then_leave_it_alone() -> None:
    with fake_server(echo) as down, fake_server(echo) as up:
        down.stop()
        client = ChatClient([down.url, up.url], "judge", "key", QUICK)
        for number in range(5):
            assert (await client.ask([{"role": "user", "content": str(number)}], {})).text == str(number)
        await client.close()

    assert len(up.requests) == 5


@pytest.mark.parametrize(
    "wrong", [Answer(body="no such page", status=404), Answer(body="The model `judge` does not exist.", status=404)]
)
async def test_a_server_of_another_model_or_path_takes_no_questions_from_one_that_answers(wrong: Answer) -> None:
    with fake_server(lambda path, body: wrong) as other, fake_server(echo) as right:
        client = ChatClient([other.url, right.url], "judge", "key", QUICK)
        answers = [await client.ask([{"role": "user", "content": str(number)}], {}) for number in range(10)]
        num_wrong = len(other.requests)
        together = await asyncio.gather(*(client.ask([{"role": "user", "content": str(n)}], {}) for n in range(90)))
        await client.close()

    assert [answer.text for answer in answers] == [str(number) for number in range(10)]
    assert [answer.text for answer in together] == [str(number) for number in range(90)]
    assert num_wrong < 5


async def test_a_server_that_asks_for_a_pause_holds_no_question_back_from_one_that_is_free() -> None:
    busy = Answer(body="busy", status=429, headers={"Retry-After": "30"})
    with fake_server(lambda path, body: busy) as limited, fake_server(echo) as free:
        began = time.monotonic()
        answer = await ask([limited.url, free.url])
        seconds = time.monotonic() - began

    assert (answer.text, len(limited.requests), len(free.requests)) == ("hi", 1, 1)
    assert seconds < 10.0


async def test_servers_that_all_ask_for_a_pause_have_the_shortest_one() -> None:
    def pausing(seconds: int) -> Callable[[str, JsonObject], Answer]:
        """Ask for a pause once, then echo."""
        answers = [Answer(body="busy", status=429, headers={"Retry-After": str(seconds)})]
        return lambda path, body: answers.pop() if answers else echo(path, body)

    with fake_server(pausing(40)) as one, fake_server(pausing(1)) as other:
        began = time.monotonic()
        answer = await ask([one.url, other.url])
        seconds = time.monotonic() - began

    assert (answer.text, len(one.requests), len(other.requests)) == ("hi", 1, 2)
    assert 1.0 <= seconds < 20.0


async def test_servers_none_of_which_serves_the_model_are_no_failure_that_passes() -> None:
    wrong = Answer(body="The model `judge` does not exist.", status=404)
    with (
        fake_server(lambda path, body: wrong) as one,
        fake_server(lambda path, body: wrong) as other,
        pytest.raises(UnknownModelError, match=r"with status 404: .*; check the name of the model"),
    ):
        await ask([one.url, other.url])

    assert (len(one.requests), len(other.requests)) == (1, 1)


async def test_servers_that_are_all_down_are_an_error() -> None:
    with fake_server(echo) as one, fake_server(echo) as other:
        one.stop(), other.stop()
        with pytest.raises(EngineError, match="cannot be reached"):
            await ask([one.url, other.url])


async def test_a_question_of_the_same_name_is_asked_once_also_by_the_next_process(tmp_path: Path) -> None:
    with fake_server(echo) as server:
        first = await ask(server.url, "first words", cache=AnswerCache(tmp_path), cache_key="q")
        again = await ask(server.url, "other words", cache=AnswerCache(tmp_path), cache_key="q")
        other = await ask(server.url, "other words", cache=AnswerCache(tmp_path), cache_key="p")
        seeded = await ask(
            server.url, "other words", cache=AnswerCache(tmp_path), cache_key="q", parameters={"seed": 1}
        )

    assert [(each.text, each.is_cached) for each in (first, again, other, seeded)] == [
        ("first words", False), ("first words", True), ("other words", False), ("other words", False),
    ]  # fmt: skip
    assert len(server.requests) == 3


async def test_a_failure_is_not_kept(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path)
    with fake_server(lambda path, body: Answer(body={"error": "no"}, status=500)) as server, pytest.raises(EngineError):
        await ask(server.url, cache=cache, cache_key="q")

    assert len(cache) == 0


@pytest.mark.parametrize("word", ["abort", "aborted"])
async def test_an_aborted_answer_is_asked_for_again_and_not_kept(tmp_path: Path, word: str) -> None:
    with chat_server([said("half", end=word), said("whole")]) as server:
        first = await ask(server.url, cache=AnswerCache(tmp_path), cache_key="q")
        again = await ask(server.url, cache=AnswerCache(tmp_path), cache_key="q")

    assert [(each.text, each.is_cached) for each in (first, again)] == [("whole", False), ("whole", True)]
    assert len(server.requests) == 2


async def test_a_server_that_keeps_aborting_is_an_error_which_is_not_kept(tmp_path: Path) -> None:
    with chat_server([said("", end="abort")]) as server, pytest.raises(EngineError) as error:
        await ask(server.url, cache=AnswerCache(tmp_path), cache_key="q")

    assert str(error.value) == (
        f"{server.url}/v1 kept aborting answers; see the server's log, and run the same command again once the server "
        "works"
    )
    assert len(server.requests) == QUICK.num_attempts
    assert len(AnswerCache(tmp_path)) == 0


async def test_another_server_answers_while_one_aborts() -> None:
    with chat_server([said("", end="abort")]) as stopped, fake_server(echo) as up:
        client = ChatClient([stopped.url, up.url], "judge", "key", QUICK)
        answers = [await client.ask([{"role": "user", "content": str(number)}], {}) for number in range(5)]
        await client.close()

    assert [answer.text for answer in answers] == [str(number) for number in range(5)]
    assert len(stopped.requests) == 1


def abort_kept_answers(folder: Path) -> None:
    """Change all answers of a cache into aborted ones."""
    for file in folder.glob("*.jsonl"):
        file.write_text(file.read_text().replace('"finish_reason":"stop"', '"finish_reason":"abort"'))


async def test_an_aborted_answer_that_an_earlier_version_kept_is_asked_for_again(tmp_path: Path) -> None:
    with chat_server([said("half")]) as server:
        await ask(server.url, cache=AnswerCache(tmp_path), cache_key="q")
    abort_kept_answers(tmp_path)
    cache = AnswerCache(tmp_path)
    with chat_server([said("whole")]) as server:
        answers = [await ask(server.url, cache=cache, cache_key="q") for _ in range(2)]

    assert [(each.text, each.is_cached) for each in answers] == [("whole", False), ("whole", True)]


def test_answers_of_a_process_that_is_killed_are_there_and_a_line_that_was_cut_off_is_not(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from verl_pivot.engines.answer_cache import AnswerCache\n"
        f"cache = AnswerCache(pathlib.Path({str(tmp_path)!r}))\n"
        "for number in range(100):\n"
        '    cache.put(str(number), b\'{"text": "%d"}\' % number)\n'
        "print('done', flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.communicate()
    written = next(tmp_path.glob("*.jsonl"))
    with written.open("ab") as file:
        file.write(b'{"key": "cut", "answer": {"text"')

    cache = AnswerCache(tmp_path)

    assert len(cache) == 100
    assert [cache.get(str(number)) for number in (0, 57, 99)] == [b'{"text": "%d"}' % number for number in (0, 57, 99)]
    assert cache.get("cut") is None


def test_answers_of_two_processes_in_one_folder_are_all_found(tmp_path: Path) -> None:
    one, other = AnswerCache(tmp_path), AnswerCache(tmp_path)
    one.put("a", b"1")
    other.put("b", b"2")
    one.put("c", b"3")

    later = AnswerCache(tmp_path)

    assert [later.get(key) for key in "abc"] == [b"1", b"2", b"3"]
    assert one.get("b") is None


def test_a_process_that_writes_nothing_makes_no_file(tmp_path: Path) -> None:
    AnswerCache(tmp_path).get("a")

    assert list(tmp_path.glob("*.jsonl")) == []


def test_files_of_other_processes_are_open_only_while_they_are_read(tmp_path: Path) -> None:
    for number in range(30):
        AnswerCache(tmp_path).put(str(number), b"%d" % number)
    num_open = len(os.listdir("/proc/self/fd"))

    later = AnswerCache(tmp_path)

    assert [later.get(str(number)) for number in range(30)] == [b"%d" % number for number in range(30)]
    assert len(os.listdir("/proc/self/fd")) == num_open


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(
        ConfigError,
        match=r"answers cannot be kept in .*file: .*; make room there, or choose another folder",
    ):
        AnswerCache(tmp_path / "file")


def test_a_full_disk_is_said_and_loses_no_earlier_answer(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path)
    cache.put("a", b"1")
    assert cache._own is not None
    os.close(cache._own)

    with pytest.raises(EngineError, match="answers cannot be kept"):
        cache.put("b", b"2")

    assert AnswerCache(tmp_path).get("a") == b"1"


async def test_logprobs_come_when_they_are_asked_for() -> None:
    body: JsonObject = {
        "choices": [
            {
                "message": {"role": "assistant", "content": "yes"},
                "logprobs": {"content": [{"token": "yes", "logprob": -0.25, "bytes": None, "top_logprobs": []}]},
            }
        ]
    }
    with fake_server(lambda path, request: Answer(body=body)) as server:
        answer = await ask(server.url, logprobs=True)

    assert answer.logprobs == (TokenLogprob("yes", -0.25),)
    assert server.requests[0]["logprobs"] is True


async def test_a_server_without_logprobs_is_told() -> None:
    with fake_server(echo) as server, pytest.raises(EngineError, match="returns no logprobs"):
        await ask(server.url, logprobs=True)


def test_the_three_formats_of_answers() -> None:
    schema: JsonObject = {"type": "object"}

    assert response_format("text", "Grade", schema) == {}
    assert response_format("json_object", "Grade", schema) == {"response_format": {"type": "json_object"}}
    assert response_format("json_schema", "Grade", schema) == {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "Grade", "schema": schema, "strict": True},
        }
    }
