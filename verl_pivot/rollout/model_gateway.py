"""ModelGateway: the policy in training as an endpoint of OpenAI's protocol, with one API key per trajectory."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

from aiohttp import web

from verl_pivot.loop_local import LoopLocal
from verl_pivot.rollout.chat_completions import read_completion
from verl_pivot.rollout.chat_requests import ChatRefusedError, PolicyQuestion
from verl_pivot.rollout.driven_trajectory import DrivenTrajectory
from verl_pivot.rollout.responses_api import read_response_request

MAX_BODY_BYTES = 64 << 20


class PolicyEndpoint(NamedTuple):
    """Address and key by which a program reaches the policy."""

    base_url: str
    """The `base_url` of OpenAI's clients, such as http://127.0.0.1:41234/v1."""
    api_key: str
    """API key of one trajectory, which is invalid after the trajectory's end."""


class ModelGateway:
    """A server on the loopback interface for all trajectories of one event loop."""

    def __init__(self) -> None:
        self._trajectories: dict[str, DrivenTrajectory] = {}
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[refusals])
        app.router.add_post("/v1/chat/completions", partial(self._answer, read_completion))
        app.router.add_post("/v1/responses", partial(self._answer, read_response_request))
        app.router.add_get("/v1/models", _list_models)
        self._runner = web.AppRunner(app, handle_signals=False, access_log=None)
        self._starting = asyncio.Lock()
        self._port: int | None = None

    async def __aenter__(self) -> "ModelGateway":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @asynccontextmanager
    async def opened(self, trajectory: DrivenTrajectory) -> AsyncIterator[PolicyEndpoint]:
        """The endpoint of a trajectory; after the end of the context, requests with its key are refused."""
        port = await self._started()
        key = f"sk-{secrets.token_urlsafe(24)}"
        self._trajectories[key] = trajectory
        try:
            yield PolicyEndpoint(f"http://127.0.0.1:{port}/v1", key)
        finally:
            del self._trajectories[key]

    async def _started(self) -> int:
        """The port on which the server listens, from the first trajectory on."""
        async with self._starting:
            if self._port is None:
                await self._runner.setup()
                await web.TCPSite(self._runner, "127.0.0.1", 0).start()
                self._port = int(self._runner.addresses[0][1])
            return self._port

    async def _answer(self, read: Callable[[bytes], PolicyQuestion], request: web.Request) -> web.Response:
        trajectory = self._trajectories.get(request.headers.get("Authorization", "").removeprefix("Bearer "))
        if trajectory is None:
            text = "the API key belongs to no running trajectory"
            raise ChatRefusedError(text, status=401, code="invalid_api_key")
        try:
            question = read(await request.read())
            turn = await trajectory.answer(question.request, lambda: request.transport is None)
        except ChatRefusedError as error:
            trajectory.refusal = str(error)
            raise
        if question.events is None:
            return json_answer(question.answer(turn))
        return web.Response(text=question.events(turn), content_type="text/event-stream")


gateway: LoopLocal[ModelGateway] = LoopLocal(ModelGateway)
"""The gateway of the running event loop, such as that of an agent loop worker."""


async def _list_models(request: web.Request) -> web.Response:
    return json_answer({"object": "list", "data": [{"id": "policy", "object": "model", "owned_by": "verl-pivot"}]})


@web.middleware
async def refusals(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer a refused request in OpenAI's form."""
    try:
        return await handler(request)
    except ChatRefusedError as error:
        return json_answer(error.as_dict(), status=error.status)


def json_answer(body: object, status: int = 200) -> web.Response:
    return web.json_response(body, status=status)
