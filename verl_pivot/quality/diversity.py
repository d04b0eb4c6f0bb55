"""Filter `diversity`: clusters trajectories by the sequence of tools that they call, and limits each cluster's size."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import groupby

from pydantic import Field
from rapidfuzz import process
from rapidfuzz.distance import Levenshtein

from verl_pivot.quality.contract import Chart, DatasetFilter, FilterOptions, Finding, Ruling, shortened
from verl_pivot.quality.profile_totals import ProfileTotals
from verl_pivot.quality.registry import register_filter
from verl_pivot.quality.sampling import shuffled
from verl_pivot.types import Json, Trajectory

_NUM_LISTED = 20
_SURROGATES = range(0xD800, 0xE000)


class DiversityOptions(FilterOptions):
    max_per_cluster: int | None = Field(default=None, ge=1)
    """Maximum number of trajectories that stay of a cluster; None sets no limit."""
    max_share: float | None = Field(default=None, gt=0.0, le=1.0)
    """Largest share of one cluster among the trajectories that reach this filter; at least one of a cluster stays."""
    min_similarity: float = Field(default=1.0, gt=0.0, le=1.0)
    """Minimum similarity to a cluster's leader, 1 - edit distance / longer length; at 1 a cluster has one sequence."""
    merge_repeats: bool = True
    """Whether calls of one tool in a row count as one."""
    seed: int = 0
    """Seed of the random choice of the trajectories that stay."""


@register_filter("diversity", options=DiversityOptions)
class Diversity(DatasetFilter[str]):
    """Keeps a limited number of each cluster; without a limit it only reports the clusters."""

    def __init__(self, options: DiversityOptions) -> None:
        self._options = options

    def feature(self, trajectory: Trajectory) -> str:
        """Names of the called tools in order, as JSON."""
        names = [call.name for message in trajectory.messages for call in message.tool_calls]
        if self._options.merge_repeats:
            names = [name for name, _ in groupby(names)]
        return json.dumps(names)

    def decide(self, ids: Sequence[str], features: Sequence[str], profile: ProfileTotals | None) -> Ruling:
        counts = Counter(features)
        leader_of = _leaders(counts, self._options.min_similarity)
        clusters: dict[str, list[int]] = {}
        for position, sequence in enumerate(features):
            clusters.setdefault(leader_of[sequence], []).append(position)
        cap = self._cap(len(ids))
        dropped = {}
        for leader, members in clusters.items():
            if len(members) > cap:
                detail = f"one of a cluster of {len(members)}, {cap} of them are kept: {_readable(leader)}"
                why = Finding(reason="crowded_cluster", detail=shortened(detail))
                dropped.update(dict.fromkeys(shuffled(members, ids, self._options.seed)[int(cap) :], why))
        sizes = {leader: len(members) for leader, members in clusters.items()}
        return _ruling(dropped, sizes, cap)

    def _cap(self, num_trajectories: int) -> float:
        options = self._options
        caps = [] if options.max_per_cluster is None else [options.max_per_cluster]
        if options.max_share is not None:
            caps.append(max(1, math.floor(Fraction(str(options.max_share)) * num_trajectories)))
        return min(caps, default=math.inf)


def _leaders(counts: Mapping[str, int], min_similarity: float) -> dict[str, str]:
    """For each sequence of tools, the sequence that leads its cluster.

    In the order of their frequency, each sequence joins the most similar leader so far, or leads a new cluster.
    """
    if min_similarity == 1.0:
        return {sequence: sequence for sequence in counts}
    letters: dict[str, str] = {}
    leaders: dict[int, dict[str, str]] = {}
    found: dict[str, str] = {}
    for sequence in sorted(counts, key=lambda sequence: (-counts[sequence], sequence)):
        word = "".join(letters.setdefault(name, _letter(len(letters))) for name in json.loads(sequence))
        best = _most_similar(word, leaders, Fraction(str(min_similarity)))
        if best is None:
            leaders.setdefault(len(word), {})[word] = sequence
        found[sequence] = sequence if best is None else best
    return found


def _letter(number: int) -> str:
    """Character that stands for one tool, so that a sequence is a string, whose edit distance is computed fastest."""
    return chr(number if number < _SURROGATES.start else number + len(_SURROGATES))


def _most_similar(word: str, leaders: Mapping[int, Mapping[str, str]], min_similarity: Fraction) -> str | None:
    """The leader most similar to a word, None if none is similar enough; compares only leaders of possible lengths."""
    lengths = range(math.ceil(len(word) * min_similarity), math.floor(len(word) / min_similarity) + 1)
    best, least = None, 1 - min_similarity
    for length in sorted(lengths, key=lambda length: abs(length - len(word))):
        longer = max(length, len(word))
        found = process.extractOne(
            word, leaders.get(length, {}).keys(), scorer=Levenshtein.distance, score_cutoff=math.floor(least * longer)
        )
        if found is not None and (best is None or Fraction(found[1], longer) < least):
            best, least = leaders[length][found[0]], Fraction(found[1], max(longer, 1))
    return best


def _ruling(dropped: dict[int, Finding], sizes: Mapping[str, int], cap: float) -> Ruling:
    largest = sorted(sizes, key=lambda leader: (-sizes[leader], leader))[:_NUM_LISTED]
    after = {leader: int(min(size, cap)) for leader, size in sizes.items()}
    listed: list[Json] = [
        {"actions": json.loads(leader), "size": sizes[leader], "kept": after[leader]} for leader in largest
    ]
    chart = Chart(
        title=f"largest of {len(sizes)} clusters of tool sequences",
        labels=tuple(str(number) for number in range(1, len(largest) + 1)),
        series={
            "before": tuple(float(sizes[leader]) for leader in largest),
            "after": tuple(float(after[leader]) for leader in largest),
        },
    )
    num_by_size = Counter(sizes.values())
    facts: dict[str, Json] = {
        "num_clusters": len(sizes),
        "num_clusters_by_size": {str(size): num_by_size[size] for size in sorted(num_by_size)},
        "largest": listed,
    }
    note = f"{len(sizes)} clusters, the largest of {max(sizes.values(), default=0)}"
    return Ruling(dropped=dropped, note=note, facts=facts, charts=(chart,))


def _readable(sequence: str) -> str:
    return ", ".join(json.loads(sequence)) or "no calls"
