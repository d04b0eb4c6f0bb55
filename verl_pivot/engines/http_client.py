"""HttpClient: JSON bodies -> answers of one inference server, with retries and an error message for each failure."""

from io import BytesIO
from typing import Final
from urllib.parse import urlsplit

import aiohttp

from verl_pivot.engines.retries import Retries, UnavailableError, check_status, unreachable, with_retries
from verl_pivot.errors import ConfigError

_CONNECT_SECONDS: Final = 10.0
_LARGE_BYTES: Final = 1 << 20
"""Size from which a body is passed to aiohttp as a file, which it sends in chunks."""


class HttpClient:
    """Client of one server for any number of long requests at once, within one event loop."""

    def __init__(self, url: str, retries: Retries, *, api_key: str | None = None, remedy: str) -> None:
        """Keep the address; nothing is sent yet.

        Args:
            url: Base address of the server, to which the path of each request is added.
            retries: How requests are retried after failures that may be temporary.
            api_key: Bearer token of every request; None sends none.
            remedy: Advice to the user at the end of the error message when the server refuses a request.
        """
        self.url = url.rstrip("/")
        self._retries = retries
        self._api_key = api_key
        self._remedy = remedy
        self._session: aiohttp.ClientSession | None = None

    async def post(self, path: str, body: bytes) -> bytes:
        """Body of the answer to a JSON body; the request is retried while the server is unreachable or busy.

        Raises:
            EngineError: If the server cannot be reached, keeps failing, or does not know the path.
            ConfigError: If the server refuses the request itself, or the URL is invalid.
        """
        return await with_retries(self._retries, lambda: self._request("POST", path, body))

    async def try_post(self, path: str, body: bytes) -> bytes:
        """Like `post`, but with one attempt only.

        Raises:
            UnavailableError: If the failure may be temporary, so that a retry can succeed.
            EngineError: If the server does not know the path.
            ConfigError: If the server refuses the request itself, or the URL is invalid.
        """
        return await self._request("POST", path, body)

    async def get(self, path: str) -> bytes:
        """Body of the answer to a GET request; retries, and raises the same errors, as `post`."""
        return await with_retries(self._retries, lambda: self._request("GET", path, None))

    async def is_ok(self, path: str, timeout_seconds: float) -> bool:
        """Whether a single GET request succeeds within the timeout."""
        try:
            timeout = aiohttp.ClientTimeout(total=timeout_seconds)
            async with self._open_session().get(f"{self.url}{path}", timeout=timeout) as response:
                return response.ok
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _request(self, method: str, path: str, body: bytes | None) -> bytes:
        data = BytesIO(body) if body is not None and len(body) >= _LARGE_BYTES else body
        try:
            async with self._open_session().request(method, f"{self.url}{path}", data=data) as response:
                answer = await response.read()
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            raise ConfigError(f"{self.url!r} is not the URL of a server; give it as http://host:port") from error
        except TimeoutError as error:
            raise UnavailableError(
                f"{self.url} did not answer within {self._retries.timeout_seconds:g} s; see the server's log"
            ) from error
        except aiohttp.ClientError as error:
            raise UnavailableError(unreachable(self.url, error)) from error
        if not response.ok:
            text = answer.decode(errors="replace")
            check_status(self.url, response.status, text, response.headers.get("Retry-After", ""), self._remedy)
        return answer

    def _open_session(self) -> aiohttp.ClientSession:
        """The session, created at the first request because it is bound to the running event loop."""
        if self._session is None:
            key = {} if self._api_key is None else {"Authorization": f"Bearer {self._api_key.strip()}"}
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=self._retries.timeout_seconds, sock_connect=_CONNECT_SECONDS),
                headers={"Content-Type": "application/json", **key},
                # A proxy that the environment names cannot reach this machine's loopback address.
                trust_env=urlsplit(self.url).hostname not in ("127.0.0.1", "localhost", "::1"),
            )
        return self._session
