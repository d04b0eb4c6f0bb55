"""The gateway through OpenAI's own client: chat completions and responses, whole and as events, give the same rows."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.responses import Response

from tests.support.scripted_engine import Said, call, make_loop
from verl_pivot.rollout.chat_completions import read_completion
from verl_pivot.rollout.chat_requests import ChatRefusedError
from verl_pivot.rollout.driven_trajectory import DrivenTrajectory
from verl_pivot.rollout.model_gateway import ModelGateway
from verl_pivot.rollout.token_record import TokenRecord

PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
ADD = {"name": "add", "description": "Add two numbers.", "parameters": PARAMETERS}
SCRIPT = [
    "<think>\nhm\n</think>\n\nI add.\n" + call("add", a=2, b=3) + "\n" + call("add", a=1, b=1),
    "It is 5 \N{SNOWMAN}.",
]


@asynccontextmanager
async def conversation(script: Sequence[Said | str]) -> AsyncIterator[tuple[Any, DrivenTrajectory]]:
    """OpenAI's client of a policy that says the script, and the policy's trajectory."""
    trajectory = DrivenTrajectory(make_loop(script)._parts, {"temperature": 1.0, "logprobs": True})
    async with (
        ModelGateway() as gateway,
        gateway.opened(trajectory) as endpoint,
        AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0) as client,
    ):
        yield client, trajectory


async def whole_completion(client: Any, **request: Any) -> dict[str, Any]:
    answer = await client.chat.completions.create(model="policy", **request)
    message: dict[str, Any] = answer.choices[0].message.model_dump(exclude_none=True)
    return message


async def streamed_completion(client: Any, **request: Any) -> dict[str, Any]:
    """The message that OpenAI's client puts together from the events."""
    state = ChatCompletionStreamState()
    async for chunk in await client.chat.completions.create(model="policy", stream=True, **request):
        state.handle_chunk(chunk)
    message: dict[str, Any] = state.get_final_completion().choices[0].message.model_dump(exclude_none=True)
    for each in message.get("tool_calls", []):
        each.pop("index")
        each["function"].pop("parsed_arguments", None)
    return message


async def by_completions(ask: Callable[..., Awaitable[dict[str, Any]]], client: Any) -> str:
    """Run the tool loop by chat completions, and return the policy's answer."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    messages.append({"role": "user", "content": "Add 2 and 3."})
    while True:
        messages.append(await ask(client, messages=messages, tools=[{"type": "function", "function": ADD}]))
        if not messages[-1].get("tool_calls"):
            return str(messages[-1]["content"])
        for each in messages[-1]["tool_calls"]:
            text = str(sum(json.loads(each["function"]["arguments"]).values()))
            messages.append({"role": "tool", "tool_call_id": each["id"], "content": text})


async def whole_response(client: Any, **request: Any) -> Response:
    answer: Response = await client.responses.create(model="policy", **request)
    return answer


async def streamed_response(client: Any, **request: Any) -> Response:
    """The response in the last event, after a check that the earlier events add up to the same texts."""
    async with client.responses.stream(model="policy", **request) as stream:
        events = [event async for event in stream]
        answer = await stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    texts = [event.snapshot for event in events if event.type.endswith(".delta")]
    said = [item.content[0].text for item in answer.output if item.type == "message"]
    assert texts == [*said, *(item.arguments for item in answer.output if item.type == "function_call")]
    return Response.model_validate(answer.model_dump(exclude={"output": {"__all__": {"parsed_arguments"}}}))


async def by_responses(ask: Callable[..., Awaitable[Response]], client: Any) -> str:
    """Run the tool loop by responses, and return the policy's answer."""
    items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "Add 2 and 3."}]}]
    while True:
        tools = [{"type": "function", "strict": None, **ADD}]
        answer = await ask(client, input=items, tools=tools, instructions="Be brief.")
        items += [item.model_dump(exclude={"parsed_arguments"}) for item in answer.output]
        calls = [item for item in answer.output if item.type == "function_call"]
        if not calls:
            return answer.output_text
        for each in calls:
            text = str(sum(json.loads(each.arguments).values()))
            items.append({"type": "function_call_output", "call_id": each.call_id, "output": text})


LOOPS = {
    "completions": (by_completions, whole_completion),
    "streamed completions": (by_completions, streamed_completion),
    "responses": (by_responses, whole_response),
    "streamed responses": (by_responses, streamed_response),
}


async def played(form: str) -> TokenRecord:
    loop, ask = LOOPS[form]
    async with conversation(SCRIPT) as (client, trajectory):
        assert await loop(ask, client) == "It is 5 \N{SNOWMAN}."  # type: ignore[operator]
    (one,) = trajectory.conversations
    return one.tokens


@pytest.mark.parametrize("form", list(LOOPS)[1:])
async def test_each_form_gives_the_tokens_masks_and_logprobs_of_whole_completions(form: str) -> None:
    assert await played(form) == await played("completions")


async def test_a_response_says_what_the_turn_is_made_of() -> None:
    async with conversation([SCRIPT[0], Said("One. " * 40, ended=True)]) as (client, _):
        tools = [{"type": "function", **ADD}]
        acted = await client.responses.create(model="policy", input="Add.", tools=tools, metadata={"row": "7"})
        cut = await client.responses.create(model="policy", input="Count.", max_output_tokens=4)

    assert [item.type for item in acted.output] == ["reasoning", "message", "function_call", "function_call"]
    assert acted.output[0].summary[0].text == "hm"
    assert acted.output[1].content[0].text == "I add."
    assert [json.loads(item.arguments) for item in acted.output[2:]] == [{"a": 2, "b": 3}, {"a": 1, "b": 1}]
    assert (acted.status, acted.metadata, len(acted.tools)) == ("completed", {"row": "7"}, 1)
    assert (cut.status, cut.incomplete_details.reason, cut.usage.output_tokens) == (
        "incomplete",
        "max_output_tokens",
        4,
    )
    assert cut.output[0].status == "incomplete"


async def test_a_program_may_change_the_form_within_a_conversation() -> None:
    async with conversation(["One.", "Two."]) as (client, trajectory):
        first = await whole_completion(client, messages=[{"role": "user", "content": "Count."}])
        items = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": first["content"]}]
        await client.responses.create(model="policy", input=[*items, {"role": "user", "content": "Go on."}])

    assert [len(each.turns) for each in trajectory.conversations] == [2]


async def test_the_events_of_completions_hold_the_usage_where_it_is_wanted() -> None:
    async with conversation(["One.", "Two."]) as (client, _):
        ask = {"model": "policy", "messages": [{"role": "user", "content": "Count."}], "stream": True}
        bare = [chunk async for chunk in await client.chat.completions.create(**ask)]
        stream = await client.chat.completions.create(**ask, stream_options={"include_usage": True})
        counted = [chunk async for chunk in stream]

    assert [chunk.choices[0].finish_reason for chunk in bare] == [None, "stop"]
    assert [chunk.usage and chunk.usage.completion_tokens for chunk in counted] == [None, None, 5]


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ({"input": "a", "previous_response_id": "resp_1"}, "send the conversation as `input`"),
        ({"input": "a", "background": True}, "leave `background` out"),
        ({"input": "a", "tools": [{"type": "web_search"}]}, "a tool is not a function with a name"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "an item of type 'item_reference'"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]}, "is not text"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "add", "arguments": "{"}]}, "are not JSON"),
        ({"input": [{"type": "function_call", "call_id": [1], "name": [2], "arguments": 3}]}, "a tool call without"),
        ({"input": []}, "the request has no messages"),
        ({"input": 5}, "this is not a valid responses request"),
        ({"input": "a", "max_output_tokens": 0, "stream": True}, "max_tokens must be at least 1"),
    ],
)
async def test_a_response_that_only_a_whole_server_gives_is_refused(request_: dict[str, Any], sentence: str) -> None:
    async with conversation(["One."]) as (client, trajectory):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.post("/responses", body={"model": "policy", **request_}, cast_to=object)

    assert sentence in caught.value.message
    assert trajectory.conversations == []


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "tool_calls": 5},
        {"role": "assistant", "tool_calls": [5]},
        {"role": ["user"], "content": "a"},
        {"role": "user", "content": 5},
    ],
)
async def test_a_message_of_another_shape_is_refused(message: dict[str, Any]) -> None:
    async with conversation(["One."]) as (client, _):
        with pytest.raises(openai.BadRequestError):
            await whole_completion(client, messages=[{"role": "user", "content": "a"}, message])


def test_a_request_that_is_nested_too_deeply_is_refused() -> None:
    deep = b'{"messages": [{"role": "user", "content": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]}"

    with pytest.raises(ChatRefusedError, match="this is not a valid chat completions request") as caught:
        read_completion(deep)

    assert caught.value.status == 400


async def test_ids_of_calls_may_have_any_shape() -> None:
    function = {"name": "add", "arguments": "{}"}
    async with conversation(["One."]) as (client, _):
        messages = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "tool_calls": [{"id": [1], "function": function}]},
            {"role": "tool", "tool_call_id": [1], "content": "0"},
        ]
        assert (await whole_completion(client, messages=messages))["content"] == "One."


@pytest.mark.parametrize("form", ["completions", "streamed completions", "responses", "streamed responses"])
async def test_half_of_a_surrogate_pair_in_a_call_is_a_question_mark(form: str) -> None:
    """No HTTP body can hold such a half, so that a policy could end its rollout without a reward by it."""
    half = '<tool_call>\n{"name": "add", "arguments": {"a": "\\udfff", "b": "\\ud83d\\ude00"}}\n</tool_call>'
    messages = [{"role": "user", "content": "Add."}]
    async with conversation([half, "One."]) as (client, _):
        if "completions" in form:
            tools = [{"type": "function", "function": ADD}]
            said = await LOOPS[form][1](client, messages=messages, tools=tools)  # type: ignore[operator]
            function = said["tool_calls"][0]["function"]
            written = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": "\\ud800"}'}}
            again = [*messages, said, {"role": "assistant", "tool_calls": [written]}]
            await whole_completion(client, messages=again, tools=tools)
            found = (function["name"], function["arguments"])
        else:
            ask = LOOPS[form][1]
            answer = await ask(client, input=messages, tools=[{"type": "function", **ADD}])  # type: ignore[operator]
            found = (answer.output[0].name, answer.output[0].arguments)

    assert found == ("add", '{"a": "?", "b": "\N{GRINNING FACE}"}')


async def test_messages_that_end_with_one_of_the_policys_begin_a_row_of_their_own() -> None:
    async with conversation(["One.", "Two."]) as (client, trajectory):
        begun = [{"role": "user", "content": "Count."}]
        begun.append(await whole_completion(client, messages=begun))
        more = [{"role": "user", "content": "Go on."}, {"role": "assistant", "content": "I had:"}]
        await whole_completion(client, messages=[*begun, *more])

    assert [len(each.turns) for each in trajectory.conversations] == [1, 1]
