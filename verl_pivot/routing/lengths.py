"""Lengths of rollouts so far -> how much KV cache those in flight will need."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

_NUM_BINS = 48
_UNKNOWN_WEIGHT = 8.0
"""Rollouts that outweigh knowing nothing."""
Floats = npt.NDArray[np.float64]


class LengthModel:
    """Survival of response lengths by Kaplan and Meier (1958): rollouts that still run count until where they are.

    With nothing known every length up to the budget is as likely as any other, which is long for most: too long a
    forecast costs little, too short a one costs evictions.
    """

    def __init__(
        self, budget: int, *, prior: Sequence[int] = (), prior_weight: float = 64.0, bin_tokens: int | None = None
    ) -> None:
        """
        Args:
            budget: Tokens that a response may have.
            prior: Final lengths of the step before.
            prior_weight: Rollouts of this step that outweigh it; fewer of the one before count for no more than they
                are.
            bin_tokens: Width of a bin; a 48th of the budget unless given.
        """
        self._budget = budget
        self._bin = bin_tokens or -(-budget // _NUM_BINS)
        self.prior_tokens = sum(prior)
        """Of the whole step before."""
        self.num_bins = -(-budget // self._bin) + 1
        self._lengths: list[int] = []
        self._ended = np.zeros(self.num_bins)
        self._prior = np.zeros(self.num_bins)
        weight = min(prior_weight, len(prior))
        anything = range(0, budget + 1, self._bin)
        np.add.at(self._prior, self.bins(prior), weight / max(1, len(prior)))
        np.add.at(self._prior, self.bins(anything), _UNKNOWN_WEIGHT * (1 - weight / prior_weight) / len(anything))
        self.learn(())

    @property
    def num_ended(self) -> int:
        return len(self._lengths)

    def next_step(self) -> "LengthModel":
        """What is known before the next rollouts: how long these were."""
        return LengthModel(self._budget, prior=self._lengths)

    def bins(self, tokens: Sequence[float]) -> npt.NDArray[np.int64]:
        """[n] the bin of each length."""
        return np.minimum(np.asarray(tokens, dtype=np.float64).astype(np.int64) // self._bin, self.num_bins - 1)

    def end(self, tokens: int) -> None:
        """A rollout has ended at this length."""
        self._ended[min(tokens // self._bin, self.num_bins - 1)] += 1
        self._lengths.append(tokens)

    def survival(self, running: Iterable[float]) -> Floats:
        """[num_bins] the chance that a rollout reaches the beginning of each bin."""
        ended = self._ended + self._prior
        censored = np.bincount(self.bins(list(running)), minlength=self.num_bins)
        at_risk = np.cumsum((ended + censored)[::-1])[::-1]
        hazard = np.divide(ended, at_risk, out=np.zeros(self.num_bins), where=at_risk > 0)
        return np.concatenate([[1.0], np.cumprod(1.0 - hazard)[:-1]])

    def learn(self, running: Iterable[float]) -> None:
        """Take in what has ended, and how far the others are."""
        survival = self.survival(running)
        bins = np.arange(self.num_bins)
        later = bins[:, None] + bins[None, :]
        reach = np.where(later < self.num_bins, survival[np.minimum(later, self.num_bins - 1)], 0.0)
        chance = np.minimum(1.0, reach / np.where(survival > 0, survival, 1.0)[:, None])
        tokens = (later + 0.5) * self._bin
        self._mean = tokens * chance
        self._variance = tokens**2 * chance * (1.0 - chance)

    def peak(self, tokens: Sequence[float], deviations: float) -> float:
        """KV tokens of these rollouts together when they will need most, each going on by as many tokens as the others.

        Args:
            tokens: [num_rollouts] of each response so far.
            deviations: Standard deviations above the mean.
        """
        counts = np.bincount(self.bins(tokens), minlength=self.num_bins)
        forecast = counts @ self._mean + deviations * np.sqrt(counts @ self._variance)
        return float(forecast.max())
