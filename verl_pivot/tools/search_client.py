"""SearchClient: a query -> the documents that a search service finds; any error there is a failure of the system."""

from collections.abc import Sequence
from types import TracebackType

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
from verl_pivot.tools.service_client import RefusedError, ServiceClient

_MAX_QUERIES = 64
"""Most queries in one request."""
_MAX_REQUESTS = 4
"""Most requests at a time."""


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
            timeout_seconds: Seconds within which the answer to a request must be complete.
        """
        self._service = ServiceClient("search service", url, timeout_seconds=timeout_seconds)
        self._protocol, self._num_documents = protocol, num_documents
        self._batches = Batcher(self._find_each, max_items=_MAX_QUERIES, max_running=_MAX_REQUESTS)

    async def __aenter__(self) -> "SearchClient":
        await self._service.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._service.__aexit__(kind, error, trace)

    async def find(self, query: str) -> list[str]:
        """Contents of the documents of one query, best first; the first line of each is its title.

        Raises:
            ToolFailureError: If the service cannot be reached or refuses, or its answer is late, too large or invalid.
        """
        found = await self._batches.ask(query)
        if isinstance(found, RefusedError):
            raise found
        return found

    async def _find_each(self, queries: list[str]) -> Sequence[list[str] | RefusedError]:
        """[num_queries] documents of each query; a batch that the service refuses is asked by halves."""
        try:
            return await self._find_all(queries)
        except RefusedError as error:
            if len(queries) == 1:
                return [error]
        half = len(queries) // 2
        return [*await self._find_each(queries[:half]), *await self._find_each(queries[half:])]

    async def _find_all(self, queries: list[str]) -> list[list[str]]:
        if_other = {
            "what": f"sent an answer that is not in the format of protocol {self._protocol}",
            "remedy": "; see `protocol` in the tools file",
        }
        if self._protocol is SearchProtocol.SEARCH_R1:
            body = RetrieveBody(queries=queries, topk=self._num_documents, return_scores=True)
            scored = (await self._service.ask(RETRIEVE, body, RetrievedAnswer, **if_other)).result
            found: Sequence[Sequence[WireDocument]] = [[each.document for each in documents] for documents in scored]
        else:
            asked = BatchSearchBody(query=queries, top_n=self._num_documents)
            found = await self._service.ask(BATCH_SEARCH, asked, list[list[WireDocument]], **if_other)
        if len(found) != len(queries) or max(map(len, found)) > self._num_documents:
            raise self._service.failure(
                f"answered {len(queries)} queries with {len(found)} lists of up to {max(map(len, found), default=0)} "
                f"documents, but {self._num_documents} were requested for each"
            )
        return [[document.contents for document in documents] for documents in found]
