"""Filter `near_duplicates`: of trajectories with nearly the same words one is kept (MinHash and LSH)."""

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


class NearDuplicatesOptions(FilterOptions):
    threshold: float = Field(default=0.8, gt=0.0, le=1.0)
    """Jaccard similarity of the sets of shingles, as MinHash estimates it."""
    keep: Literal["first", "shortest"] = "first"
    """Which of several alike trajectories stays: the first, or the one of fewest words (the first of equals)."""
    text: Literal["all", "user", "assistant"] = "all"
    """Words that are compared; never those of the system prompt and the tools, which a whole file shares."""
    shingle_words: int = Field(default=5, ge=1)
    num_permutations: int = Field(default=64, ge=16, le=1024)
    """The estimate's standard error is at most 0.5 / sqrt(num_permutations); 4 bytes each per trajectory."""
    seed: int = Field(default=1, ge=0, lt=2**32)


@register_filter("near_duplicates", options=NearDuplicatesOptions)
class NearDuplicates(DatasetFilter[tuple[int, bytes]]):
    def __init__(self, options: NearDuplicatesOptions) -> None:
        self._options = options
        self._bands = bands_for(options.threshold, options.num_permutations)

    def feature(self, trajectory: Trajectory) -> tuple[int, bytes]:
        """(number of words, signature)"""
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
        """Each trajectory in turn is dropped if one that is kept already is alike."""
        order = list(range(len(ids)))
        if self._options.keep == "shortest":
            order.sort(key=lambda position: (features[position][0], position))
        joined = b"".join(signature for _, signature in features)
        signatures = np.frombuffer(joined, dtype=np.uint32).reshape(len(ids), self._options.num_permutations)
        dropped = {}
        for position, (twin, similarity) in self._twins(signatures, order):
            dropped[position] = Finding(reason="near_duplicate", detail=f"repeats {ids[twin]} ({similarity:.2f})")
        return Ruling(dropped=dropped)

    def _twins(self, signatures: NDArray[np.uint32], order: Sequence[int]) -> Iterator[tuple[int, tuple[int, float]]]:
        """(position, (most similar kept one, similarity)) of each that goes."""
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


def _text(trajectory: Trajectory, whose: str) -> str:
    parts = []
    for message in trajectory.messages:
        is_counted = message.role is not Role.SYSTEM if whose == "all" else message.role.value == whose
        if is_counted:
            parts.append(message.content)
            parts.extend(f"{call.name} {encode_json(call.arguments, sort_keys=True)}" for call in message.tool_calls)
    return "\n".join(parts)


def bands_for(threshold: float, num_permutations: int) -> list[tuple[int, int]]:
    """[num_bands] (start, end) of the columns that must be equal for two trajectories to be compared.

    The widest bands with which two of similarity s = threshold share one with probability
    1 - (1 - s^width)^num_bands >= 0.95 (Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, section 3.4).
    datasketch's MinHashLSH balances misses against needless comparisons instead and finds a third of these pairs.
    """
    for width in range(num_permutations, 1, -1):
        num_bands = num_permutations // width
        if 1 - (1 - threshold**width) ** num_bands >= _RECALL:
            return [(band * width, (band + 1) * width) for band in range(num_bands)]
    return [(column, column + 1) for column in range(num_permutations)]


def _buckets(signatures: NDArray[np.uint32], bands: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """[num_trajectories, num_bands] which bucket a trajectory falls into, -1 where it is alone in it."""
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
