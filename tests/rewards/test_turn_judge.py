"""TurnJudge behind a real endpoint: every turn judged once, by its own answer, however the judge behaves."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.support.fake_judge import FakeJudge, checking, grading, judging, turn_shown
from tests.support.letters import Letters, ThreadLetters
from verl_pivot.configuration import configs_dir
from verl_pivot.errors import ConfigError, VerifierError
from verl_pivot.rewards.checklist_judge import ChecklistJudge, ChecklistTask
from verl_pivot.rewards.principles import ShownTurn
from verl_pivot.rewards.process_settings import ProcessSettings
from verl_pivot.rewards.turn_judge import TrajectoryJudgement, TurnJudge


def settings(url: str | Sequence[str], **changes: Any) -> ProcessSettings:
    return ProcessSettings.model_validate(
        {
            "base_url": url,
            "model": "PPRM",
            "principles": str(configs_dir() / "principles" / "search.yaml"),
            "max_retries": 1,
            **changes,
        }
    )


def turns(*grades: object, trajectory: int = 0) -> list[ShownTurn]:
    """Turns that ask the fake judge for these grades, and a last turn with the answer."""
    return [
        ShownTurn(text=f"trajectory {trajectory} turn {number} grade {grade}", observation="found")
        for number, grade in enumerate(grades)
    ] + [ShownTurn(text="The answer.")]


def scores(judged: TrajectoryJudgement) -> list[float | None]:
    return [turn.score for turn in judged.turns]


async def judge(url: str, played: Sequence[ShownTurn], **changes: Any) -> TrajectoryJudgement:
    async with judge_of(url, **changes) as turn_judge:
        return await turn_judge.judge("Who?", played)


@asynccontextmanager
async def judge_of(url: str, *, num_workers: int = 1, **changes: Any) -> AsyncIterator[TurnJudge]:
    turn_judge = TurnJudge(settings(url, **changes), Letters(), num_workers=num_workers)
    try:
        yield turn_judge
    finally:
        await turn_judge.close()


async def test_every_turn_but_the_last_is_judged_by_what_came_before_it() -> None:
    async with judging(grading) as server:
        judged = await judge(server.url, turns(7, 3, 10))

    assert scores(judged) == [0.7, 0.3, 1.0]
    assert len(server.requests) == 3
    assert sorted(str(request["messages"]).count("turn 0 grade 7") for request in server.requests) == [1, 1, 1]
    assert [str(request["messages"]).count("The answer.") for request in server.requests] == [0, 0, 0]
    assert {request["temperature"] for request in server.requests} == {0.0}


async def test_one_turn_asks_nothing_and_a_turn_without_text_scores_0_without_asking() -> None:
    async with judging(grading) as server:
        assert scores(await judge(server.url, turns())) == []
        assert scores(await judge(server.url, [ShownTurn(text=" \n"), *turns(4)])) == [0.0, 0.4]

    assert len(server.requests) == 1


async def test_an_invalid_answer_is_asked_for_again_with_another_seed_and_then_counts_as_invalid() -> None:
    answers = iter(["nothing", '{"principles": []}'])
    async with judging(lambda outside, inside: next(answers)) as server:
        judged = await judge(server.url, turns(7))

    assert scores(judged) == [None]
    assert judged.turns[0].reason.startswith("the judge's answer is invalid: principles: List should have at least 1")
    assert len(judged.turns[0].answers) == 2
    assert [(request["seed"], request["temperature"]) for request in server.requests] == [(0, 0.0), (1, 0.7)]


async def test_a_valid_second_answer_counts() -> None:
    def second(outside: str, inside: list[str]) -> Any:
        return "hm" if len(server.requests) == 1 else grading(outside, inside)

    async with judging(second) as server:
        assert scores(await judge(server.url, turns(7))) == [0.7]


async def test_an_answer_that_was_cut_off_is_invalid_whatever_it_holds() -> None:
    async with judging() as server:
        choice = {"finish_reason": "length", "message": {"content": "<final_score>1,1</final_score>"}}
        server.body = json.dumps({"choices": [choice]}).encode()
        judged = await judge(server.url, turns(7), form="released")

    assert scores(judged) == [None]
    assert judged.turns[0].reason == "the judge's answer is invalid: it was cut off; raise pivot.process.max_tokens"


async def test_the_released_form_sends_no_schema_and_the_other_the_one_that_is_chosen() -> None:
    async with judging(lambda outside, inside: "Analysis: fine\n<final_score>3,4</final_score>") as server:
        assert scores(await judge(server.url, turns(7), form="released")) == [0.75]
    async with judging(grading) as other:
        await judge(other.url, turns(7), answer_format="json_object")
        await judge(other.url, turns(7))

    assert "response_format" not in server.requests[0]
    assert [request["response_format"]["type"] for request in other.requests] == ["json_object", "json_schema"]  # type: ignore[index,call-overload]


async def test_the_settings_of_a_question_reach_the_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    chosen = {"temperature": 0.9, "max_tokens": 99, "invalid_retries": 2, "api_key_variable": "JUDGE_KEY"}
    async with judging(lambda outside, inside: "no") as server:
        await judge(server.url, turns(7), **chosen)
        await judge(server.url, turns(7), invalid_retries=0)

    sent = [(request["model"], request["temperature"], request["max_tokens"]) for request in server.requests]
    assert sent == [("PPRM", 0.9, 99)] * 3 + [("PPRM", 0.0, 4096)]
    assert server.keys == {"Bearer secret", "Bearer none"}


async def test_a_judge_that_takes_too_long_is_asked_as_often_as_allowed_and_decides_nothing() -> None:
    async with judging(grading) as server:
        server.seconds = 2.0
        with pytest.raises(VerifierError, match=r"did not answer within 0\.05 s"):
            await judge(server.url, turns(7), timeout_seconds=0.05, max_retries=2)

    assert len(server.requests) == 3


async def test_a_judge_that_is_down_raises_and_decides_nothing() -> None:
    async with judging(grading) as server:
        server.failures = [503] * 10
        with pytest.raises(VerifierError, match=r"judge PPRM: .* kept answering with status 503"):
            await judge(server.url, turns(7))
    with pytest.raises(VerifierError, match="cannot be reached"):
        await judge(server.url, turns(7))


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_judge_that_is_busy_for_a_moment_is_asked_again(status: int) -> None:
    async with judging(grading) as server:
        server.failures = [status]
        assert scores(await judge(server.url, turns(7))) == [0.7]


async def test_a_refused_question_is_invalid_where_a_harmless_one_is_answered() -> None:
    async with judging(grading) as server:
        server.failures = [400]
        judged = await judge(server.url, turns(7))

    assert scores(judged) == [None]
    assert judged.turns[0].reason.startswith("the judge refuses the question: ")
    assert len(server.requests) == 2
    assert "which gives 3" in str(server.requests[1]["messages"])


@pytest.mark.parametrize(
    "complaint",
    [
        "The input (9000 tokens) is longer than the model's context length (4096 tokens).",
        "Requested token count exceeds the model's maximum context length of 4096 tokens.",
        "This model's maximum context length is 4096 tokens. However, you requested 9000 tokens.",
        "context_length_exceeded",
        "prompt is too long: 9000 tokens > 4096 maximum",
    ],
)
async def test_a_context_that_is_too_small_is_the_users_error_and_no_invalid_answer(complaint: str) -> None:
    async with judging(grading) as server:
        server.failures, server.complaint = [400], complaint
        with pytest.raises(ConfigError, match=r"too long for the judge's context, .* lower max_question_tokens or"):
            await judge(server.url, turns(7))

    assert len(server.requests) == 1


@pytest.mark.parametrize(("status", "message"), [(400, "refused the request"), (401, "refused the key")])
async def test_a_judge_that_refuses_every_question_is_the_users_error(status: int, message: str) -> None:
    async with judging(grading) as server:
        server.failures = [status] * 10
        with pytest.raises(ConfigError, match=f"the judge refuses every question: .*{message}"):
            await judge(server.url, turns(7))


async def test_an_answer_that_is_no_answer_of_a_model_decides_nothing() -> None:
    async with judging(grading) as server:
        server.body = b'{"choices": []}'
        with pytest.raises(VerifierError, match="answered in an unexpected format"):
            await judge(server.url, turns(7))


async def test_a_long_history_is_cut_in_its_middle_and_says_so_while_the_turn_stays_whole() -> None:
    old = ShownTurn(text="begin " + "x" * 5000 + " end", observation="y" * 5000)
    async with judging(grading) as server:
        judged = await judge(server.url, [old, *turns(7)], max_question_tokens=1000)

    shown = str(server.requests[-1]["messages"])
    assert judged.turns[1].score == 0.7
    assert "characters left out] ..." in shown
    assert "trajectory 0 turn 0 grade 7" in shown
    assert all(len(str(request["messages"])) < 5000 for request in server.requests)


@pytest.mark.parametrize("form", ["principles", "checklist"])
async def test_long_questions_are_made_beside_the_event_loop(form: str) -> None:
    tokenizer, page = ThreadLetters(), "x" * 9000
    played = [ShownTurn(text="I open it.", observation=page), ShownTurn(text="1 is Yes"), ShownTurn(text="Done.")]
    async with judging(grading if form == "principles" else checking) as server:
        made = settings(server.url, form=form, max_question_tokens=1000)
        if form == "principles":
            by_principles = TurnJudge(made, tokenizer)
            judged = await by_principles.judge("Who?", played)
            await by_principles.close()
        else:
            by_checklist = ChecklistJudge(made, tokenizer)
            judged = (await by_checklist.judge(ChecklistTask(task="Go.", first_page=page), played)).judged
            await by_checklist.close()

    assert scores(judged) == ([0.5, 0.5] if form == "principles" else [0.0, 0.5])
    assert (len(tokenizer.threads), tokenizer.has_blocked) == (1, False)


async def test_no_more_questions_run_at_a_time_than_allowed_in_all_workers_together() -> None:
    async with judging(grading) as server:
        server.seconds = 0.02
        shared: dict[str, Any] = {"num_workers": 2, "max_concurrency": 8}
        async with judge_of(server.url, **shared) as one, judge_of(server.url, **shared) as other:
            await asyncio.gather(
                *((one, other)[number % 2].judge("Who?", turns(1, 2, 3, trajectory=number)) for number in range(20))
            )

    assert len(server.requests) == 60
    assert server.most_running == 8


async def test_equal_questions_of_one_time_and_of_an_earlier_launch_are_asked_once(tmp_path: Path) -> None:
    async with judging(grading) as server:
        async with judge_of(server.url, cache_dir=str(tmp_path)) as first:
            await asyncio.gather(*(first.judge("Who?", turns(7, 3)) for _ in range(5)))
        assert len(server.requests) == 2
        resumed = await judge(server.url, turns(7, 3), cache_dir=str(tmp_path))

    assert len(server.requests) == 2
    assert scores(resumed) == [0.7, 0.3]
    assert [answer.is_cached for turn in resumed.turns for answer in turn.answers] == [True, True]


async def test_an_answer_that_trajectories_share_counts_once() -> None:
    """Five at the same time, and one afterwards."""
    async with judging(grading) as server, judge_of(server.url) as turn_judge:
        judged = list(await asyncio.gather(*(turn_judge.judge("Who?", turns(7)) for _ in range(5))))
        judged.append(await turn_judge.judge("Who?", turns(7)))

    assert len(server.requests) == 1
    assert [scores(each) for each in judged] == [[0.7]] * 6
    assert [answer.is_cached for each in judged for answer in each.turns[0].answers] == [False] + [True] * 5


async def test_invalid_answers_too_are_not_asked_for_again_after_a_resume(tmp_path: Path) -> None:
    async with judging(lambda outside, inside: "no") as server:
        for _ in range(2):
            assert scores(await judge(server.url, turns(7), cache_dir=str(tmp_path))) == [None]

    assert len(server.requests) == 2


async def judge_many(server: FakeJudge, num_trajectories: int, **changes: Any) -> float:
    """Judge trajectories of four judged turns each, whose grades tell them apart; returns the seconds."""

    def grades(trajectory: int) -> list[int]:
        return [(trajectory * 4 + turn) % 11 for turn in range(4)]

    began = monotonic()
    async with judge_of(server.url, max_retries=8, **changes) as turn_judge:
        judged = await asyncio.gather(
            *(turn_judge.judge("Who?", turns(*grades(each), trajectory=each)) for each in range(num_trajectories))
        )
    seconds = monotonic() - began
    for trajectory, each in enumerate(judged):
        expected = [grade / 10 for grade in grades(trajectory)]
        assert scores(each) == pytest.approx(expected)
    return seconds


@pytest.mark.heavy
async def test_no_answer_is_lost_or_given_to_another_turn_while_connections_break() -> None:
    """Every hundredth request breaks after the judge has worked on it, and its turn is asked about once more."""
    async with judging(grading) as server:
        server.seconds, server.breaks = 0.01, lambda number: number % 100 == 37
        await judge_many(server, 256, max_concurrency=64)

    num_broken = len([number for number in range(1, len(server.requests) + 1) if number % 100 == 37])
    assert num_broken >= 10
    assert len(server.requests) == 1024 + num_broken
    questions = [turn_text(request) for request in server.requests]
    assert len(set(questions)) == 1024


def turn_text(request: Any) -> str:
    """Text of the turn that a request asks about."""
    user = request["messages"][1]["content"]
    return str(user[user.index("The turn to grade:") :].split("\n")[2])


def test_the_fake_judge_finds_the_turn() -> None:
    assert turn_shown("What the tools gave back after it:", ["a", "b", "c"]) == "b"
    assert turn_shown("The turn to grade:", ["a", "b"]) == "b"
