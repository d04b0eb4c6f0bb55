"""Processes that share a cache of answers ask each question once among them, also if one of them is killed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.chat_server import said
from tests.support.fake_engine import Answer, FakeServer, fake_server
from tests.support.paths import ROOT
from verl_pivot.engines.answer_cache import AnswerCache
from verl_pivot.engines.chat import ChatClient
from verl_pivot.engines.question_claims import QuestionClaims, claims_of
from verl_pivot.engines.retries import Retries
from verl_pivot.errors import EngineError
from verl_pivot.types import JsonObject

ASKER = """
import asyncio, json, pathlib, sys
from verl_pivot.engines.answer_cache import AnswerCache
from verl_pivot.engines.chat import ChatClient
from verl_pivot.engines.retries import Retries

async def main(url, folder, number):
    client = ChatClient(url, "judge", "key", Retries(num_attempts=2), cache=AnswerCache(pathlib.Path(folder)),
                        max_concurrency=4)
    async def ask(k):
        answer = await client.ask([{"role": "user", "content": str(k)}], {}, cache_key=str(k))
        return answer.text
    print(json.dumps(await asyncio.gather(*(ask(k) for k in range(int(number))))))
    await client.close()

asyncio.run(main(*sys.argv[1:]))
"""


def slowly(path: str, body: JsonObject) -> Answer:
    """Repeat the question in an answer that takes 50 ms."""
    time.sleep(0.05)
    return said("to " + body["messages"][0]["content"])  # type: ignore[index,call-overload,operator]


def asker(server: FakeServer, folder: Path, number: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", ASKER, server.url, str(folder), str(number)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def answers_of(process: "subprocess.Popen[str]") -> list[str]:
    shown, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    answers: list[str] = json.loads(shown)
    return answers


def asked(server: FakeServer) -> Counter[str]:
    return Counter(str(request["messages"][0]["content"]) for request in server.requests)  # type: ignore[index,call-overload]


def test_three_processes_ask_each_question_once_among_them_and_share_the_work(tmp_path: Path) -> None:
    with fake_server(slowly) as server:
        processes = [asker(server, tmp_path, 60) for _ in range(3)]
        answers = [answers_of(process) for process in processes]

    assert answers == [[f"to {number}" for number in range(60)]] * 3
    assert asked(server) == Counter({str(number): 1 for number in range(60)})
    owners = [len(path.read_text().splitlines()) for path in tmp_path.glob("*.answers.jsonl")]
    assert sum(owners) == 60


def test_what_a_killed_process_was_asking_is_asked_by_another(tmp_path: Path) -> None:
    with fake_server(slowly) as server:
        first = asker(server, tmp_path, 60)
        while len(server.requests) < 20:
            time.sleep(0.01)
        second = asker(server, tmp_path, 60)
        time.sleep(0.3)
        os.kill(first.pid, signal.SIGKILL)
        first.communicate()
        answers = answers_of(second)

    assert answers == [f"to {number}" for number in range(60)]
    assert set(asked(server).values()) <= {1, 2}
    assert asked(server).total() <= 60 + 4  # at most four questions were in progress


async def test_two_clients_of_one_process_ask_each_question_once(tmp_path: Path) -> None:
    with fake_server(slowly) as server:
        clients = [
            ChatClient(server.url, "judge", "key", Retries(), cache=AnswerCache(tmp_path), max_concurrency=4)
            for _ in range(2)
        ]
        answers = await asyncio.gather(
            *(
                client.ask([{"role": "user", "content": str(number)}], {}, cache_key=str(number))
                for number in range(20)
                for client in clients
            )
        )
        for client in clients:
            await client.close()

    assert [answer.text for answer in answers] == [f"to {number}" for number in range(20) for _ in clients]
    assert asked(server) == Counter({str(number): 1 for number in range(20)})
    assert sum(answer.is_cached for answer in answers) == 20


async def test_a_failure_is_that_of_all_who_wait_and_the_next_asks_again(tmp_path: Path) -> None:
    def failing(path: str, body: JsonObject) -> Answer:
        time.sleep(0.2)
        return said("yes") if len(server.requests) > 1 else Answer(body="down", status=500)

    with fake_server(failing) as server:
        clients = [
            ChatClient(server.url, "judge", "key", Retries(num_attempts=1), cache=AnswerCache(tmp_path))
            for _ in range(3)
        ]

        async def ask(client: ChatClient) -> str:
            return (await client.ask([{"role": "user", "content": "q"}], {}, cache_key="q")).text

        results = await asyncio.gather(*map(ask, clients), return_exceptions=True)
        answers = await asyncio.gather(*map(ask, clients))
        for client in clients:
            await client.close()

    assert [str(each) for each in results] == [str(results[0])] * 3
    assert "down" in str(results[0])
    assert answers == ["yes"] * 3
    assert len(server.requests) == 2


def test_a_file_system_that_refuses_locks_in_mid_run_is_said(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path)
    assert cache.claim("a")
    os.close(cache._claims._file)

    with pytest.raises(EngineError, match=r"answers cannot be kept in .*; make room there, or choose another folder"):
        cache.claim("b")
    with pytest.raises(EngineError, match=r"answers cannot be kept in .*; make room there, or choose another folder"):
        cache.release("a")


def test_a_claim_is_held_by_one_of_all_processes(tmp_path: Path) -> None:
    code = "import sys, pathlib; from verl_pivot.engines.question_claims import QuestionClaims\n"
    code += "print([QuestionClaims(pathlib.Path(sys.argv[1])).claim(key) for key in 'ab'])"
    claims = claims_of(tmp_path)
    assert claims is claims_of(tmp_path)
    assert claims.claim("a")
    assert not claims.claim("a")

    held = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    claims.release("a")
    free = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)

    assert (held.stdout, free.stdout) == ("[False, True]\n", "[True, True]\n")
    assert claims.claim("a")
    assert isinstance(claims, QuestionClaims)


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path)
    with (tmp_path / "other.answers.jsonl").open("wb", buffering=0) as file:
        file.write(b'{"key":"a","answer":1}\n{"key":"b",')
        assert cache.claim("a")
        assert (cache.get("a"), cache.get("b")) == (b"1", None)
        file.write(b'"answer":2}\n')
        cache.release("a")
        assert cache.claim("b")
        assert cache.get("b") == b"2"
