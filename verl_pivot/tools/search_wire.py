"""Limits of a query, and the bodies of the two protocols of search services: Search-R1's and ReSearch's.

Sources: Search-R1's `search_r1/search/retrieval_server.py` and ReSearch's `scripts/serving/retriever_serving.py`.
"""

from enum import StrEnum

import msgspec

MAX_DOCUMENTS = 100
"""Most documents that one query may ask for; also the length of the two rankings that a hybrid search fuses."""
MAX_QUERY_CHARACTERS = 4096
RETRIEVE, SEARCH, BATCH_SEARCH, HEALTH = "/retrieve", "/search", "/batch_search", "/health"
"""Paths: the first is Search-R1's, the others are ReSearch's."""


class SearchProtocol(StrEnum):
    """Protocol of a search service."""

    SEARCH_R1 = "search_r1"
    RESEARCH = "research"


class WireDocument(msgspec.Struct, kw_only=True):
    """A document of either protocol."""

    id: str | int | None = None
    contents: str
    """The title as the first line, then the text."""


class ScoredDocument(msgspec.Struct, kw_only=True):
    """A document of Search-R1 with its score."""

    document: WireDocument
    score: float | None = None


class RetrieveBody(msgspec.Struct, kw_only=True):
    """Body of Search-R1's `/retrieve`."""

    queries: list[str]
    topk: int | None = None
    """Documents for each query; None or 0 leaves the number to the service."""
    return_scores: bool = False
    """Whether each document of the answer comes with its score, in a `ScoredDocument`."""


class RetrievedAnswer(msgspec.Struct, kw_only=True):
    """Answer of `/retrieve` with scores: [num_queries][num_documents]."""

    result: list[list[ScoredDocument]]


class PlainRetrievedAnswer(msgspec.Struct, kw_only=True):
    """Answer of `/retrieve` without scores, which has documents alone: [num_queries][num_documents]."""

    result: list[list[WireDocument]]


class SearchBody(msgspec.Struct, kw_only=True):
    """Body of ReSearch's `/search`; the answer is a list of documents, with scores a pair of two lists."""

    query: str
    top_n: int = 10
    return_score: bool = False


class BatchSearchBody(msgspec.Struct, kw_only=True):
    """Body of ReSearch's `/batch_search`; the answer has a list for each query, with scores a pair of such lists."""

    query: list[str]
    top_n: int = 10
    return_score: bool = False
