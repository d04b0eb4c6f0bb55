"""HTTP service of one index: requests of Search-R1's and of ReSearch's protocol -> documents."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from aiohttp import web

from verl_pivot.tools.batches import Batcher
from verl_pivot.tools.http_service import UnanswerableRequestError, decoded_body, json_answer, make_app
from verl_pivot.tools.search_index import FoundDocument, SearchIndex
from verl_pivot.tools.search_wire import (
    BATCH_SEARCH,
    HEALTH,
    MAX_DOCUMENTS,
    MAX_QUERY_CHARACTERS,
    RETRIEVE,
    SEARCH,
    BatchSearchBody,
    PlainRetrievedAnswer,
    RetrieveBody,
    RetrievedAnswer,
    ScoredDocument,
    SearchBody,
    WireDocument,
)

_MAX_QUERIES = 1024
"""Most queries in one request."""
_MAX_REQUESTS = 64
"""Most requests that one pass over the index answers."""


class _Asked(NamedTuple):
    """Queries of one request."""

    queries: Sequence[str]
    num_documents: int
    """Documents for each query."""


class SearchService:
    """The service of one index; one thread searches it for all requests that arrived meanwhile."""

    def __init__(self, index: SearchIndex, *, num_documents: int = 3) -> None:
        """Make the service; `app` gives its web application.

        Args:
            index: The opened index.
            num_documents: Documents for each query of a request of Search-R1 that does not say how many.
        """
        self._index, self._num_documents = index, num_documents
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="search")
        self._batches: Batcher[_Asked, list[list[FoundDocument]]] = Batcher(self._find_all, max_items=_MAX_REQUESTS)

    def app(self) -> web.Application:
        """The web application, to be run by one event loop."""
        app = make_app()
        app.router.add_post(RETRIEVE, self._retrieve)
        app.router.add_post(SEARCH, self._search)
        app.router.add_post(BATCH_SEARCH, self._batch_search)
        app.router.add_get(HEALTH, self._health)
        return app

    async def _retrieve(self, request: web.Request) -> web.Response:
        body = await decoded_body(request, RetrieveBody)
        found = await self._find(body.queries, body.topk or self._num_documents)
        if body.return_scores:
            return json_answer(RetrievedAnswer(result=[list(map(_scored, documents)) for documents in found]))
        return json_answer(PlainRetrievedAnswer(result=[list(map(_plain, documents)) for documents in found]))

    async def _search(self, request: web.Request) -> web.Response:
        body = await decoded_body(request, SearchBody)
        if not body.query.strip():
            raise UnanswerableRequestError("the query is empty", status=400)  # as ReSearch's server
        (found,) = await self._find([body.query], body.top_n)
        documents = list(map(_plain, found))
        return json_answer((documents, [each.score for each in found]) if body.return_score else documents)

    async def _batch_search(self, request: web.Request) -> web.Response:
        body = await decoded_body(request, BatchSearchBody)
        found = await self._find(body.query, body.top_n)
        lists = [list(map(_plain, documents)) for documents in found]
        return json_answer((lists, [[each.score for each in row] for row in found]) if body.return_score else lists)

    async def _health(self, request: web.Request) -> web.Response:
        return json_answer(
            {"status": "healthy", "kind": self._index.kind, "documents": self._index.facts.num_documents}
        )

    async def _find(self, queries: Sequence[str], num_documents: int) -> list[list[FoundDocument]]:
        """The documents of each query of a request.

        Raises:
            UnanswerableRequestError: If the request exceeds a limit.
        """
        if len(queries) > _MAX_QUERIES:
            raise UnanswerableRequestError(
                f"a request may have at most {_MAX_QUERIES} queries, but this one has {len(queries)}"
            )
        if not 1 <= num_documents <= MAX_DOCUMENTS:
            raise UnanswerableRequestError(
                f"a query can ask for 1 to {MAX_DOCUMENTS} documents, but this one asks for {num_documents}"
            )
        if (longest := max(map(len, queries), default=0)) > MAX_QUERY_CHARACTERS:
            raise UnanswerableRequestError(
                f"a query may have at most {MAX_QUERY_CHARACTERS} characters, but one has {longest}"
            )
        return await self._batches.ask(_Asked(queries, num_documents))

    async def _find_all(self, requests: list[_Asked]) -> list[list[list[FoundDocument]]]:
        """The documents of each query of each request, found in one pass."""
        queries = [query for each in requests for query in each.queries]
        number = max(each.num_documents for each in requests)
        found = iter(
            await asyncio.get_running_loop().run_in_executor(self._thread, self._index.search, queries, number)
        )
        return [[next(found)[: each.num_documents] for _ in each.queries] for each in requests]


def _plain(found: FoundDocument) -> WireDocument:
    return WireDocument(id=found.document.id, contents=found.document.contents)


def _scored(found: FoundDocument) -> ScoredDocument:
    return ScoredDocument(document=_plain(found), score=found.score)
