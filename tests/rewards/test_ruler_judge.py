"""RulerJudge behind a real endpoint: each group compared by one question, however the judge behaves."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_engine import Answer, fake_server
from tests.support.fake_judge import comparing, judging
from tests.support.letters import Letters
from verl_pivot.errors import ConfigError, VerifierError
from verl_pivot.rewards.principles import ShownTurn
from verl_pivot.rewards.ruler import RUBRIC
from verl_pivot.rewards.ruler_judge import ComparedTrajectory, RulerJudge
from verl_pivot.rewards.ruler_settings import RulerSettings
from verl_pivot.types import JsonObject


def group(*grades: object, task: str = "Add.") -> list[ComparedTrajectory]:
    """Trajectories of two turns, the last of which asks the fake judge for a grade."""
    turns = [[ShownTurn(text="I add.", observation="3"), ShownTurn(text=f"grade {grade}")] for grade in grades]
    return [ComparedTrajectory(task, (), each) for each in turns]


@asynccontextmanager
async def judge_of(url: str | Sequence[str], *, num_workers: int = 1, **changes: Any) -> AsyncIterator[RulerJudge]:
    settings = RulerSettings.model_validate({"base_url": url, "model": "R", "max_retries": 0, **changes})
    judge = RulerJudge(settings, Letters(), num_workers=num_workers)
    try:
        yield judge
    finally:
        await judge.close()


async def scores(url: str, compared: Sequence[ComparedTrajectory], **changes: Any) -> list[float]:
    async with judge_of(url, **changes) as judge:
        return await judge.scores(compared)


async def test_one_question_scores_a_group() -> None:
    async with judging(comparing) as server:
        assert await scores(server.url, group(3, 9, 3, 0)) == [0.3, 0.9, 0.3, 0.0]

    (request,) = server.requests
    assert request["response_format"]["json_schema"]["name"] == "scores"  # type: ignore[index,call-overload]


async def test_the_settings_of_a_question_reach_the_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    chosen = {
        "temperature": 0.9, "max_tokens": 99, "invalid_retries": 2, "api_key_variable": "JUDGE_KEY",
        "answer_format": "json_object", "rubric": "- The shorter the better.",
    }  # fmt: skip
    async with judging(lambda outside, inside: "no") as server:
        for changes in (chosen, {"invalid_retries": 0}):
            with pytest.raises(VerifierError, match="judge R gives no valid answer about a group: it is not JSON"):
                await scores(server.url, group(1, 2), **changes)

    sent: list[Any] = server.requests
    assert [(each["model"], each["temperature"], each["max_tokens"], each["seed"]) for each in sent] == [
        ("R", 0.9, 99, 0), ("R", 0.9, 99, 1), ("R", 0.9, 99, 2), ("R", 0.0, 4096, 0),
    ]  # fmt: skip
    assert [each["response_format"]["type"] for each in sent] == ["json_object"] * 3 + ["json_schema"]
    texts = [each["messages"][1]["content"] for each in sent]
    assert ["- The shorter the better." in text for text in texts] == [True] * 3 + [False]
    assert [RUBRIC in text for text in texts] == [False] * 3 + [True]
    assert server.keys == {"Bearer secret", "Bearer none"}


async def test_an_answer_that_was_cut_off_is_invalid_and_the_setting_is_named() -> None:
    body = {"choices": [{"message": {"content": "{}"}, "finish_reason": "length"}]}
    async with judging(comparing) as server:
        server.body = json.dumps(body).encode()
        with pytest.raises(VerifierError, match=r"it was cut off; raise pivot\.ruler\.max_tokens"):
            await scores(server.url, group(1, 2))


async def test_a_judge_that_takes_too_long_is_asked_as_often_as_allowed() -> None:
    async with judging(comparing) as server:
        server.seconds = 2.0
        with pytest.raises(VerifierError, match=r"did not answer within 0\.05 s"):
            await scores(server.url, group(1, 2), timeout_seconds=0.05, max_retries=2)

    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("status", "message"),
    [(400, "the judge refuses every question: .* check that pivot.ruler.base_url and pivot.ruler.model"), (401, "key")],
)
async def test_a_judge_that_refuses_every_question_is_the_users_error(status: int, message: str) -> None:
    async with judging(comparing) as server:
        server.failures = [status] * 2
        with pytest.raises(ConfigError, match=message):
            await scores(server.url, group(1, 2))


@pytest.mark.parametrize(
    "said",
    [
        {"message": "The model `R` does not exist.", "type": "NotFoundError", "code": 404},  # vLLM
        {"message": "The model `R` does not exist or you do not have access to it.", "code": "model_not_found"},
        {"message": "model 'R' not found, try pulling it first"},
    ],
)
async def test_a_judge_that_does_not_serve_the_model_is_the_users_error(said: JsonObject, tmp_path: Path) -> None:
    def respond(path: str, body: JsonObject) -> Answer:
        return Answer(body={"error": said}, status=404)

    with fake_server(respond) as server:
        for cache_dir in (None, str(tmp_path)):
            with pytest.raises(
                ConfigError,
                match=r"the judge refuses every question: .* with status 404: .*; check the name of the model, and "
                r"that the URL is that of its server: see pivot\.ruler\.base_url and pivot\.ruler\.model",
            ):
                await scores(server.url, group(1, 2), cache_dir=cache_dir)


async def test_an_endpoint_without_the_path_of_a_judge_decides_nothing() -> None:
    with (
        fake_server(lambda path, body: Answer(body={"detail": "Not Found"}, status=404)) as server,
        pytest.raises(VerifierError, match=r"answered with status 404: .*; check that the URL is that of an inference"),
    ):
        await scores(server.url, group(1, 2))


async def test_a_question_that_is_refused_where_a_harmless_one_is_answered_is_no_error_of_the_user() -> None:
    async with judging(comparing) as server:
        server.failures = [400]
        with pytest.raises(VerifierError, match=r"judge R refuses the question about a group: .*status 400"):
            await scores(server.url, group(1, 2))

    assert "I add 1 and 2" in str(server.requests[1]["messages"])


async def test_long_texts_are_cut_to_the_tokens_of_a_question() -> None:
    long = [ComparedTrajectory("Add.", (), [ShownTurn(text=f"grade {n}", observation="x" * 9000)]) for n in (1, 2)]
    async with judging(comparing) as server:
        assert await scores(server.url, long, max_question_tokens=3000) == [0.1, 0.2]

    assert len(str(server.requests[0]["messages"])) < 7000


async def test_no_more_questions_run_at_a_time_than_allowed_in_all_workers_together() -> None:
    async with judging(comparing) as server:
        server.seconds = 0.02
        async with judge_of(server.url, max_concurrency=6, num_workers=2) as judge:
            await asyncio.gather(*(judge.scores(group(1, 2, task=f"Task {number}.")) for number in range(12)))

    assert server.most_running == 3


async def test_an_equal_group_of_an_earlier_launch_is_not_asked_about_again_whatever_its_order(tmp_path: Path) -> None:
    async with judging(comparing) as server:
        assert await scores(server.url, group(1, 2, 3), cache_dir=str(tmp_path)) == [0.1, 0.2, 0.3]
        assert await scores(server.url, group(3, 1, 2), cache_dir=str(tmp_path)) == [0.3, 0.1, 0.2]

    assert len(server.requests) == 1
