"""Scores of all documents, or several rankings of them -> one ranking, best first; equal scores by document number."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

RANK_CONSTANT = 60
"""Number added to each rank in a fusion of rankings, as in the paper."""


class Ranked(NamedTuple):
    """A document's place in a ranking."""

    number: int
    """Number of the document in its index, from 0."""
    score: float


def best(scores: NDArray[Any], num_documents: int, *, above: float = 0.0) -> list[Ranked]:
    """The documents with the highest scores.

    Args:
        scores: [num_documents of the index] one score for each document.
        num_documents: Most documents to return, >= 1.
        above: Score that a document must exceed.
    """
    found = np.flatnonzero(scores > above)
    values = scores[found]
    if len(found) > num_documents:
        least = np.partition(values, -num_documents)[-num_documents]
        is_kept = values >= least
        found, values = found[is_kept], values[is_kept]
    order = np.lexsort((found, -values))[:num_documents]
    return [Ranked(int(found[place]), float(values[place])) for place in order]


def fused(rankings: Sequence[Sequence[Ranked]], num_documents: int) -> list[Ranked]:
    """One ranking by the sum of 1 / (60 + rank); a ranking that lacks a document adds nothing to the document's sum.

    Source: reciprocal rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009, section 2).
    """
    sums: defaultdict[int, float] = defaultdict(float)
    for ranking in rankings:
        for rank, document in enumerate(ranking, start=1):
            sums[document.number] += 1.0 / (RANK_CONSTANT + rank)
    ordered = sorted(sums.items(), key=lambda each: (-each[1], each[0]))
    return [Ranked(*each) for each in ordered[:num_documents]]
