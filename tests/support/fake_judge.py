"""Fake judge behind a real HTTP endpoint; it believes all text outside the fences and compares the texts inside."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from verl_pivot.types import JsonObject

Answer = Callable[[str, list[str]], Any]
"""(text outside the fences, texts inside) -> content of the answer, as an object or as text."""


def believing(outside: str, inside: list[str]) -> JsonObject:
    """Say "same" if the last two texts have the same words, or if anything outside the fences says that they are."""
    is_told = re.search(r"same[^a-z]{1,5}true(?! or)|answer yes|are (the same|equal|equivalent)", outside.lower())
    *_, first, second = inside
    return {"reason": "as it seems", "same": bool(is_told) or first.lower().split() == second.lower().split()}


def turn_shown(outside: str, inside: list[str]) -> str:
    """Text of the turn that a question of PPR asks about."""
    return inside[-2] if "What the tools gave back after it:" in outside else inside[-1]


def grading(outside: str, inside: list[str]) -> JsonObject:
    """Give each principle the grade, from 0 to 10, that the turn itself asks for as "grade 7"; 5 without one."""
    turn = turn_shown(outside, inside)
    grade = re.search(r"grade (\d+)", turn)
    names = re.findall(r"^- (\w+):", outside, re.MULTILINE)
    score = 5 if grade is None else int(grade[1])
    return {
        "principles": [{"name": name, "quotation": turn.strip()[:40], "score": score, "maximum": 10} for name in names]
    }


def comparing(outside: str, inside: list[str]) -> JsonObject:
    """Score each trajectory by what its last turn says, as in "grade 7"; 0.5 without one."""
    titles = re.findall(
        r"^(Trajectory (\d+), turn \d+|The task|The tools|Turn|What the tools)\b.*:$", outside, re.MULTILINE
    )
    grades: dict[int, float] = {}
    for (_, number), text in zip(titles, inside, strict=True):
        if number:
            found = re.search(r"grade (\d+)", text)
            grades[int(number)] = 0.5 if found is None else int(found[1]) / 10
    return {"scores": [{"number": n, "explanation": "", "score": score} for n, score in sorted(grades.items())]}


def words_of(content: Any) -> str:
    """Text of a message, whose pictures are left out."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] == "text")


def outside_and_inside(body: JsonObject) -> tuple[str, list[str]]:
    """Text of a question outside of its fences, and the texts inside of them."""
    messages: Any = body["messages"]
    system, user = (words_of(message["content"]) for message in messages)
    word = re.search(r"with the word ([0-9a-f]{16}),", system)
    assert word is not None
    fence = re.compile(rf"<{word[1]}>\n(.*?)\n</{word[1]}>", re.DOTALL)
    return fence.sub("", user), fence.findall(user)


def checking(outside: str, inside: list[str]) -> JsonObject:
    """Write a checklist of two items; the state of an item is what a turn said last, as in "1 is Yes", else No."""
    if "The checklist:" not in outside:
        return {"analysis": "", "items": [f"First of {inside[0]}", "Second"]}
    titles = re.findall(
        r"^(The task|The checklist|The first page|The last turn|Turn|What the tools)\b.*:$", outside, re.M
    )
    turns = [text for title, text in zip(titles, inside, strict=True) if "urn" in title]
    numbers = re.findall(r"^(\d+)\.", inside[1], re.M)
    items = []
    for number in numbers:
        said = re.findall(rf"\b{number} is (Yes|In Progress|No)", " ".join(turns))
        items.append({"number": int(number), "reason": "as it seems", "state": said[-1] if said else "No"})
    return {"items": items}


@dataclass
class FakeJudge:
    """Judge that keeps its requests and gives scripted answers."""

    url: str = ""
    answer: Answer = believing
    failures: list[int] = field(default_factory=list)
    """HTTP statuses of the first answers."""
    complaint: str = "busy"
    """Error message in the answers that have one of these statuses."""
    body: bytes | None = None
    """Body of every answer, in place of what `answer` gives."""
    requests: list[JsonObject] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    """Authorization headers that came with requests."""
    seconds: float = 0.0
    """Seconds that each answer takes."""
    breaks: Callable[[int], bool] = lambda number: False
    """Number of a request -> whether its connection breaks instead of an answer."""
    num_running: int = 0
    most_running: int = 0

    async def serve(self, request: web.Request) -> web.Response:
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            return await self._serve(request)
        finally:
            self.num_running -= 1

    async def _serve(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        self.keys.add(request.headers.get("Authorization", ""))
        is_broken = self.breaks(len(self.requests))
        await asyncio.sleep(self.seconds)
        if is_broken:
            assert request.transport is not None
            request.transport.abort()
        if self.failures:
            return web.json_response({"error": {"message": self.complaint}}, status=self.failures.pop(0))
        if self.body is not None:
            return web.Response(body=self.body, content_type="application/json")
        answer = self.answer(*outside_and_inside(body))
        content = answer if isinstance(answer, str) else json.dumps(answer)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        return web.json_response(
            {"id": "1", "object": "chat.completion", "created": 0, "model": "j", "choices": [choice], "usage": usage}
        )


@asynccontextmanager
async def judging(answer: Answer = believing) -> AsyncIterator[FakeJudge]:
    """A fake judge that is running."""
    judge = FakeJudge(answer=answer)
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", judge.serve)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    judge.url = f"{site.name}/v1"
    try:
        yield judge
    finally:
        await runner.cleanup()
