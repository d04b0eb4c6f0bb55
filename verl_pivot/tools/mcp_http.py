"""The HTTP client of MCP sessions: it limits the size of answers, and notes whether the server opened a session."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from verl_pivot.extras import extra

with extra("mcp"):
    import httpx2

_SESSION_HEADER = "mcp-session-id"


class HttpSession:
    """What is known about a connection besides its messages."""

    def __init__(self) -> None:
        self.has_session_id = False
        """Whether the server opened a session of its own for this connection."""
        self.broken = ""
        """How the server broke a limit; "" if it did not."""


class _BoundedStream(httpx2.AsyncByteStream):
    """Body of a response; reading more than its limit raises."""

    def __init__(self, stream: httpx2.AsyncByteStream, max_bytes: int, session: HttpSession) -> None:
        self._stream, self._max_bytes, self._session = stream, max_bytes, session

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._max_bytes
        async for chunk in self._stream:
            left -= len(chunk)
            if left < 0:
                self._session.broken = f"it answered with more than {self._max_bytes} bytes (max_message_mib)"
                raise httpx2.ReadError(self._session.broken)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class _BoundedTransport(httpx2.AsyncHTTPTransport):
    def __init__(self, max_bytes: int, session: HttpSession) -> None:
        super().__init__()
        self._max_bytes, self._session = max_bytes, session

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            self._session.broken = "it compressed its answer, though the request did not allow it"
            raise httpx2.ReadError(self._session.broken)
        self._session.has_session_id |= _SESSION_HEADER in response.headers
        if request.method == "POST":  # the stream of a GET lives as long as the session; its events have a limit
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _BoundedStream(response.stream, self._max_bytes, self._session)
        return response


@asynccontextmanager
async def http_client(
    headers: Mapping[str, str], *, max_bytes: int, session: HttpSession
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client that accepts at most `max_bytes` bytes per answer; it has no time limit, since each call has one."""
    every = {**headers, "accept-encoding": "identity"}
    transport = _BoundedTransport(max_bytes, session)
    async with httpx2.AsyncClient(headers=every, transport=transport, timeout=None) as client:
        yield client
