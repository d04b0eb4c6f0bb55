"""Filter `near_duplicates`: keeps one of several trajectories with nearly the same words (MinHash and LSH)."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from verl_pivot.data.json_values import encode_json
from verl_pivot.extras import extra
from verl_pivot.quality.contract import DatasetFilter, FilterOptions, Finding, Ruling
from verl_pivot.quality.ngrams import ngram_hashes, words_of
from verl_pivot.quality.profile_totals import ProfileTotals
from verl_pivot.quality.registry import register_filter
from verl_pivot.types import Role, Trajectory

with extra("data"):
    from datasketch import MinHash  # type: ignore[import-untyped]  # it ships no types


_RECALL = 0.95
"""Probability that two trajectories at the threshold are compared at all."""


class NearDuplicatesOptions(FilterOptions):
    threshold: float = Field(default=0.8, gt=0.0, le=1.0)
    """Smallest Jaccard similarity of the sets of shingles of two duplicates, as MinHash estimates it."""
    keep: Literal["first", "shortest"] = "first"
    """Which of several similar trajectories stays: the first, or the one of fewest words (the first of equals)."""
    text: Literal["all", "user", "assistant"] = "all"
    """Messages that are compared; never the system prompt and the tools, which a whole file may share."""
    shingle_words: int = Field(default=5, ge=1)
    """Number of consecutive words that make a shingle."""
    num_permutations: int = Field(default=64, ge=16, le=1024)
    """Hashes per trajectory, of 4 bytes each; the estimate's standard error is at most 0.5 / sqrt(num_permutations)."""
    seed: int = Field(default=1, ge=0, lt=2**32)
    """Seed of the hashes."""


@register_filter("near_duplicates", options=NearDuplicatesOptions)
class NearDuplicates(DatasetFilter[tuple[int, bytes]]):
    def __init__(self, options: NearDuplicatesOptions) -> None:
        self._options = options
        self._bands = bands_for(options.threshold, options.num_permutations)

    def feature(self, trajectory: Trajectory) -> tuple[int, bytes]:
        """Number of words, and MinHash signature as bytes."""
        options = self._options
        words = words_of(_text(trajectory, options.text))
        shingles = ngram_hashes(words, min(options.shingle_words, max(len(words), 1)))
        sketch = MinHash(
            num_perm=options.num_permutations,
            hashfunc=int,
            permutations=_permutations(options.num_permutations, options.seed),
            scheme="affine32",
        )
        sketch.update_batch((shingles & np.uint64(0xFFFFFFFF)).tolist())
        return len(words), sketch.hashvalues.tobytes()

    def decide(
        self, ids: Sequence[str], features: Sequence[tuple[int, bytes]], profile: ProfileTotals | None
    ) -> Ruling:
        """Drop each trajectory that is similar to one kept before it; one without words is similar to none."""
        order = [position for position in range(len(ids)) if features[position][0]]
        if self._options.keep == "shortest":
            order.sort(key=lambda position: (features[position][0], position))
        joined = b"".join(signature for _, signature in features)
        signatures = np.frombuffer(joined, dtype=np.uint32).reshape(len(ids), self._options.num_permutations)
        dropped = {}
        for position, (similar, similarity) in self._duplicates(signatures, order):
            dropped[position] = Finding(reason="near_duplicate", detail=f"repeats {ids[similar]} ({similarity:.2f})")
        return Ruling(dropped=dropped)

    def _duplicates(
        self, signatures: NDArray[np.uint32], order: Sequence[int]
    ) -> Iterator[tuple[int, tuple[int, float]]]:
        """(position, (position of the most similar kept trajectory, similarity)) of each trajectory to drop."""
        buckets = _buckets(signatures, self._bands)
        kept: dict[int, list[int]] = {}
        for position in order:
            shared = [bucket for bucket in buckets[position].tolist() if bucket >= 0]
            candidates = sorted({other for bucket in shared for other in kept.get(bucket, ())})
            if candidates:
                similarities = (signatures[candidates] == signatures[position]).mean(axis=1)
                best = int(similarities.argmax())
                if similarities[best] >= self._options.threshold:
                    yield position, (candidates[best], float(similarities[best]))
                    continue
            for bucket in shared:
                kept.setdefault(bucket, []).append(position)


def _text(trajectory: Trajectory, speaker: str) -> str:
    parts = []
    for message in trajectory.messages:
        is_counted = message.role is not Role.SYSTEM if speaker == "all" else message.role.value == speaker
        if is_counted:
            parts.append(message.content)
            parts.extend(f"{call.name} {encode_json(call.arguments, sort_keys=True)}" for call in message.tool_calls)
    return "\n".join(parts)


def bands_for(threshold: float, num_permutations: int) -> list[tuple[int, int]]:
    """[num_bands] (start, end) of the columns that must be equal for two trajectories to be compared.

    Bands are as wide as possible while two trajectories of similarity s = threshold agree in at least one of them with
    probability 1 - (1 - s^width)^num_bands >= 0.95 (Leskovec, Rajaraman and Ullman, Mining of Massive Datasets,
    section 3.4). datasketch's MinHashLSH balances misses against needless comparisons and finds a third of these pairs.
    """
    for width in range(num_permutations, 1, -1):
        num_bands = num_permutations // width
        if 1 - (1 - threshold**width) ** num_bands >= _RECALL:
            return [(band * width, (band + 1) * width) for band in range(num_bands)]
    return [(column, column + 1) for column in range(num_permutations)]


def _buckets(signatures: NDArray[np.uint32], bands: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """[num_trajectories, num_bands] number of the bucket that a trajectory falls into, -1 where it is alone."""
    buckets = np.full((len(signatures), len(bands)), -1, dtype=np.int64)
    first = 0
    for band, (start, end) in enumerate(bands):
        rows = np.ascontiguousarray(signatures[:, start:end]).view(np.dtype((np.void, 4 * (end - start)))).ravel()
        _, bucket, size = np.unique(rows, return_inverse=True, return_counts=True)
        buckets[:, band] = np.where(size[bucket] > 1, bucket + first, -1)
        first += len(size)
    return buckets


@lru_cache(maxsize=8)
def _permutations(num_permutations: int, seed: int) -> NDArray[np.uint32]:
    permutations: NDArray[np.uint32] = MinHash(num_perm=num_permutations, seed=seed, scheme="affine32").permutations
    return permutations
