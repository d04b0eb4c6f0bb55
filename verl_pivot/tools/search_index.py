"""SearchIndex: a batch of queries -> the best documents of each, by words, by vectors, or by both."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from verl_pivot.errors import ConfigError
from verl_pivot.tools.search_files import (
    Document,
    EncoderFacts,
    IndexFacts,
    SearchKind,
    StoredDocuments,
    damaged,
    read_facts,
)
from verl_pivot.tools.search_neighbours import Neighbours
from verl_pivot.tools.search_ranking import Ranked, best, fused
from verl_pivot.tools.search_vectors import VECTORS, LatentQueries
from verl_pivot.tools.search_wire import MAX_DOCUMENTS
from verl_pivot.tools.search_words import WordScores, words_of

_MAX_SCORES = 1 << 24
"""Most scores of documents that are in memory at once: 64 MiB."""
_ROUNDING = 1e-6
"""Cosine up to which two vectors of float32 have nothing in common."""


class FoundDocument(NamedTuple):
    """A document that a query found."""

    document: Document
    score: float
    """BM25, the cosine, or the sum of reciprocal ranks; above 0 in each."""


class SearchIndex:
    """An index that `verl-pivot index` wrote, for one kind of search; any number of threads may search."""

    def __init__(self, folder: Path, kind: SearchKind | None = None) -> None:
        """Open the index; its large parts are read from disk when they are needed.

        Args:
            folder: Folder of the index.
            kind: Kind of search; None takes the kind that the index was made for.

        Raises:
            ConfigError: If there is no index, if it is of another version or damaged, or lacks what the kind needs.
        """
        self.facts = read_facts(folder)
        self.kind = self.facts.kind if kind is None else kind
        if not self.facts.serves(self.kind):
            raise ConfigError(
                f"{folder} was made with --kind {self.facts.kind} and holds no {_part_for(self.facts.kind)}, which "
                f"kind {self.kind} needs: make it again with `verl-pivot index DOCUMENTS --kind hybrid --out {folder}`"
            )
        try:
            self._documents = StoredDocuments(folder)
            self._words = WordScores(folder) if self.kind.needs_words else None
            self._vectors = _VectorRankings(folder, self.facts) if self.kind.needs_vectors else None
        except ConfigError:
            raise
        except (OSError, EOFError, ValueError, KeyError) as error:
            raise damaged(folder, str(error)) from error
        sizes = {self.facts.num_documents, len(self._documents)}
        sizes |= set() if self._vectors is None else {self._vectors.num_documents}
        if len(sizes) > 1:
            raise damaged(folder, f"its parts are for {' and '.join(map(str, sorted(sizes)))} documents")

    def is_empty(self, query: str) -> bool:
        """Whether a query has nothing to look for: no word, or if an encoder reads it, no visible character."""
        reads_text = self.facts.encoder is not None and self.kind.needs_vectors
        return not (query.strip() if reads_text else words_of([query])[0])

    def search(self, queries: Sequence[str], num_documents: int) -> list[list[FoundDocument]]:
        """The best documents of each query, best first; fewer where fewer have anything in common with it.

        Args:
            queries: [num_queries] texts; a query with nothing to look for finds nothing.
            num_documents: Most documents for each query, 1 to `MAX_DOCUMENTS`.
        """
        size = max(1, _MAX_SCORES // self.facts.num_documents)
        rankings = (
            ranking
            for begin in range(0, len(queries), size)
            for ranking in self._rankings(queries[begin : begin + size], num_documents)
        )
        return [[FoundDocument(self._documents[number], score) for number, score in ranking] for ranking in rankings]

    def _rankings(self, queries: Sequence[str], num_documents: int) -> list[list[Ranked]]:
        words = words_of(queries)
        depth = MAX_DOCUMENTS if self.kind is SearchKind.HYBRID else num_documents
        by_words = [] if self._words is None else [best(self._words.scores(each), depth) for each in words]
        by_vectors = [] if self._vectors is None else self._vectors.rankings(queries, words, depth)
        if self.kind is SearchKind.HYBRID:
            return [fused(pair, num_documents) for pair in zip(by_words, by_vectors, strict=True)]
        return by_words or by_vectors


class _AllVectors:
    """Cosines between queries and all documents of an index, by a matrix product."""

    def __init__(self, folder: Path) -> None:
        self._vectors: NDArray[np.float32] = np.asarray(np.load(folder / VECTORS, mmap_mode="r"))

    @property
    def num_documents(self) -> int:
        return len(self._vectors)

    @property
    def num_dimensions(self) -> int:
        return int(self._vectors.shape[1])

    def rankings(self, vectors: NDArray[np.float32], num_documents: int, *, above: float) -> list[list[Ranked]]:
        """As `Neighbours.rankings`."""
        return [best(row, num_documents, above=above) for row in vectors @ self._vectors.T]


class _VectorRankings:
    """Rankings of an index's documents by the cosine."""

    def __init__(self, folder: Path, facts: IndexFacts) -> None:
        self._documents = Neighbours(folder) if facts.approximate else _AllVectors(folder)
        self.num_documents = self._documents.num_documents
        self._queries = LatentQueries(folder) if facts.encoder is None else _EncodedQueries(facts.encoder)
        if isinstance(self._queries, _EncodedQueries):
            self._queries.check(folder, self._documents.num_dimensions)

    def rankings(
        self, queries: Sequence[str], words: Sequence[Sequence[str]], num_documents: int
    ) -> list[list[Ranked]]:
        read = self._queries
        vectors = read.vectors(words) if isinstance(read, LatentQueries) else read.vectors(queries)
        return self._documents.rankings(vectors, num_documents, above=_ROUNDING)


class _EncodedQueries:
    """Vectors of queries, made by the encoder that made the vectors of the documents."""

    def __init__(self, facts: EncoderFacts) -> None:
        from verl_pivot.tools.search_encoder import TextEncoder, TextRole  # imports torch

        self._folder, self._role = facts.folder, TextRole.QUERY
        self._encoder = TextEncoder(facts)

    def check(self, folder: Path, num_dimensions: int) -> None:
        """Refuse an encoder whose vectors have another size than those of the documents."""
        got = self.vectors(["a"]).shape[1]
        if got != num_dimensions:
            raise ConfigError(
                f"the encoder {self._folder} gives vectors of {got} dimensions, but those of {folder} have "
                f"{num_dimensions}: make the index again with --encoder {self._folder}"
            )

    def vectors(self, queries: Sequence[str]) -> NDArray[np.float32]:
        """[num_queries, num_dimensions] unit vectors; 0 for a blank query."""
        vectors = self._encoder.encode(queries, self._role).vectors
        is_blank = [not query.strip() for query in queries]
        vectors[is_blank] = 0.0
        return vectors


@cache
def open_index(folder: Path, kind: SearchKind | None) -> SearchIndex:
    """The index of a folder, opened once per process; raises as `SearchIndex`."""
    return SearchIndex(folder, kind)


def _part_for(kind: SearchKind) -> str:
    """Part that an index lacks if it was made for this kind alone."""
    return "vectors" if kind is SearchKind.BM25 else "words"
