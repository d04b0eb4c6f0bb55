"""Rewards of the groups so far -> the pivot to draw next: those that stopped varying rest, and are tried again."""

import math
import random
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from verl_pivot.errors import ConfigError, DataError

_UNMEASURED_VARIANCE = 0.25
"""The largest variance of a reward in [0, 1]: a pivot that nobody measured is drawn among the first."""


class CurriculumOptions(BaseModel):
    """When a pivot is retired, when it is tried again, and in which order the others are drawn.

    PivotRL (arXiv:2603.21383) selects once, by the variance under the initial policy, and its figure 3 shows how
    that shrinks in training. Retiring is ours; theorem 3.2 makes the standard deviation the scale of GRPO's gradient
    at a state, hence the weight.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    enabled: bool = False
    decay: float = Field(0.0, ge=0.0, lt=1.0)
    """Of the running mean and variance, at each visit of the pivot; 0 looks at the last group alone."""
    retire_variance: float = Field(0.0, ge=0.0)
    """A running variance at or below it is flat."""
    retire_visits: int = Field(2, ge=1)
    """So many flat visits in a row retire a pivot."""
    weight_exponent: float = Field(1.0, ge=0.0)
    """Weight = running standard deviation ** exponent: the heavier tend to come early in an epoch; 0: all alike."""
    reprofile_every: int = Field(10, ge=0)
    """Steps between two re-profilings; 0: never."""
    reprofile_share: float = Field(0.1, gt=0.0, le=0.5)
    """Of the retired pivots, the longest unvisited, that each re-profiling visits; of all draws it takes no more."""


def parse_options(section: Mapping[str, Any]) -> CurriculumOptions:
    """The options under `pivot.curriculum`.

    Raises:
        ConfigError: If a key is unknown, or a value is not allowed.
    """
    if unknown := sorted(set(section) - set(CurriculumOptions.model_fields)):
        raise ConfigError(f"unknown key pivot.curriculum.{unknown[0]}; known: {sorted(CurriculumOptions.model_fields)}")
    try:
        return CurriculumOptions.model_validate(dict(section))
    except ValidationError as error:
        problem = error.errors()[0]
        raise ConfigError(f"pivot.curriculum.{problem['loc'][0]}={problem['input']}: {problem['msg']}") from error


@dataclass(slots=True)
class PivotRecord:
    """What is known of one pivot's rewards."""

    mean: float | None = None
    variance: float | None = None
    """Running variance within a group; before the first visit the profile's. None: never measured."""
    num_visits: int = 0
    num_flat_visits: int = 0
    """In a row, up to the last visit."""
    last_step: int = 0

    def update(self, rewards: Sequence[float], step: int, options: CurriculumOptions) -> None:
        """Take in the rewards of one group."""
        mean, variance = mean_and_variance(rewards)
        self.mean = mean if self.mean is None else options.decay * self.mean + (1 - options.decay) * mean
        if self.variance is not None:
            variance = options.decay * self.variance + (1 - options.decay) * variance
        self.variance = variance
        self.num_visits += 1
        self.num_flat_visits = self.num_flat_visits + 1 if variance <= options.retire_variance else 0
        self.last_step = step


class Curriculum:
    """Draws pivots in epochs: each active one once, in an order that depends on seed, epoch and records alone.

    No batch holds a pivot twice: what is left of an epoch, less than a batch, opens the next one, and where fewer
    pivots than a batch are active, the longest unvisited retired ones fill it up. So training outlives the last one.
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
            records: [num_pivots] what the profile says of each.
            options: The rule.
            identity: Of the pivots and their order; a state of others is refused.
            seed: Of every epoch's order.
            shuffle: False draws each epoch in the file's order; probes of a re-profiling are scattered all the same.
            batch_size: Pivots per step.
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
        """The next pivot's position in the file."""
        begins_batch = self._num_drawn % self.batch_size == 0
        if not self._queue or (begins_batch and len(self._queue) < self.batch_size):
            self._start_epoch()
        self._num_drawn += 1
        return self._queue.popleft()

    def observe(self, step: int, groups: Sequence[tuple[int, Sequence[float]]]) -> None:
        """Take in the groups that a training step sampled, and re-profile when it is time.

        Args:
            step: Its number, from 1.
            groups: A pivot's position and the rewards of its decided rollouts; a single reward says nothing.
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
        return self.records[pivot].num_flat_visits >= self.options.retire_visits

    def weight(self, pivot: int) -> float:
        """How strongly the pivot is drawn to an epoch's beginning; 0 puts it after all others."""
        variance = self.records[pivot].variance
        deviation = math.sqrt(_UNMEASURED_VARIANCE if variance is None else variance)
        return math.pow(deviation, self.options.weight_exponent)

    def metrics(self) -> dict[str, float]:
        """How much of the data still teaches; the mean is over measured pivots."""
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
        """All that later draws depend on beside the arguments, as JSON can hold it."""
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
        """Go on where `state_dict` was called.

        Raises:
            DataError: If the state is of other pivots.
        """
        if state["identity"] != self._identity:
            raise DataError(
                "the checkpoint's curriculum is of other pivots than data.train_files: resume with the files that the "
                "run began with, or with pivot.curriculum.enabled=False"
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
        """Give retired pivots one visit each, within as many draws as there were since the last re-profiling."""
        num_draws = self._num_drawn - self._reprofiled_at_draw
        max_probes = int(self.options.reprofile_share * num_draws)
        if max_probes == 0:
            return
        retired, queued = self._retired(), set(self._queue)
        num_probes = min(max_probes, math.ceil(self.options.reprofile_share * len(retired)))
        rng = random.Random(f"{self.seed}/{self._epoch}/{step}")
        for pivot in [pivot for pivot in retired if pivot not in queued][:num_probes]:
            self._queue.insert(rng.randint(0, min(num_draws, len(self._queue))), pivot)
        self._reprofiled_at_step = step
        self._reprofiled_at_draw = self._num_drawn

    def _retired(self) -> list[int]:
        """The longest unvisited first."""
        retired = [pivot for pivot in range(len(self.records)) if self.is_retired(pivot)]
        return sorted(retired, key=lambda pivot: self.records[pivot].last_step)


def mean_and_variance(rewards: Sequence[float]) -> tuple[float, float]:
    """Of one group; the variance is the population's, PivotRL's var_hat, and exactly 0 where all are equal."""
    return statistics.fmean(rewards), statistics.pvariance(rewards)


def _arrival(uniform: float, weight: float) -> tuple[float, float]:
    """When a clock of rate `weight` rings: the order of arrival is weighted sampling without replacement."""
    return (-math.log1p(-uniform) / weight if weight > 0 else math.inf, uniform)
