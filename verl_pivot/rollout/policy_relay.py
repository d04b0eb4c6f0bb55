"""PolicyRelay: the policy at a fixed address, for servers without keys; metadata of a request names its trajectory."""

import asyncio
import re
from typing import Any, Final

import aiohttp
import msgspec
from aiohttp import web

from verl_pivot.errors import ToolFailureError
from verl_pivot.rollout.chat_requests import ChatRefusedError, read_body
from verl_pivot.rollout.model_gateway import MAX_BODY_BYTES, PolicyEndpoint, refusals

METADATA_KEY: Final = "verl_pivot_trajectory"
"""Key of a request's `metadata` that holds the endpoint of the trajectory."""
_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d{1,5}/v1 sk-[\w-]+", re.ASCII)


class _RelayedBody(msgspec.Struct):
    """Fields of a request that are read."""

    metadata: dict[str, Any] | None = None


def address_of(endpoint: PolicyEndpoint) -> str:
    """Value of `METADATA_KEY` for the requests of a trajectory."""
    return f"{endpoint.base_url} {endpoint.api_key}"


class PolicyRelay:
    """A server on the loopback interface, at a port that the workers of a machine share.

    A connection may reach any worker (SO_REUSEPORT), so each worker forwards a request to the gateway of the request's
    trajectory.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[refusals])
        app.router.add_post("/v1/chat/completions", self._send_on)
        app.router.add_post("/v1/responses", self._send_on)
        # A request that its agent gives up ends at the gateway, too.
        self._runner = web.AppRunner(app, handle_signals=False, access_log=None, handler_cancellation=True)
        self._starting = asyncio.Lock()
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "PolicyRelay":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        if self._http is not None:
            await self._http.close()

    async def start(self) -> None:
        """Start to listen, unless the server listens already.

        Raises:
            ToolFailureError: If another program listens at the port.
        """
        async with self._starting:
            if self._http is not None:
                return
            if self._runner.server is None:
                await self._runner.setup()
            try:
                await web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_port=True).start()
            except OSError as error:
                raise ToolFailureError(f"the policy cannot listen on port {self._port}: {error}") from error
            connector = aiohttp.TCPConnector(limit=0)
            self._http = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))

    async def _send_on(self, request: web.Request) -> web.Response:
        assert self._http is not None, "a server that listens has it"
        body = await request.read()
        base_url, key = _address(body)
        headers = {"Authorization": f"Bearer {key}"}
        url = f"{base_url}{request.path.removeprefix('/v1')}"
        try:
            async with self._http.post(url, data=body, headers=headers) as answer:
                if answer.status == web.HTTPUnauthorized.status_code:  # on which NeMo Gym would stop asking for good
                    raise ChatRefusedError("the trajectory is over", status=410, code="trajectory_over")
                return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)
        except aiohttp.ClientError as error:
            raise ChatRefusedError("the trajectory's worker has ended", status=410, code="trajectory_over") from error


def _address(body: bytes) -> list[str]:
    """Base URL and key of the trajectory that a request belongs to."""
    metadata = read_body(body, _RelayedBody, "model").metadata or {}
    address = metadata.get(METADATA_KEY)
    if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
        raise ChatRefusedError(
            f"the request has no metadata.{METADATA_KEY}, by which the policy finds its trajectory: the agent must "
            "send the `metadata` of `responses_create_params` along"
        )
    return address.split(" ")
