"""ServiceClient: a JSON body -> the answer of an HTTP service; any error there is a failure of the system."""

from types import TracebackType
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from verl_pivot.errors import ToolFailureError

AnswerT = TypeVar("AnswerT")

_MAX_ANSWER_BYTES = 32 << 20
_CONNECT_SECONDS = 10.0
_BUSY = frozenset({429, 502, 503, 504})
"""Statuses of a service that takes no requests at present."""
_DETAIL = 200
"""Characters of a refusal that a message shows."""


class RefusedError(ToolFailureError):
    """The service answered, but not with what was asked for; another request may get its answer."""


class ServiceClient:
    """Client of one service within one event loop, an asynchronous context manager. It never retries a request."""

    def __init__(self, name: str, url: str, *, timeout_seconds: float) -> None:
        """Keep the address; nothing is sent yet.

        Args:
            name: Name of the service for messages, such as "search service".
            url: Address of the service, without the path.
            timeout_seconds: Seconds within which an answer must be complete.
        """
        self._name, self._url, self._timeout_seconds = name, url.rstrip("/"), timeout_seconds

    async def __aenter__(self) -> "ServiceClient":
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),  # a request that waited for a connection would seem late
            timeout=aiohttp.ClientTimeout(total=self._timeout_seconds, sock_connect=_CONNECT_SECONDS),
            headers={"Content-Type": "application/json", "Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # a small answer could become a large one
            # A proxy of the environment cannot reach this machine's loopback address.
            trust_env=urlsplit(self._url).hostname not in ("127.0.0.1", "localhost", "::1"),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    async def ask(self, path: str, body: object, form: type[AnswerT], *, what: str, remedy: str = "") -> AnswerT:
        """The decoded answer to one request.

        Args:
            path: Path of the request.
            body: A value that JSON can hold.
            form: Type of the answer.
            what: Message for an answer of another form, such as "sent an answer that is not in verl-tool's format".
            remedy: Advice for that case, at the end of the message.

        Raises:
            RefusedError: If the service refuses, or its answer is too large or invalid.
            ToolFailureError: If the service cannot be reached or is busy, or its answer is late.
        """
        answer = await self._post(path, body)
        try:
            return msgspec.json.decode(answer, type=form)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self.failure(f"{what}: {error}{remedy}") from error

    def failure(self, what: str) -> RefusedError:
        """The error that says what the service did."""
        return RefusedError(self._sentence(what))

    def _sentence(self, what: str) -> str:
        return f"the {self._name} {self._url} {what}"

    async def _post(self, path: str, body: object) -> bytes:
        """Body of the answer with status 200; raises ToolFailureError for any other."""
        try:
            async with self._http.post(
                f"{self._url}{path}", data=msgspec.json.encode(body), allow_redirects=False
            ) as response:
                answer = await self._read(response)
        except TimeoutError as error:
            raise ToolFailureError(self._sentence(f"did not answer within {self._timeout_seconds:g} s")) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: an invalid URL or header
            problem = f"cannot be reached: {type(error).__name__}: {error}"
            raise ToolFailureError(self._sentence(problem)) from error
        if response.status != 200:
            what = f"answered {path} with status {response.status}: {answer[:_DETAIL].decode(errors='replace')}"
            raise ToolFailureError(self._sentence(what)) if response.status in _BUSY else self.failure(what)
        return answer

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        answer = bytearray()
        async for chunk in response.content.iter_any():
            answer += chunk
            if len(answer) > _MAX_ANSWER_BYTES:
                raise self.failure(f"answered with more than {_MAX_ANSWER_BYTES >> 20} MiB")
        return bytes(answer)
