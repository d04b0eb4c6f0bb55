"""Unit vectors of documents -> a FAISS index of them, which compares a query only with documents near it."""

import math
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from verl_pivot.extras import extra
from verl_pivot.tools.search_ranking import Ranked

NEIGHBOURS = "vectors.faiss"
"""File of an index with its vectors in cells, in place of `VECTORS`."""
_DOCUMENTS_OF_A_CELL = 39
"""Fewest documents per cell, on average, that FAISS recommends for learning cells."""
_SHARE_SEARCHED = 16
"""One in this many cells is searched for a query."""
_FEWEST_SEARCHED = 16


def write_neighbours(folder: Path, vectors: NDArray[np.float32]) -> None:
    """Write unit vectors, [num_documents, num_dimensions], in 4 sqrt(num_documents) cells around learnt centres.

    Raises:
        ConfigError: If FAISS is not installed, with the command that installs it.
    """
    with extra("faiss"):
        import faiss
    num_documents, num_dimensions = vectors.shape
    num_cells = max(1, min(math.isqrt(16 * num_documents), num_documents // _DOCUMENTS_OF_A_CELL))
    centres = faiss.IndexFlatIP(num_dimensions)
    index = faiss.IndexIVFFlat(centres, num_dimensions, num_cells, faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid = 1  # no warning about an index of a few documents, which has one cell
    index.train(vectors)
    index.add(vectors)
    faiss.write_index(index, str(folder / NEIGHBOURS))


class Neighbours:
    """Documents with the largest cosine to a query, among those in the cells nearest to it."""

    def __init__(self, folder: Path) -> None:
        """Open the index; vectors are read from disk when they are needed.

        Raises:
            ConfigError: If FAISS is not installed, with the command that installs it.
            OSError: If the file cannot be read.
        """
        with extra("faiss"):
            import faiss
        try:
            index = cast("faiss.IndexIVFFlat", faiss.read_index(str(folder / NEIGHBOURS), faiss.IO_FLAG_MMAP))
        except RuntimeError as error:
            raise OSError(f"FAISS cannot read {NEIGHBOURS}") from error
        self._index = index
        self._index.nprobe = max(_FEWEST_SEARCHED, self._index.nlist // _SHARE_SEARCHED)

    @property
    def num_documents(self) -> int:
        return int(self._index.ntotal)

    @property
    def num_dimensions(self) -> int:
        return int(self._index.d)

    def rankings(self, vectors: NDArray[np.float32], num_documents: int, *, above: float) -> list[list[Ranked]]:
        """For each of the unit vectors, [num_queries, num_dimensions], the nearest documents, nearest first.

        Args:
            vectors: Vectors of the queries.
            num_documents: Most documents of each.
            above: Cosine that a document must exceed.
        """
        cosines, numbers = self._index.search(vectors, num_documents)
        return [
            [
                Ranked(number, cosine)
                for cosine, number in sorted(zip(*row, strict=True), key=lambda each: (-each[0], each[1]))
                if number >= 0 and cosine > above  # FAISS fills missing places with -1
            ]
            for row in zip(cosines.tolist(), numbers.tolist(), strict=True)
        ]
