"""Tool `search`: a query -> documents, from an index on this machine or from a search service."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

from pydantic import Field, model_validator

from verl_pivot.data.tool_schemas import text_schema
from verl_pivot.loop_local import LoopLocal
from verl_pivot.tools.batches import Batcher
from verl_pivot.tools.contract import CallPolicy, Observation, ToolError
from verl_pivot.tools.functions import in_thread
from verl_pivot.tools.registry import register_tool
from verl_pivot.tools.search_client import SearchClient
from verl_pivot.tools.search_files import SearchKind
from verl_pivot.tools.search_text import DocumentForm, observation_text
from verl_pivot.tools.search_wire import (
    BATCH_SEARCH,
    MAX_DOCUMENTS,
    MAX_QUERY_CHARACTERS,
    RETRIEVE,
    SEARCH,
    SearchProtocol,
)
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import JsonObject
from verl_pivot.validation import Options

if TYPE_CHECKING:
    from verl_pivot.tools.search_index import SearchIndex

_MAX_QUERIES = 64
"""Most queries in one search of an index on this machine."""
_SCHEMA = text_schema("search", "Search documents by words; the best ones come back.", {"query": "Words to look for."})


class SearchToolOptions(Options):
    """Options of `- tool: search`."""

    index: Path | None = None
    """Folder that `verl-pivot index` wrote."""
    kind: SearchKind | None = None
    """Kind of search in the index: bm25, dense or hybrid; None: the kind that the index was made for."""
    url: Annotated[str, Field(pattern=r"^https?://[^/?#]+")] | None = None
    """Address of a search service instead of an index, such as http://host:8000."""
    protocol: SearchProtocol = SearchProtocol.SEARCH_R1
    """Protocol of the service: search_r1 or research."""
    timeout_seconds: Annotated[float, Field(gt=0.0)] = 30.0
    """Seconds within which the service must answer."""
    retries: Annotated[int, Field(ge=0, le=10)] = 3
    """Further attempts after a failure of the service."""
    num_documents: Annotated[int, Field(ge=1, le=MAX_DOCUMENTS)] = 3
    """Most documents that one call returns."""
    form: DocumentForm = DocumentForm.SEARCH_R1
    """How documents are shown: search_r1 or research."""

    @model_validator(mode="after")
    def _check_used(self) -> "SearchToolOptions":
        if (self.index is None) == (self.url is None):
            raise ValueError("give either `index: FOLDER` or `url: http://host:8000`")
        if self.url is not None and self.kind is not None:
            raise ValueError("kind does nothing with `url`, whose service was started with one; leave it out")
        of_service = {"protocol", "timeout_seconds", "retries"} & self.model_fields_set
        if self.index is not None and of_service:
            raise ValueError(f"{min(of_service)} does nothing with `index`; leave it out")
        if self.url is not None and self.url.rstrip("/").endswith((RETRIEVE, SEARCH, BATCH_SEARCH)):
            raise ValueError(f"give the address without the path, got {self.url}; `protocol` sets the path")
        return self


class _DocumentSource(Protocol):
    """Source of documents for the calls of one event loop."""

    async def find(self, query: str) -> list[str]:
        """Contents of the documents of one query, best first; the first line of each is its title."""
        ...


@register_tool("search", options=SearchToolOptions)
class SearchTool:
    """Returns the documents that match a query best, best first; never one that has nothing in common with it."""

    schema = _SCHEMA

    def __init__(self, options: SearchToolOptions) -> None:
        """Raises ConfigError if there is no index, or if it cannot be used."""
        self._form = options.form
        self._index = None if options.index is None else _opened(options.index, options.kind)
        # A service has its own time limit, after which it is asked again.
        self.policy = CallPolicy() if options.url is None else CallPolicy(timeout_seconds=None, retries=options.retries)
        self._sources: LoopLocal[_DocumentSource] = LoopLocal(_maker(options, self._index))

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        query = str(arguments["query"])
        if len(query) > MAX_QUERY_CHARACTERS:
            raise ToolError(
                f"the query has {len(query)} characters, and at most {MAX_QUERY_CHARACTERS} are searched for"
            )
        if not query.strip() or (self._index is not None and self._index.is_empty(query)):
            raise ToolError("the query holds no word to look for")
        found = await (await self._sources.get()).find(query)
        is_by_words = self._index is not None and self._index.kind is SearchKind.BM25
        nothing = "no document has these words" if is_by_words else "no document was found"
        return Observation(observation_text(found, self._form) or nothing)


def _opened(folder: Path, kind: SearchKind | None) -> "SearchIndex":
    from verl_pivot.tools.search_index import open_index  # needs the extra `search`, which a search service does not

    return open_index(folder, kind)


def _maker(
    options: SearchToolOptions, index: "SearchIndex | None"
) -> Callable[[], AbstractAsyncContextManager[_DocumentSource]]:
    """Factory of the source of one event loop."""
    if index is not None:
        return lambda: nullcontext(_IndexSource(index, options.num_documents))
    assert options.url is not None
    url = options.url
    return lambda: SearchClient(
        url, options.protocol, num_documents=options.num_documents, timeout_seconds=options.timeout_seconds
    )


class _IndexSource:
    """Searches an index in a thread, with all queries that arrived meanwhile in one batch."""

    def __init__(self, index: "SearchIndex", num_documents: int) -> None:
        self._index, self._num_documents = index, num_documents
        self._batches = Batcher(self._find_all, max_items=_MAX_QUERIES)

    async def find(self, query: str) -> list[str]:
        return await self._batches.ask(query)

    async def _find_all(self, queries: list[str]) -> list[list[str]]:
        values = {"queries": queries, "num_documents": self._num_documents}
        found = await in_thread(self._index.search, values)
        return [[each.document.contents for each in documents] for documents in found]
