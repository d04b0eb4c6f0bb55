"""A scripted judge behind an OpenAI-compatible endpoint, in a process of its own that ends with its input."""

import asyncio
import json
import sys
from pathlib import Path

from aiohttp import web

from examples.ppr.judges import SCRIPTED, Scores, UnknownTaskError, answer, read_question
from examples.world.questions import WorldQuestion
from examples.world.rows import read_questions
from verl_pivot.types import JsonObject


def endpoint(scores: Scores) -> web.Application:
    """The endpoint of a judge; a question that it cannot read or does not know is refused with status 400."""

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        try:
            content = answer(read_question(body["messages"]), scores)
        except (UnknownTaskError, ValueError, KeyError) as error:
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


async def serve(judge: str, questions: dict[str, WorldQuestion]) -> None:
    """Serve a judge of SCRIPTED on a free port of this machine, whose URL is printed, until the input ends."""
    runner = web.AppRunner(endpoint(SCRIPTED[judge](questions)))
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        sockets = runner.addresses
        print(f"http://127.0.0.1:{sockets[0][1]}/v1", flush=True)
        await asyncio.to_thread(sys.stdin.read)
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    known = {each.text: each for path in sys.argv[2:] for each in read_questions(Path(path))}
    asyncio.run(serve(sys.argv[1], known))
