"""ServerGroup: one request -> the answer of the least busy working server among several of the same model."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from verl_pivot.engines.http_client import HttpClient
from verl_pivot.engines.retries import LONGEST_ASKED_SECONDS, Retries, UnavailableError, with_retries
from verl_pivot.errors import EngineError

ResultT = TypeVar("ResultT")
_LONGEST_REST_SECONDS = 30.0
"""Upper bound of the seconds for which a server that failed is avoided, unless it asks for more."""


@dataclass(slots=True)
class _EqualServer:
    """One server, its load and its recent failures."""

    client: HttpClient
    num_running: int = 0
    """Requests in flight."""
    num_failures: int = 0
    """Failures since the last success."""
    rests_until: float = 0.0
    """Event-loop time in seconds until which other servers are preferred."""
    is_wrong: bool = False
    """Whether its last answer was none of this model, so that no retry there can succeed."""


class ServerGroup:
    """Servers of the same model: each request goes to the one with the fewest requests, and after a failure to another.

    A server that failed is asked again after a rest that doubles with each failure, or at once if all others failed.
    So does one that does not serve the model; a request fails by that only if all servers are like this.
    """

    def __init__(self, clients: Sequence[HttpClient], retries: Retries) -> None:
        """Keep the servers.

        Args:
            clients: [num_servers] clients, at least one.
            retries: How a request is retried; each attempt chooses its server anew.
        """
        self._servers = [_EqualServer(client) for client in clients]
        self._retries = retries

    @property
    def url(self) -> str:
        """Addresses of all servers, for messages."""
        return ", ".join(server.client.url for server in self._servers)

    async def post(self, path: str, body: bytes, read: Callable[[bytes], ResultT]) -> ResultT:
        """What `read` makes of the answer to a JSON body.

        Args:
            path: Path of the request.
            body: The request, as JSON.
            read: Function that reads the body of an answer. An UnavailableError that it raises is a failure of the
                server, after which the request is retried.

        Raises:
            EngineError: If no server can be reached, or they keep failing, or do not know the path or the model.
            ConfigError: If a server refuses the request itself.
        """
        return await with_retries(self._retries, lambda: self._try(path, body, read))

    async def _try(self, path: str, body: bytes, read: Callable[[bytes], ResultT]) -> ResultT:
        now = asyncio.get_running_loop().time()
        server = min(self._servers, key=lambda each: (max(0.0, each.rests_until - now), each.num_running))
        server.num_running += 1
        try:
            answer = read(await server.client.try_post(path, body))
        except EngineError as error:
            self._rest(server, error)
            if server.is_wrong and not all(each.is_wrong for each in self._servers):
                raise UnavailableError(str(error)) from error  # another server may answer
            raise
        finally:
            server.num_running -= 1
        server.num_failures, server.rests_until, server.is_wrong = 0, 0.0, False
        return answer

    def _rest(self, server: _EqualServer, error: EngineError) -> None:
        """Prefer other servers for a while; the retry waits as long as the server asks only if no other is ready."""
        now = asyncio.get_running_loop().time()
        server.num_failures += 1
        server.is_wrong = not isinstance(error, UnavailableError)
        rest = min(0.5 * 2.0 ** min(server.num_failures, 10), _LONGEST_REST_SECONDS)
        if isinstance(error, UnavailableError):
            asked = min(error.retry_after_seconds, LONGEST_ASKED_SECONDS)
            rest = max(rest, asked)
            others = [each for each in self._servers if each is not server and not each.is_wrong]
            error.retry_after_seconds = min([asked, *(max(0.0, each.rests_until - now) for each in others)])
        server.rests_until = now + rest

    async def close(self) -> None:
        for server in self._servers:
            await server.client.close()
