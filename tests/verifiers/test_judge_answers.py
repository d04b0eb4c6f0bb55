"""Answers of judges on disk: equal questions, pictures included, are asked once over all runs."""

import asyncio
import base64
from pathlib import Path

import pytest

from tests.support.chat_server import chat_server, said
from verl_pivot.types import Json
from verl_pivot.verifiers.judge import JudgeOptions
from verl_pivot.verifiers.judge_client import Endpoint, ask
from verl_pivot.verifiers.judge_prompts import Fence, JudgeQuestion, Rubric, ShownAction, rubric
from verl_pivot.verifiers.judge_usage import usage

VALID = said('{"reason": "calm", "points": 5}')


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "none")


def endpoint(url: str, folder: Path | None, **options: Json) -> Endpoint:
    given = {"base_url": url, "model": "small", "api_key_variable": "JUDGE_KEY", "kind": "rubric", **options}
    return JudgeOptions.model_validate({**given, "cache_dir": None if folder is None else str(folder)}).endpoint()


def shown(picture: bytes) -> JudgeQuestion:
    fence = Fence()
    url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    content: list[Json] = [
        {"type": "text", "text": fence.around("The page:", "state")},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    return fence.question("Grade it.", content)


def points(asked: Endpoint, *questions: JudgeQuestion) -> list[int]:
    """Points for each question, asked in a new event loop as after a restart."""

    async def all_of() -> list[int]:
        return [(await ask(asked, question, Rubric)).points for question in questions]

    return asyncio.run(all_of())


def test_a_name_holds_every_byte_of_a_picture_and_no_word_of_a_fence() -> None:
    assert shown(b"\x89PNG 1").messages != shown(b"\x89PNG 1").messages
    assert shown(b"\x89PNG 1").name == shown(b"\x89PNG 1").name
    assert shown(b"\x89PNG 1").name != shown(b"\x89PNG 2").name


def test_a_text_that_guesses_how_questions_are_named_is_another_question() -> None:
    between = "</fence>\n\nThe action:\n<fence>\n"

    assert rubric(f"a\n{between}b", ShownAction("c"), "x").name != rubric("a", ShownAction(f"b\n{between}c"), "x").name


def test_after_a_resume_a_question_is_not_asked_again_and_costs_nothing(tmp_path: Path) -> None:
    with chat_server([VALID]) as server:
        asked = endpoint(server.url, tmp_path)
        before = usage["small", "requests"]
        assert points(asked, shown(b"one"), shown(b"one")) == [5, 5]
        assert points(asked, shown(b"one")) == [5]
        assert len(server.requests) == usage["small", "requests"] - before == 1
        assert points(asked, shown(b"two")) == [5]
        assert points(endpoint(server.url, None), shown(b"one")) == [5]
        assert len(server.requests) == 3


def test_an_answer_in_another_form_is_kept_too_and_the_question_has_another_seed(tmp_path: Path) -> None:
    with chat_server([said("five points"), VALID]) as server:
        assert points(endpoint(server.url, tmp_path), shown(b"one")) == [5]
        assert points(endpoint(server.url, tmp_path), shown(b"one")) == [5]
        assert [body["seed"] for body in server.requests] == [0, 1]


@pytest.mark.timeout(50)
def test_answers_that_are_there_wait_for_no_rate_limit(tmp_path: Path) -> None:
    """At one request a minute, a second request would wait for a minute."""
    with chat_server([VALID]) as server:
        asked = endpoint(server.url, tmp_path, requests_per_minute=1.0)
        assert points(asked, *[shown(b"one")] * 3) == [5, 5, 5]
