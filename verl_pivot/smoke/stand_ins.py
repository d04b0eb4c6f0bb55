"""A judge and a search service for the time of a smoke, in a process that ends when its standard input is closed."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aiohttp import web

from verl_pivot.errors import ConfigError

_NUMBERED = re.compile(r"^Trajectory (\d+), turn \d+", re.MULTILINE)
_LISTED = re.compile(r"^(\d+)\. ", re.MULTILINE)
_DOCUMENTS = ({"title": "Sums", "text": "One and two are three."}, {"title": "Cheese", "text": "It is made of milk."})


@contextmanager
def standing_in(folder: Path) -> Iterator[str]:
    """Run the services for the length of a `with` block; yields their address.

    Args:
        folder: Folder for the index of the search service.

    Raises:
        ConfigError: If they do not start.
    """
    command = [sys.executable, "-m", "verl_pivot.smoke.stand_ins", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise ConfigError("the stand-ins of the judge and of the search service did not start; see the error above")
        yield address
        process.stdin.close()


async def _answer(request: web.Request) -> web.Response:
    """Answer a question to the judge: trajectories are scored by their numbers, and a turn gets 7 of 10."""
    body = await request.json()
    question = body["messages"][-1]["content"]
    if numbers := sorted({int(number) for number in _NUMBERED.findall(question)}):
        scores = [{"number": number, "explanation": "", "score": 1 / (1 + number)} for number in numbers]
        text = json.dumps({"scores": scores})
    elif "Write 1 to 5 new criteria" in question:
        text = json.dumps({"criteria": [{"text": "It says that the sum is 3.", "weight": 1}]})
    elif listed := [int(number) for number in _LISTED.findall(question.rpartition("The criteria:")[2])]:
        points = 2 * ("It is 3" in question.rpartition("The report:")[2])
        text = json.dumps({"points": [{"number": number, "points": points} for number in listed]})
    else:
        text = "Analysis: as it seems.\nScores: <final_score>7,10</final_score>"
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    answer = {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"]}
    return web.json_response({**answer, "choices": [choice], "usage": usage})


def _make_app(folder: Path) -> web.Application:
    from verl_pivot.tools.search_index import SearchIndex
    from verl_pivot.tools.search_service import SearchService
    from verl_pivot.tools.search_writing import write_index

    documents = folder / "documents.jsonl"
    documents.write_text("".join(json.dumps(document) + "\n" for document in _DOCUMENTS))
    write_index(documents, folder / "index", lambda _: None)
    app = SearchService(SearchIndex(folder / "index")).app()
    app.router.add_post("/v1/chat/completions", _answer)
    return app


async def _serve_until_input_ends(folder: Path) -> None:
    from verl_pivot.tools.http_service import serve

    def say(address: str) -> None:
        print(address, flush=True)

    task = asyncio.ensure_future(serve(_make_app(folder), "127.0.0.1", 0, say))
    await asyncio.to_thread(sys.stdin.read)
    task.cancel()
    await asyncio.wait([task])


if __name__ == "__main__":
    asyncio.run(_serve_until_input_ends(Path(sys.argv[1])))
