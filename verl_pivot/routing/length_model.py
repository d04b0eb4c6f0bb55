"""Response lengths of the rollouts so far -> forecast of the most KV tokens that running rollouts hold at once."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

_NUM_BINS = 48
_UNKNOWN_WEIGHT = 8.0
"""Weight of the assumed lengths while none are known, as a number of rollouts."""
Floats = npt.NDArray[np.float64]


class LengthModel:
    """Survival function of response lengths: the probability that a response is longer than some number of tokens.

    A rollout that still runs counts as one of at least its current length. While no lengths are known, the probability
    of a length falls evenly from 0 tokens to the budget, so that the mean length is a third of the budget.

    Source: the estimator of Kaplan and Meier (1958).
    """

    def __init__(
        self, budget: int, *, prior: Sequence[int] = (), prior_weight: float = 64.0, bin_tokens: int | None = None
    ) -> None:
        """
        Args:
            budget: Maximum number of tokens of a response, observations included.
            prior: [num_rollouts] response lengths of the previous step.
            prior_weight: Number of rollouts that the whole previous step counts as. A previous step with fewer rollouts
                counts as the number that it has.
            bin_tokens: Width of a bin of lengths; budget / 48 by default.
        """
        self._budget = budget
        self._bin_tokens = bin_tokens or -(-budget // _NUM_BINS)
        self.prior_tokens = sum(prior)
        """Tokens of all responses of the previous step."""
        self.num_bins = -(-budget // self._bin_tokens) + 1
        self._lengths: list[int] = []
        self._ended = np.zeros(self.num_bins)
        self._prior = np.zeros(self.num_bins)
        weight = min(prior_weight, len(prior))
        assumed = range(0, budget + 1, self._bin_tokens)
        np.add.at(self._prior, self.bins(prior), weight / max(1, len(prior)))
        falling = np.arange(len(assumed), 0, -1.0)
        unknown = _UNKNOWN_WEIGHT * (1 - weight / prior_weight)
        np.add.at(self._prior, self.bins(assumed), unknown * falling / falling.sum())
        self.update(())

    @property
    def num_ended(self) -> int:
        """Rollouts of this step that have ended."""
        return len(self._lengths)

    def next_step(self) -> "LengthModel":
        """The model at the beginning of the next step, with the lengths of this step as its prior."""
        return LengthModel(self._budget, prior=self._lengths)

    def bins(self, tokens: Sequence[float]) -> npt.NDArray[np.int64]:
        """[num_lengths] bin of each length."""
        bins = np.asarray(tokens, dtype=np.float64).astype(np.int64) // self._bin_tokens
        return np.minimum(bins, self.num_bins - 1)

    def add_ended(self, tokens: int) -> None:
        """Record a rollout that has ended at this length."""
        self._ended[min(tokens // self._bin_tokens, self.num_bins - 1)] += 1
        self._lengths.append(tokens)

    def survival(self, running: Iterable[float], maybe_ended: Iterable[float] = ()) -> Floats:
        """[num_bins] probability that a rollout reaches the beginning of each bin.

        Args:
            running: [num_running] current lengths of the rollouts that have not ended.
            maybe_ended: Lengths of rollouts that count as ended in this call alone.
        """
        ended = self._ended + self._prior + np.bincount(self.bins(list(maybe_ended)), minlength=self.num_bins)
        censored = np.bincount(self.bins(list(running)), minlength=self.num_bins)
        at_risk = np.cumsum((ended + censored)[::-1])[::-1]
        hazard = np.divide(ended, at_risk, out=np.zeros(self.num_bins), where=at_risk > 0)
        return np.concatenate([[1.0], np.cumprod(1.0 - hazard)[:-1]])

    def update(self, running: Iterable[float], maybe_ended: Iterable[float] = ()) -> None:
        """Bring the forecast that `peak` uses up to date with the rollouts that have ended.

        Args:
            running: [num_running] current lengths of the rollouts that have not ended.
            maybe_ended: Lengths of rollouts that count as ended in this call alone.
        """
        survival = self.survival(running, maybe_ended)
        bins = np.arange(self.num_bins)
        later = bins[:, None] + bins[None, :]
        reach = np.where(later < self.num_bins, survival[np.minimum(later, self.num_bins - 1)], 0.0)
        chance = np.minimum(1.0, reach / np.where(survival > 0, survival, 1.0)[:, None])
        tokens = (later + 0.5) * self._bin_tokens
        self._mean = tokens * chance
        self._variance = tokens**2 * chance * (1.0 - chance)

    def peak(self, tokens: Sequence[float], deviations: float) -> float:
        """Forecast of the most KV tokens that these rollouts will hold at once, if all grow at the same speed.

        Args:
            tokens: [num_rollouts] current length of each response.
            deviations: Standard deviations that are added to the mean.
        """
        counts = np.bincount(self.bins(tokens), minlength=self.num_bins)
        forecast = counts @ self._mean + deviations * np.sqrt(counts @ self._variance)
        return float(forecast.max())
