"""A real HTTP server with bad answers: each rejects a draft with its reason, and a run that failed can go on."""

import json
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_engine import Answer, FakeServer, fake_server
from tests.synthesis.test_running import STEPS
from verl_pivot.engines.retries import Retries
from verl_pivot.errors import ConfigError, EngineError
from verl_pivot.synthesis.budget import BudgetLimits
from verl_pivot.synthesis.job import SynthesisJob
from verl_pivot.synthesis.outputs import SynthesisReport
from verl_pivot.synthesis.recipes import read_recipe
from verl_pivot.synthesis.running import run_synthesis
from verl_pivot.synthesis.workshop import Inputs
from verl_pivot.synthesis.writer import EndpointWriter
from verl_pivot.types import JsonObject

TIMEOUT_SECONDS = 1.5
CONCURRENCY = 4


def chat(content: str | None, finish_reason: str = "stop", **more: Any) -> Answer:
    message = {"role": "assistant", "content": content, **more}
    usage: JsonObject = {"prompt_tokens": 20, "completion_tokens": 5}
    return Answer(body={"choices": [{"message": message, "finish_reason": finish_reason}], "usage": usage})


GOOD = chat('```json\n{"packs": 2}\n```')
ANSWERS: dict[str, tuple[Answer, str]] = {
    "bad JSON": (chat('{"packs": 2'), "unreadable_answer"),
    "other words": (chat("Sure! Two packs it is."), "unreadable_answer"),
    "another form": (chat('{"packs": "many"}'), "answer_of_other_form"),
    "a key too few": (chat("{}"), "answer_of_other_form"),
    "two answers": (chat('```json\n{"packs": 1}\n```\n```json\n{"packs": 9}\n```'), "several_answers"),
    "a refusal in words": (chat("I cannot help with that."), "unreadable_answer"),
    "a refusal of the API": (chat(None, refusal="I cannot help with that."), "unreadable_answer"),
    "nothing": (chat(""), "unreadable_answer"),
    "a cut answer that reads well": (chat('{"packs": 2}', "length"), "truncated_answer"),
    "an answer in its thoughts": (chat('{"packs": 2}</think>Hm.'), "unreadable_answer"),
    "half a character": (chat('{"packs": "\\ud800"}'), "answer_of_other_form"),
    "a filter": (chat("", "content_filter"), "question_refused"),
    "a filter behind a good beginning": (chat('{"packs": 2}', "content_filter"), "question_refused"),
    "a status 400": (Answer(body={"error": "the context is too long"}, status=400), "question_refused"),
}
PASSING: dict[str, Callable[[], Answer]] = {
    "a busy server": lambda: Answer(body={"error": "slow down"}, status=429),
    "an aborted answer": lambda: chat('{"packs": 1}', "abort"),
    "an aborted answer of older SGLang": lambda: chat("", "aborted"),
    "a broken server": lambda: Answer(body={"error": "out of memory"}, status=503),
    "a closed connection": lambda: Answer(body=b"", status=0),
    "a time-out": lambda: time.sleep(TIMEOUT_SECONDS + 0.5) or Answer(body=b"", status=0),  # type: ignore[func-returns-value]
}
"""Failures of a first attempt; the second attempt gets a good answer."""


def item_of(body: JsonObject) -> int | None:
    """The item that a question is about; None for the harmless question after a refusal or a failure."""
    found = re.search(r"Item (\d+)\.", json.dumps(body["messages"]))
    return None if found is None else int(found[1])


def made(folder: Path, server: FakeServer, num: int, *, num_attempts: int = 2) -> SynthesisReport:
    (folder / "recipe.yaml").write_text(f"- numbers: {{num: {num}}}\n- amounts\n")
    retries = Retries(num_attempts=num_attempts, longest_wait_seconds=0.01, timeout_seconds=TIMEOUT_SECONDS)
    job = SynthesisJob(
        recipe=read_recipe(str(folder / "recipe.yaml"), {}, [STEPS]),
        inputs=Inputs(),
        writers={"writer": EndpointWriter(server.url, "small", answer_format="text", retries=retries)},
        out=folder / "out",
        identity={},
        limits=BudgetLimits(),
        retries=retries,
        concurrency=CONCURRENCY,
    )
    return run_synthesis(job, lambda count: None)


def test_what_a_server_writes_badly_is_a_draft_with_the_reason(tmp_path: Path) -> None:
    answers = [GOOD, *(answer for answer, _ in ANSWERS.values())]

    def respond(path: str, body: JsonObject) -> Answer:
        item = item_of(body)
        return GOOD if item is None else answers[item]

    with fake_server(respond) as server:
        report = made(tmp_path, server, len(answers))

    rows = [json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()]
    assert [row["reason"] for row in rows] == [reason for _, reason in ANSWERS.values()]
    assert (report.num_kept, report.num_rejected) == (1, len(ANSWERS))
    asked = Counter(map(item_of, server.requests))
    assert asked == {**dict.fromkeys(range(len(answers)), 1), None: 1}  # no bad answer was asked for again


def test_a_question_that_was_refused_is_a_draft_with_the_reason_in_a_later_run_too(tmp_path: Path) -> None:
    def respond(path: str, body: JsonObject) -> Answer:
        return Answer(status=400, body=b'{"error": "the context is too long"}') if item_of(body) == 1 else GOOD

    with fake_server(respond) as server:
        first, second = made(tmp_path, server, 4), made(tmp_path, server, 4)

    assert (first.num_kept, first.rejected) == (3, {"amounts": {"question_refused": 1}})
    assert (second.num_kept, second.rejected) == (first.num_kept, first.rejected)


@pytest.mark.parametrize("failure", [chat("", "abort"), Answer(body={"error": "out of memory"}, status=500)])
def test_a_question_at_which_the_server_fails_each_time_is_a_draft_with_the_reason(
    tmp_path: Path, failure: Answer
) -> None:
    with fake_server(lambda path, body: failure if item_of(body) == 3 else GOOD) as server:
        report = made(tmp_path, server, 8)

    assert (report.num_kept, report.rejected) == (7, {"amounts": {"question_refused": 1}})
    asked = Counter(map(item_of, server.requests))
    assert (asked[3], asked[None]) == (2, 1)
    assert "(other questions are answered)" in report.examples["question_refused"]


@pytest.mark.parametrize(
    ("status", "message"), [(401, "refused the key"), (402, "asks for payment"), (403, "refused the key")]
)
def test_a_key_that_is_refused_or_has_no_credit_left_ends_the_run_which_then_goes_on(
    tmp_path: Path, status: int, message: str
) -> None:
    is_ill = [True]

    def respond(path: str, body: JsonObject) -> Answer:
        item = item_of(body)
        return Answer(body={"error": "no"}, status=status) if is_ill and (item is None or item >= 4) else GOOD

    with fake_server(respond) as server:
        for _ in range(2):  # the second run finds the first answers in the cache
            with pytest.raises(ConfigError, match=message):
                made(tmp_path, server, 8)
        is_ill.clear()
        report = made(tmp_path, server, 8)

    assert (report.num_kept, report.num_rejected) == (8, 0)


def test_what_passes_is_tried_again_and_loses_no_draft(tmp_path: Path) -> None:
    failures, asked = list(PASSING.values()), Counter[int]()

    def respond(path: str, body: JsonObject) -> Answer:
        item = item_of(body)
        assert item is not None, body
        asked[item] += 1
        return failures[item]() if asked[item] == 1 else GOOD

    with fake_server(respond) as server:
        report = made(tmp_path, server, len(PASSING))

    assert (report.num_kept, report.num_rejected) == (len(PASSING), 0)
    assert asked == dict.fromkeys(range(len(PASSING)), 2)


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (lambda: Answer(body={"error": "slow down"}, status=429), "kept answering with status 429"),
        (lambda: Answer(body=b"<html>not a model</html>"), "something that is not JSON"),
        (lambda: Answer(body={"choices": []}), "answered"),
        (PASSING["a closed connection"], "cannot be reached"),
        (PASSING["an aborted answer"], "kept aborting answers; see the server's log, and run the same command again"),
        (lambda: chat(5), "is not a chat message"),  # type: ignore[arg-type]  # no text, as no server should write
        (lambda: chat(None, tool_calls=[7]), "is not a chat message"),
    ],
    ids=["busy", "HTML", "no choice", "closed", "aborted", "a number", "no call"],
)
def test_a_server_that_keeps_failing_ends_the_run_which_then_goes_on(
    tmp_path: Path, failure: Callable[[], Answer], message: str
) -> None:
    is_ill = [True]

    def respond(path: str, body: JsonObject) -> Answer:
        item = item_of(body)
        return failure() if is_ill and (item is None or item >= 4) else GOOD

    with fake_server(respond) as server:
        with pytest.raises(EngineError, match=message):
            made(tmp_path, server, 8)
        is_ill.clear()
        report = made(tmp_path, server, 8)

    assert (report.num_kept, report.num_rejected) == (8, 0)
    num_asked = Counter(item for item in map(item_of, server.requests) if item is not None)
    assert num_asked.keys() == set(range(8))
    assert sum(num_asked[item] - 1 for item in range(4)) <= CONCURRENCY  # questions under way when the run ended
