"""Words of documents -> their latent semantic vectors, and the words of queries -> vectors of the same space."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array  # type: ignore[import-untyped]
from scipy.sparse.linalg import svds  # type: ignore[import-untyped]

NUM_DIMENSIONS = 128
"""Most dimensions of a latent vector; fewer where there are fewer documents or words."""
_VOCABULARY, _WEIGHTS, _DIRECTIONS = "words.json", "word_weights.npy", "word_directions.npy"
VECTORS = "vectors.npy"
"""File of an index with one unit vector for each document: [num_documents, num_dimensions], float32."""


class _Decomposition(NamedTuple):
    vectors: NDArray[np.float32]
    """[num_documents, num_dimensions]"""
    directions: NDArray[np.float32]
    """[num_words, num_dimensions]"""


def write_latent_vectors(folder: Path, words: Sequence[Sequence[str]], *, seed: int = 0) -> None:
    """Write vectors of documents by a truncated singular value decomposition of their tf-idf matrix.

    A word that occurs n times weighs (1 + ln n) idf, with idf = 1 + ln((1 + N) / (1 + the documents that have it)), in
    rows of length 1. Source: latent semantic analysis (Deerwester et al., JASIS 1990).

    Args:
        folder: Folder of the index.
        words: [num_documents] the words of each document.
        seed: Seed of the vector from which the decomposition begins.
    """
    counts = [Counter(each) for each in words]
    frequencies = Counter(word for each in counts for word in each)
    rows = {word: row for row, word in enumerate(frequencies)}
    weights = 1.0 + np.log((1 + len(counts)) / (1 + np.fromiter(frequencies.values(), float, len(rows))))
    found = _decomposed(_weighted(counts, rows, weights), seed)
    (folder / _VOCABULARY).write_bytes(msgspec.json.encode(list(rows)))
    np.save(folder / _WEIGHTS, weights)
    np.save(folder / _DIRECTIONS, found.directions)
    np.save(folder / VECTORS, unit_rows(found.vectors))


class LatentQueries:
    """Vectors of queries in the space of an index's documents."""

    def __init__(self, folder: Path) -> None:
        """Open the words of the space; raises OSError or ValueError if they cannot be read."""
        vocabulary = msgspec.json.decode((folder / _VOCABULARY).read_bytes(), type=list[str])
        self._rows = {word: row for row, word in enumerate(vocabulary)}
        self._weights = np.load(folder / _WEIGHTS)
        self._directions = np.load(folder / _DIRECTIONS, mmap_mode="r")

    def vectors(self, words: Sequence[Sequence[str]]) -> NDArray[np.float32]:
        """[num_queries, num_dimensions] unit vectors; 0 for a query that has no word of the documents."""
        known = [Counter(word for word in each if word in self._rows) for each in words]
        matrix = _weighted(known, self._rows, self._weights)
        used = np.unique(matrix.indices)
        return unit_rows(np.asarray(matrix[:, used] @ self._directions[used], dtype=np.float32))


def unit_rows(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """Divide each row by its length; a row of length 0 stays as it is."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: NDArray[np.float32] = (vectors / np.where(lengths == 0.0, 1.0, lengths)).astype(np.float32)
    return unit


def _weighted(counts: Sequence[Counter[str]], rows: dict[str, int], weights: NDArray[np.float64]) -> csr_array:
    """[len(counts), num_words] tf-idf in rows of length 1."""
    ends = np.cumsum([0, *(len(each) for each in counts)])
    columns = np.fromiter((rows[word] for each in counts for word in each), np.int64, ends[-1])
    numbers = np.fromiter((number for each in counts for number in each.values()), float, ends[-1])
    values = (1.0 + np.log(numbers)) * weights[columns]
    lengths = np.sqrt(np.bincount(np.repeat(np.arange(len(counts)), np.diff(ends)), values**2, len(counts)))
    return csr_array((values / np.repeat(lengths, np.diff(ends)), columns, ends), shape=(len(counts), len(rows)))


def _decomposed(matrix: csr_array, seed: int) -> _Decomposition:
    if min(matrix.shape) <= NUM_DIMENSIONS:  # few documents or few words: all dimensions there are
        left, values, right = np.linalg.svd(matrix.toarray(), full_matrices=False)
    else:
        begin = np.random.default_rng(seed).standard_normal(min(matrix.shape))
        left, values, right = svds(matrix, k=NUM_DIMENSIONS, v0=begin)
    return _Decomposition((left * values).astype(np.float32), np.ascontiguousarray(right.T, dtype=np.float32))
