"""Engines against servers that fail, lie or hang; the servers are fakes over real HTTP."""

import threading
from itertools import count
from time import monotonic
from typing import Any

import pytest

from tests.support.fake_engine import Answer, fake_server, openai_answer, sglang_sample
from verl_pivot.engines.chat import ChatClient, served_model
from verl_pivot.engines.engine import Completion, Sampling
from verl_pivot.engines.openai_engine import OpenAIEngine
from verl_pivot.engines.retries import Retries
from verl_pivot.engines.sglang_engine import SGLangEngine
from verl_pivot.errors import ConfigError, EngineError
from verl_pivot.types import Json, JsonObject

QUICK = Retries(num_attempts=3, longest_wait_seconds=0.01, timeout_seconds=5.0)


ABORTED: dict[str, Json] = {
    "/generate": [sglang_sample([2], end="abort")],
    "/v1/completions": openai_answer("hi", end="abort"),
}


async def generate(url: str, n: int = 2, sampling: Sampling | None = None) -> tuple[Completion, ...]:
    engine = SGLangEngine(url, QUICK)
    try:
        return await engine.generate([5, 6, 7], sampling or Sampling(), n)
    finally:
        await engine.close()


async def complete(url: str, n: int = 2) -> tuple[Completion, ...]:
    engine = OpenAIEngine(url, "policy", "key", QUICK)
    try:
        return await engine.generate([5, 6, 7], Sampling(seed=3, max_new_tokens=9), n)
    finally:
        await engine.close()


async def test_tokens_go_in_and_tokens_come_out() -> None:
    samples = [sglang_sample([8, 2], text="a", cached=2), sglang_sample([9, 9], text="b", end="length")]
    with fake_server(lambda path, body: Answer(body=list(samples))) as server:
        completions = await generate(server.url)

    assert completions == (
        Completion(token_ids=(8, 2), text="a", ended=True, num_tokens=2, num_cached_tokens=2),
        Completion(token_ids=(9, 9), text="b", ended=False, num_tokens=2, num_cached_tokens=0),
    )
    assert server.requests[0]["input_ids"] == [[5, 6, 7], [5, 6, 7]]


async def test_every_sampling_parameter_is_sent_and_samples_differ_in_seed() -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=5, max_new_tokens=9, seed=2**31 - 1)
    with fake_server(lambda path, body: Answer(body=[sglang_sample([2])] * 2)) as server:
        await generate(server.url, sampling=sampling)

    sent = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.0, "repetition_penalty": 1.0, "max_new_tokens": 9}
    assert server.requests[0]["sampling_params"] == [
        {**sent, "sampling_seed": 2147483647},
        {**sent, "sampling_seed": 0},
    ]


@pytest.mark.parametrize("status", [0, 429, 500, 503])
async def test_a_passing_failure_is_retried(status: int) -> None:
    calls = count()

    def answer(path: str, body: JsonObject) -> Answer:
        return Answer(body="busy", status=status) if next(calls) < 2 else Answer(body=[sglang_sample([2])] * 2)

    with fake_server(answer) as server:
        completions = await generate(server.url)

    assert len(completions) == 2
    assert len(server.requests) == 3


async def test_a_server_that_keeps_failing_is_an_engine_error_that_names_it() -> None:
    with (
        fake_server(lambda path, body: Answer(body="loading", status=503)) as server,
        pytest.raises(EngineError, match=r"127.0.0.1:\d+ kept answering with status 503: .*loading.*run the same"),
    ):
        await generate(server.url)

    assert len(server.requests) == 3


async def test_a_server_that_is_gone_is_an_engine_error_that_names_it() -> None:
    with fake_server(lambda path, body: Answer(body=[])) as server:
        pass

    with pytest.raises(EngineError, match=rf"{server.url} cannot be reached \(ClientConnectorError"):
        await generate(server.url)


async def test_a_server_that_never_answers_is_an_engine_error() -> None:
    answered = threading.Event()

    def answer(path: str, body: JsonObject) -> Answer:
        answered.wait(5.0)
        return Answer(body=[])

    with fake_server(answer) as server:
        engine = SGLangEngine(server.url, Retries(num_attempts=1, timeout_seconds=0.1))
        with pytest.raises(EngineError, match=r"did not answer within 0.1 s"):
            await engine.generate([5], Sampling(), 1)
        answered.set()
        await engine.close()


async def test_a_refused_request_is_the_users_error_and_is_not_retried() -> None:
    with (
        fake_server(lambda path, body: Answer(body={"error": "context length of 64"}, status=400)) as server,
        pytest.raises(ConfigError, match=r"refused the request \(status 400\).*length of 64.*--max-prompt-tokens"),
    ):
        await generate(server.url)

    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>hello</html>", "answered with something that is not JSON: '<html>"),
        ({"ok": True}, "was asked for 2 samples and answered"),
        ([sglang_sample([2])], "was asked for 2 samples and answered"),
        ([{"text": "a"}, {"text": "b"}], "a sample that lacks text, output_ids or finish_reason"),
        ([sglang_sample([2]) | {"output_ids": ["x"]}] * 2, "a sample that lacks text, output_ids or finish_reason"),
    ],
)
async def test_an_unreadable_answer_is_an_engine_error_and_never_a_sample(body: "Json | bytes", message: str) -> None:
    with (
        fake_server(lambda path, request: Answer(body=body)) as server,
        pytest.raises(EngineError, match=message),
    ):
        await generate(server.url)

    assert len(server.requests) == 1


@pytest.mark.parametrize("ask", [generate, complete])
async def test_a_request_that_the_server_aborts_is_sent_again(ask: Any) -> None:
    def answer(path: str, body: JsonObject) -> Answer:
        end = "abort" if len(server.requests) % 3 else "stop"
        return Answer(body=openai_answer("hi", end=end) if "prompt" in body else [sglang_sample([2], end=end)])

    with fake_server(answer) as server:
        completions = await ask(server.url, 1)
        assert len(server.requests) == 3
        assert len(completions) == 1

    with (
        fake_server(lambda path, body: Answer(body=ABORTED[path])) as server,
        pytest.raises(EngineError, match=r"aborted the request.*; see its log"),
    ):
        await ask(server.url, 1)
    assert len(server.requests) == 3


async def test_a_url_that_is_no_inference_server_is_an_engine_error() -> None:
    with (
        fake_server(lambda path, body: Answer(body="no such page", status=404)) as server,
        pytest.raises(EngineError, match=r"answered with status 404: .*no such page.*; check that the URL"),
    ):
        await generate(server.url)


async def test_an_openai_server_gets_one_request_per_sample_with_its_own_seed() -> None:
    with fake_server(lambda path, body: Answer(body=openai_answer("hi", token_ids=[8, 2]))) as server:
        completions = await complete(server.url)

    assert completions == (Completion(token_ids=(8, 2), text="hi", ended=True, num_tokens=2, num_cached_tokens=1),) * 2
    assert sorted(int(str(body["seed"])) for body in server.requests) == [3, 4]
    assert {key: server.requests[0][key] for key in ("model", "prompt", "max_tokens", "top_k", "top_p")} == {
        "model": "policy",
        "prompt": [5, 6, 7],
        "max_tokens": 9,
        "top_k": -1,
        "top_p": 1.0,
    }


async def test_an_openai_server_without_token_ids_is_read_by_its_text() -> None:
    with fake_server(lambda path, body: Answer(body=openai_answer("cut", end="length"))) as server:
        (completion,) = await complete(server.url, n=1)

    assert completion == Completion(token_ids=(), text="cut", ended=False, num_tokens=2, num_cached_tokens=1)


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (Answer(body=b"<html>"), EngineError, "answered with something that is not JSON"),
        (
            Answer(body={"choices": []}),
            EngineError,
            r"answered in an unexpected format \(Expected `array` of length 1",
        ),
        (Answer(body="loading", status=503), EngineError, "kept answering with status 503"),
        (Answer(body="", status=0), EngineError, "cannot be reached"),
        (
            Answer(body={"choices": [{"text": "a", "finish_reason": "tired"}]}),
            EngineError,
            "Invalid enum value 'tired'",
        ),
        (Answer(body="prompt must be text", status=422), ConfigError, "refused the request"),
        (Answer(body="no such key", status=401), ConfigError, "refused the key .*set the environment variable"),
    ],
)
async def test_each_failure_of_an_openai_server_has_its_own_error(
    answer: Answer, error: type[Exception], message: str
) -> None:
    with fake_server(lambda path, body: answer) as server, pytest.raises(error, match=message):
        await complete(server.url, n=1)


async def test_a_prompt_is_sent_whole_however_long_it_is() -> None:
    """aiohttp takes a body of more than a megabyte only as a file."""
    prompt = list(range(200_000))
    with fake_server(lambda path, body: Answer(body=openai_answer("hi"))) as server:
        engine = OpenAIEngine(server.url, "policy", "key", QUICK)
        await engine.generate(prompt, Sampling(), 1)
        await engine.close()

    assert server.requests[0]["prompt"] == prompt


async def test_a_server_that_asks_to_be_left_alone_is_left_alone() -> None:
    times: list[float] = []

    def answer(path: str, body: JsonObject) -> Answer:
        times.append(monotonic())
        if len(times) == 1:
            return Answer(body="busy", status=429, headers={"Retry-After": "1"})
        return Answer(body=openai_answer("hi"))

    with fake_server(answer) as server:
        await complete(server.url, n=1)

    assert 1.0 <= times[1] - times[0] < 3.0


async def test_an_address_that_is_no_url_is_the_users_error() -> None:
    with pytest.raises(ConfigError, match=r"'localhost:1' is not the URL of a server; give it as http://host:port"):
        await complete("localhost:1")


async def test_a_chat_gives_the_message_with_its_calls_and_the_tokens_that_it_cost() -> None:
    call: JsonObject = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message: JsonObject = {"role": "assistant", "content": None, "tool_calls": [call]}
    body: JsonObject = {
        "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2},
    }
    with fake_server(lambda path, request: Answer(body=body)) as server:
        client = ChatClient(server.url, "policy", "key", QUICK)
        answer = await client.ask([{"role": "user", "content": "hi"}], {"temperature": 0.5})
        await client.close()

    assert (answer.text, answer.message, answer.finish_reason) == ("", message, "tool_calls")
    assert (answer.num_prompt_tokens, answer.num_completion_tokens) == (5, 2)
    assert server.requests == [{"model": "policy", "messages": [{"role": "user", "content": "hi"}], "temperature": 0.5}]


@pytest.mark.parametrize(("served", "found"), [(["a", "policy"], "policy"), (["only"], "only")])
async def test_the_served_model_is_the_one_of_that_name_or_the_only_one(served: list[str], found: str) -> None:
    listing: Json = {"object": "list", "data": [{"id": name, "object": "model"} for name in served]}
    with fake_server(lambda path, body: Answer(body=listing)) as server:
        assert await served_model(server.url, "policy", "key", QUICK) == found


async def test_a_server_of_several_other_models_is_refused() -> None:
    listing: Json = {"object": "list", "data": [{"id": "a", "object": "model"}, {"id": "b", "object": "model"}]}
    with (
        fake_server(lambda path, body: Answer(body=listing)) as server,
        pytest.raises(ConfigError, match=r"serves \['a', 'b'\], not 'policy'"),
    ):
        await served_model(server.url, "policy", "key", QUICK)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1.0}, "--temperature must be at least 0, got -1.0"),
        ({"top_p": 0.0}, r"--top-p must lie in \(0, 1\], got 0.0"),
        ({"top_k": 0}, r"--top-k must be -1 \(off\) or at least 1, got 0"),
        ({"max_new_tokens": 0}, "--max-new-tokens must be at least 1, got 0"),
    ],
)
def test_impossible_sampling_is_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sampling(**settings)  # type: ignore[arg-type]  # wrong on purpose
