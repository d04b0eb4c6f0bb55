"""SearchClient: a query -> the documents that a search service finds; what goes wrong there is the system's fault."""

from collections.abc import Sequence
from types import TracebackType
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from verl_pivot.errors import ToolFailureError
from verl_pivot.tools.batches import Batcher
from verl_pivot.tools.search_wire import (
    BATCH_SEARCH,
    RETRIEVE,
    BatchSearchBody,
    RetrieveBody,
    RetrievedAnswer,
    SearchProtocol,
    WireDocument,
)

AnswerT = TypeVar("AnswerT")

_MAX_QUERIES = 64
"""Queries of one request."""
_MAX_REQUESTS = 4
"""Requests at a time."""
_MAX_ANSWER_BYTES = 32 << 20
_CONNECT_SECONDS = 10.0
_DETAIL = 200
"""Characters of a refusal that a message shows."""


class SearchClient:
    """Client of one service within one event loop, an asynchronous context manager.

    Queries that come together are sent in one request.
    """

    def __init__(self, url: str, protocol: SearchProtocol, *, num_documents: int, timeout_seconds: float) -> None:
        """Keep the address; nothing is sent yet.

        Args:
            url: Address of the service, without the path.
            protocol: Protocol that it speaks.
            num_documents: Documents for each query.
            timeout_seconds: Seconds in which the answer to a request must be complete.
        """
        self._url, self._protocol = url.rstrip("/"), protocol
        self._num_documents, self._timeout_seconds = num_documents, timeout_seconds
        self._batches = Batcher(self._find_all, max_items=_MAX_QUERIES, max_running=_MAX_REQUESTS)

    async def __aenter__(self) -> "SearchClient":
        self._http = aiohttp.ClientSession(
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

    async def find(self, query: str) -> list[str]:
        """Contents of the documents of one query, best first; the first line of each is its title.

        Raises:
            ToolFailureError: If the service cannot be reached, refuses, or answers late, too much or something else.
        """
        return await self._batches.ask(query)

    async def _find_all(self, queries: list[str]) -> list[list[str]]:
        if self._protocol is SearchProtocol.SEARCH_R1:
            body = RetrieveBody(queries=queries, topk=self._num_documents, return_scores=True)
            scored = self._decoded(await self._post(RETRIEVE, body), RetrievedAnswer).result
            found: Sequence[Sequence[WireDocument]] = [[each.document for each in documents] for documents in scored]
        else:
            asked = BatchSearchBody(query=queries, top_n=self._num_documents)
            found = self._decoded(await self._post(BATCH_SEARCH, asked), list[list[WireDocument]])
        if len(found) != len(queries) or max(map(len, found)) > self._num_documents:
            raise self._failure(
                f"answered {len(queries)} queries with {len(found)} lists of up to {max(map(len, found), default=0)} "
                f"documents, though {self._num_documents} were asked for"
            )
        return [[document.contents for document in documents] for documents in found]

    async def _post(self, path: str, body: RetrieveBody | BatchSearchBody) -> bytes:
        """Body of the answer with status 200; raises ToolFailureError for any other."""
        try:
            async with self._http.post(
                f"{self._url}{path}", data=msgspec.json.encode(body), allow_redirects=False
            ) as response:
                answer = await self._read(response)
        except TimeoutError as error:
            raise self._failure(f"did not answer within {self._timeout_seconds:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: a URL or a header that is none
            raise self._failure(f"cannot be reached: {type(error).__name__}: {error}") from error
        if response.status != 200:
            text = answer[:_DETAIL].decode(errors="replace")
            raise self._failure(f"answered {path} with status {response.status}: {text}")
        return answer

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        answer = bytearray()
        async for chunk in response.content.iter_any():
            answer += chunk
            if len(answer) > _MAX_ANSWER_BYTES:
                raise self._failure(f"answered with more than {_MAX_ANSWER_BYTES >> 20} MiB")
        return bytes(answer)

    def _decoded(self, answer: bytes, form: type[AnswerT]) -> AnswerT:
        try:
            return msgspec.json.decode(answer, type=form)
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._failure(
                f"answers no documents of protocol {self._protocol}: {error}; see `protocol` in the tools file"
            ) from error

    def _failure(self, what: str) -> ToolFailureError:
        return ToolFailureError(f"the search service {self._url} {what}")
