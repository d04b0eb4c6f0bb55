"""Curriculum: rewards of past groups -> the pivot to draw next; pivots whose rewards stop varying are retired."""

import math
import random
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from pydantic import ConfigDict, Field

from verl_pivot.errors import DataError
from verl_pivot.validation import Options, validated

_UNMEASURED_VARIANCE = 0.25
"""Largest variance of a reward in [0, 1], assumed for pivots without a profile, so that they are drawn early."""


class CurriculumOptions(Options):
    """Options `pivot.curriculum`: when a pivot is retired and tried again, and in which order the others are drawn.

    PivotRL (arXiv:2603.21383) selects pivots once, by the variance under the initial policy; its figure 3 shows this
    variance shrink in training. Retiring pivots is our addition. The weight follows theorem 3.2: GRPO's gradient at a
    state scales with the standard deviation of the rewards.
    """

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    enabled: bool = False
    decay: float = Field(0.0, ge=0.0, lt=1.0)
    """Weight of the old value in the running mean and variance at each visit; 0 uses the last group alone."""
    retire_variance: float = Field(0.0, ge=0.0)
    """Running variance up to which a visit counts as flat."""
    retire_visits: int = Field(2, ge=1)
    """Number of flat visits in a row after which a pivot is retired."""
    weight_exponent: float = Field(1.0, ge=0.0)
    """Exponent of the weight, which is running standard deviation ** exponent. Pivots of larger weight tend to come
    earlier in an epoch; with 0 all weights are equal."""
    reprofile_every: int = Field(10, ge=0)
    """Training steps between two re-profilings of the retired pivots; 0: never."""
    reprofile_share: float = Field(0.1, gt=0.0, le=0.5)
    """Share of the retired pivots that a re-profiling visits, longest unvisited first; also the largest share of all
    draws that re-profilings may take."""


def parse_options(section: Mapping[str, Any]) -> CurriculumOptions:
    """The options under `pivot.curriculum`.

    Raises:
        ConfigError: If a key is unknown or a value is not allowed.
    """
    return validated(CurriculumOptions, dict(section), "pivot.curriculum")


@dataclass(slots=True)
class PivotRecord:
    """Statistics of one pivot's rewards."""

    mean: float | None = None
    """Running mean of the rewards; before the first visit the mean in the profile. None: never measured."""
    variance: float | None = None
    """Running variance within a group; before the first visit the variance in the profile. None: never measured."""
    num_visits: int = 0
    """Number of groups that were sampled at this pivot."""
    num_flat_visits: int = 0
    """Number of latest visits in a row after which the running variance was at most `retire_variance`."""
    last_step: int = 0
    """Training step of the last visit; 0 before the first."""

    def update(self, rewards: Sequence[float], step: int, options: CurriculumOptions) -> None:
        """Add the rewards of one group that was sampled in a training step."""
        mean, variance = mean_and_variance(rewards)
        self.mean = mean if self.mean is None else options.decay * self.mean + (1 - options.decay) * mean
        if self.variance is not None:
            variance = options.decay * self.variance + (1 - options.decay) * variance
        self.variance = variance
        self.num_visits += 1
        self.num_flat_visits = self.num_flat_visits + 1 if variance <= options.retire_variance else 0
        self.last_step = step


class Curriculum:
    """Draws pivots in epochs: each active pivot once, in an order that depends only on seed, epoch and records.

    No batch holds a pivot twice: pivots left at the end of an epoch, fewer than a batch, begin the next epoch. If fewer
    pivots than a batch are active, the longest unvisited retired ones fill the batch, so that training can go on.
    """

    def __init__(
        self,
        records: Iterable[PivotRecord],
        options: CurriculumOptions,
        *,
        identity: str,
        seed: int,
        shuffle: bool,
        batch_size: int,
    ) -> None:
        """Start before the first epoch.

        Args:
            records: [num_pivots] statistics of each pivot from its profile.
            options: When pivots are retired and tried again.
            identity: Digest of the pivots and their order; a saved state with another digest is refused.
            seed: Seed of the order of every epoch.
            shuffle: False draws each epoch in the order of the file; re-profiled pivots are still put at random places.
            batch_size: Pivots per training step.
        """
        self.records = list(records)
        self.options = options
        self._identity = identity
        self.seed = seed
        self.shuffle = shuffle
        self.batch_size = batch_size
        self._epoch = 0
        self._num_drawn = 0
        self._reprofiled_at_step = 0
        self._reprofiled_at_draw = 0
        self._queue: deque[int] = deque()

    def draw(self) -> int:
        """Position in the file of the next pivot."""
        begins_batch = self._num_drawn % self.batch_size == 0
        if not self._queue or (begins_batch and len(self._queue) < self.batch_size):
            self._start_epoch()
        self._num_drawn += 1
        return self._queue.popleft()

    def observe(self, step: int, groups: Sequence[tuple[int, Sequence[float]]]) -> None:
        """Add the groups that a training step sampled, and re-profile retired pivots when it is time.

        Args:
            step: Number of the training step, from 1.
            groups: (position of a pivot, rewards of its decided rollouts); groups with fewer than 2 are left out.
        """
        active = {pivot for pivot, _ in groups if not self.is_retired(pivot)}
        for pivot, rewards in groups:
            if len(rewards) >= 2:
                self.records[pivot].update(rewards, step, self.options)
        if newly_retired := set(filter(self.is_retired, active)):
            self._queue = deque(pivot for pivot in self._queue if pivot not in newly_retired)
        if 0 < self.options.reprofile_every <= step - self._reprofiled_at_step:
            self._reprofile(step)

    def is_retired(self, pivot: int) -> bool:
        """Whether the pivot is drawn only by re-profilings, or to fill a batch."""
        return self.records[pivot].num_flat_visits >= self.options.retire_visits

    def weight(self, pivot: int) -> float:
        """Weight that draws the pivot towards the beginning of an epoch; 0 puts it after all others."""
        variance = self.records[pivot].variance
        deviation = math.sqrt(_UNMEASURED_VARIANCE if variance is None else variance)
        return math.pow(deviation, self.options.weight_exponent)

    def metrics(self) -> dict[str, float]:
        """Metrics of active and retired pivots; the mean variance is over the pivots that were measured."""
        retired = [self.records[pivot] for pivot in self._retired()]
        variances = [record.variance for record in self.records if record.variance is not None]
        return {
            "curriculum/active": float(len(self.records) - len(retired)),
            "curriculum/retired": float(len(retired)),
            "curriculum/retired_solved": float(sum((record.mean or 0.0) > 0.5 for record in retired)),
            "curriculum/mean_variance": sum(variances) / len(variances) if variances else 0.0,
            "curriculum/epoch": float(self._epoch),
        }

    def state_dict(self) -> dict[str, Any]:
        """State of the draws as JSON values; with it, an equally constructed curriculum goes on with the same draws."""
        return {
            "identity": self._identity,
            "epoch": self._epoch,
            "num_drawn": self._num_drawn,
            "reprofiled_at_step": self._reprofiled_at_step,
            "reprofiled_at_draw": self._reprofiled_at_draw,
            "queue": list(self._queue),
            "records": [list(astuple(record)) for record in self.records],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Raises:
            DataError: If the state belongs to other pivots.
        """
        if state["identity"] != self._identity:
            raise DataError(
                "the checkpoint's curriculum was saved for other pivots than those of data.train_files: resume with "
                "the files that the run began with, or with pivot.curriculum.enabled=False"
            )
        self.records = [PivotRecord(*values) for values in state["records"]]
        self._epoch = state["epoch"]
        self._num_drawn = state["num_drawn"]
        self._reprofiled_at_step = state["reprofiled_at_step"]
        self._reprofiled_at_draw = state["reprofiled_at_draw"]
        self._queue = deque(state["queue"])

    def _start_epoch(self) -> None:
        left = set(self._queue)
        pivots = [pivot for pivot in range(len(self.records)) if pivot not in left and not self.is_retired(pivot)]
        filling = max(0, self.batch_size - len(left) - len(pivots))
        pivots = sorted(pivots + [pivot for pivot in self._retired() if pivot not in left][:filling])
        if self.shuffle:
            rng = random.Random(f"{self.seed}/{self._epoch}")
            times = {pivot: _arrival(rng.random(), self.weight(pivot)) for pivot in pivots}
            pivots.sort(key=times.__getitem__)
        self._queue.extend(pivots)
        self._epoch += 1

    def _reprofile(self, step: int) -> None:
        """Queue one visit of retired pivots, spread over as many draws as there were since the last re-profiling."""
        num_draws = self._num_drawn - self._reprofiled_at_draw
        max_visits = int(self.options.reprofile_share * num_draws)
        if max_visits == 0:
            return
        retired, queued = self._retired(), set(self._queue)
        num_visits = min(max_visits, math.ceil(self.options.reprofile_share * len(retired)))
        rng = random.Random(f"{self.seed}/{self._epoch}/{step}")
        for pivot in [pivot for pivot in retired if pivot not in queued][:num_visits]:
            self._queue.insert(rng.randint(0, min(num_draws, len(self._queue))), pivot)
        self._reprofiled_at_step = step
        self._reprofiled_at_draw = self._num_drawn

    def _retired(self) -> list[int]:
        """Positions of the retired pivots, longest unvisited first."""
        retired = [pivot for pivot in range(len(self.records)) if self.is_retired(pivot)]
        return sorted(retired, key=lambda pivot: self.records[pivot].last_step)


def mean_and_variance(rewards: Sequence[float]) -> tuple[float, float]:
    """Mean and population variance (PivotRL's var_hat) of one group's rewards; exactly 0 where all are equal."""
    return statistics.fmean(rewards), statistics.pvariance(rewards)


def _arrival(uniform: float, weight: float) -> tuple[float, float]:
    """Arrival time of a Poisson clock of rate `weight`: sorting by it is weighted sampling without replacement."""
    return (-math.log1p(-uniform) / weight if weight > 0 else math.inf, uniform)
