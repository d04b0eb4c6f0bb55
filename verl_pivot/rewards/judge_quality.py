"""Scores of a judge and the labels of the same turns -> how well they agree: pairs, ranks, calibration."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr  # type: ignore[import-untyped]

NUM_BINS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PairAgreement:
    """Order that a judge's scores give to the pairs of turns whose labels differ.

    The judge scores each turn alone, so the order does not depend on which turn of a pair comes first, and each pair
    counts once.
    """

    num_pairs: int
    num_right: int
    """Pairs in which the turn with the higher label has the higher score."""
    num_tied: int
    """Pairs in which both turns have the same score."""

    @property
    def accuracy(self) -> float | None:
        """Share of the pairs in the right order; a tie is not the right order. None without a pair."""
        return self.num_right / self.num_pairs if self.num_pairs else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationBin:
    """Turns whose scores lie between two bounds."""

    least: float
    most: float
    num_turns: int
    mean_score: float
    mean_label: float


def pair_agreement(scores: Sequence[float], labels: Sequence[float], groups: Sequence[str]) -> PairAgreement:
    """Agreement over all pairs of turns within a group.

    Args:
        scores: [num_turns] scores of the judge.
        labels: [num_turns]
        groups: [num_turns] name of each turn's group; turns are compared within their group.

    Example:
        pair_agreement([0.9, 0.1], [1.0, 0.0], ["", ""]).accuracy  # 1.0
    """
    members: dict[str, list[int]] = {}
    for position, group in enumerate(groups):
        members.setdefault(group, []).append(position)
    all_scores, all_labels = np.asarray(scores, dtype=float), np.asarray(labels, dtype=float)
    num_pairs = num_right = num_tied = 0
    for positions in members.values():
        of_scores, of_labels = all_scores[positions], all_labels[positions]
        for number in range(len(positions)):
            higher = of_labels[number + 1 :] - of_labels[number]
            difference = (of_scores[number + 1 :] - of_scores[number])[higher != 0.0]
            num_pairs += len(difference)
            num_right += int(np.sum(np.sign(difference) == np.sign(higher[higher != 0.0])))
            num_tied += int(np.sum(difference == 0.0))
    return PairAgreement(num_pairs=num_pairs, num_right=num_right, num_tied=num_tied)


def rank_correlation(scores: Sequence[float], labels: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None where all scores or all labels are the same."""
    if len(set(scores)) < 2 or len(set(labels)) < 2:
        return None
    return float(spearmanr(scores, labels).statistic)


def calibration(scores: Sequence[float], labels: Sequence[float]) -> list[CalibrationBin]:
    """Mean score and mean label in each tenth of [0, 1] that has a turn; a score of 1 is in the last tenth."""
    of_scores, of_labels = np.asarray(scores, dtype=float), np.asarray(labels, dtype=float)
    numbers: NDArray[np.int64] = np.minimum((of_scores * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    return [
        CalibrationBin(
            least=number / NUM_BINS,
            most=(number + 1) / NUM_BINS,
            num_turns=int(np.sum(numbers == number)),
            mean_score=float(of_scores[numbers == number].mean()),
            mean_label=float(of_labels[numbers == number].mean()),
        )
        for number in range(NUM_BINS)
        if np.any(numbers == number)
    ]


def calibration_error(bins: Sequence[CalibrationBin]) -> float:
    """Expected calibration error: the mean over turns of |mean score - mean label| in the turn's bin."""
    num_turns = sum(each.num_turns for each in bins)
    return sum(each.num_turns * abs(each.mean_score - each.mean_label) for each in bins) / num_turns
