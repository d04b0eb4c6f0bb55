"""Program that drives the policy as foreign environments do, with the standard library; its argument says how."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

KIND = sys.argv[1]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


def post(body: dict[str, Any], key: str | None = None, *, seconds: float = 60.0) -> tuple[int, dict[str, Any]]:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key or os.environ['OPENAI_API_KEY']}"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def asked(messages: list[dict[str, Any]], **others: object) -> dict[str, Any]:
    """The policy's message; without one the program ends with an error."""
    status, body = post({"model": "policy", "messages": messages, **others})
    if status != 200:
        sys.exit(f"the endpoint answered {status}: {body['error']['message']}")
    message: dict[str, Any] = body["choices"][0]["message"]
    return message


def report(reward: object, **others: object) -> None:
    print(json.dumps({"reward": reward, **others}))


def tools(task: dict[str, Any]) -> None:
    """Tool loop: calls of `add` run until there is an answer."""
    messages = list(task["prompt"])
    while True:
        message = asked(messages, tools=[ADD])
        messages.append(message)
        if not message.get("tool_calls"):
            return report(float("5" in (message["content"] or "")), metrics={"messages": len(messages)})
        for call in message["tool_calls"]:
            arguments = json.loads(call["function"]["arguments"])
            text = str(arguments["a"] + arguments["b"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})


def two(task: dict[str, Any]) -> None:
    """Two conversations, one after the other, and the first one again."""
    first = [*task["prompt"]]
    first.append(asked(first))
    asked([{"role": "user", "content": "Something else."}])
    asked([*first, {"role": "user", "content": "Go on."}])
    report(1.0)


def parallel(task: dict[str, Any]) -> None:
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda text: asked([{"role": "user", "content": text}]), "ab"))
    report(1.0)


def refused(task: dict[str, Any]) -> None:
    """Report the endpoint's answers to invalid requests, as an error of the environment."""
    once(task)
    image = [{"type": "image_url", "image_url": {"url": "data:"}}]
    bodies: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": image}]},
        {"messages": [{"role": "user", "content": "a"}], "n": 2},
        {"messages": [{"role": "user", "content": "a"}], "logprobs": True},
        {"messages": []},
        {"messages": [{"role": "function", "content": "a"}]},
        {"prompt": "a"},
        {"messages": [{"role": "user", "content": "a"}], "max_tokens": 0},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": "f"}]}]},
        {"messages": [{"role": "user", "content": "a " * 4000}]},
    ]
    answers = [post(body) for body in bodies] + [post(bodies[0], key="sk-other")]
    report(None, error=json.dumps([[status, body["error"]["message"][:34]] for status, body in answers]))


def once(task: dict[str, Any]) -> None:
    asked(list(task["prompt"]))


def impatient(task: dict[str, Any]) -> None:
    """Give up a request twice, as a client with a time limit and retries does, before waiting for the answer."""
    for _ in range(2):
        with suppress(TimeoutError):
            post({"messages": list(task["prompt"])}, seconds=0.2)
    once(task)
    report(1.0)


def hasty(task: dict[str, Any]) -> None:
    """Report after one turn, while another request is under way."""
    once(task)
    with suppress(TimeoutError):
        post({"messages": [{"role": "user", "content": "And now?"}]}, seconds=0.2)
    report(1.0)


def for_ever(task: dict[str, Any]) -> None:
    while True:
        asked(list(task["prompt"]))


def dies(task: dict[str, Any]) -> None:
    once(task)
    sys.exit("the shop burns")


def hangs(task: dict[str, Any]) -> None:
    once(task)
    time.sleep(61.28)


def slow(task: dict[str, Any]) -> None:
    once(task)
    time.sleep(1.2)
    report(1.0)


def leaves(task: dict[str, Any]) -> None:
    """Report, and leave a process that holds both outputs open."""
    once(task)
    report(1.0)
    sys.stdout.flush()
    subprocess.Popen(["sleep", "61.29"])


def noisy(task: dict[str, Any]) -> None:
    """Report; much was written before the task was read."""
    once(task)
    report(1.0)


def plain(task: dict[str, Any]) -> None:
    """What docs/environments.md shows, with tools that echo."""
    messages = list(task["prompt"])
    messages.append(asked(messages, tools=[ADD]))
    for call in messages[-1].get("tool_calls") or []:
        echoed = str(json.loads(call["function"]["arguments"])["a"])
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": echoed})
    if messages[-1]["role"] == "tool":
        messages.append(asked(messages, tools=[ADD]))
    report(float("42" in messages[-1]["content"]))


def silent(task: dict[str, Any]) -> None:
    once(task)
    print("all is well")


def misspelt(task: dict[str, Any]) -> None:
    once(task)
    print(json.dumps({"score": 1.0}))


def generous(task: dict[str, Any]) -> None:
    once(task)
    report(7)


def endless(task: dict[str, Any]) -> None:
    once(task)
    print('{"reward": 1e999}')


def undecided(task: dict[str, Any]) -> None:
    once(task)
    report(None)


def shrugs(task: dict[str, Any]) -> None:
    """Give no reward, whatever the endpoint answers."""
    once(task)
    codes = [post({"messages": [{"role": "user", "content": "And now?"}]})[1]["error"]["code"] for _ in range(3)]
    report(0.0, metrics={"engine_failures": codes.count("engine_failure")})


def idle(task: dict[str, Any]) -> None:
    report(1.0)


def pictures(task: dict[str, Any]) -> None:
    """Send one request, which the endpoint refuses."""
    post({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]})
    report(1.0)


def orphan(task: dict[str, Any]) -> None:
    """End while a request is under way, and leave a child that goes on to send requests."""
    if os.fork() == 0:
        os.setsid()
        for _ in range(20):
            post({"messages": list(task["prompt"])})
        os._exit(0)
    once(task)
    report(1.0)


if KIND == "noisy":  # more than the pipe holds, before the task is read
    print("a warning\n" * 80_000, file=sys.stderr)
globals()[KIND](json.load(sys.stdin))
