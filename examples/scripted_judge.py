"""A function that answers a judge's questions -> an OpenAI-compatible endpoint in a process of its own."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from examples.units import SpoiledError
from verl_pivot.engines.server import tied_to_parent
from verl_pivot.types import JsonObject

Messages = Sequence[Mapping[str, str]]
Answered = Callable[[Messages], str]
"""Messages of a question -> text of the answer; raises ValueError or KeyError for a question that it does not know."""
_FENCE_WORD = re.compile(r"with the word ([0-9a-f]{16}),")


class FencedTexts(NamedTuple):
    """Parts of a question that `verl_pivot.rewards.principles.fenced_question` wrote."""

    texts: list[tuple[str, str]]
    """(title, text) of each fence, in order."""
    outside: str
    """Text outside the fences."""


def fenced_texts(messages: Messages) -> FencedTexts:
    """The texts that a question shows.

    Raises:
        ValueError: If the messages are no such question.
    """
    system, user = (each["content"] for each in messages)
    word = _FENCE_WORD.search(system)
    if word is None:
        raise ValueError("the system message names no word of fences")
    fenced = re.compile(rf"^([^\n]+:)\n<{word[1]}>\n(.*?)\n</{word[1]}>", re.DOTALL | re.MULTILINE)
    return FencedTexts(fenced.findall(user), fenced.sub("", user))


def endpoint(answered: Answered) -> web.Application:
    """The endpoint of a judge; a question that it cannot read or does not know is refused with status 400."""

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        try:
            content = answered(body["messages"])
        except (ValueError, KeyError) as error:
            refusal: JsonObject = {"error": {"message": f"{type(error).__name__}: {error}"}}
            return web.json_response(refusal, status=400)
        return web.json_response(_completion(body["model"], content, len(json.dumps(body["messages"]))))

    app = web.Application(client_max_size=2**24)
    app.router.add_post("/v1/chat/completions", complete)
    return app


def _completion(model: str, content: str, num_chars: int) -> JsonObject:
    """An answer as OpenAI's servers give it; tokens are counted as four characters each."""
    num_prompt, num_answer = num_chars // 4, len(content) // 4
    return {
        "id": "judge",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}},
        ],
        "usage": {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_answer,
            "total_tokens": num_prompt + num_answer,
        },
    }


async def serve(answered: Answered) -> None:
    """Serve a judge on a free port of this machine until standard input ends; the URL is printed first."""
    runner = web.AppRunner(endpoint(answered))
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        sockets = runner.addresses
        print(f"http://127.0.0.1:{sockets[0][1]}/v1", flush=True)
        await asyncio.to_thread(sys.stdin.read)
    finally:
        await runner.cleanup()


def refuse_ended(judge: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Refuse a training whose judge ended early, since it left out what the judge did not score.

    Raises:
        SpoiledError: If the judge's process has ended.
    """
    if process.poll() is not None:
        raise SpoiledError(
            f"the judge {judge} ended with code {process.returncode} during the training, which did not train on what "
            f"it left unscored: see {log}, remove {log.parent}, and run the command again"
        )


@contextmanager
def served(judge: str, module: str, *arguments: str, log: Path) -> Iterator[str]:
    """Run a module that serves a judge during a with-block; yields the URL of its endpoint.

    Args:
        judge: Name of the judge, for messages.
        module: Full name of the module, which calls `serve`.
        arguments: Its arguments.
        log: File for what it prints.

    Raises:
        SystemExit: If the judge does not start; names the log.
        SpoiledError: If the judge ends before the block does.
    """
    command = tied_to_parent(module, *arguments)
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = process.stdout.readline().decode().strip()
        if not url:
            raise SystemExit(f"the judge {judge} did not start; see {log}")
        yield url
        refuse_ended(judge, process, log)
    finally:
        process.stdin.close()  # the server ends when its input does
        process.wait()
        process.stdout.close()
