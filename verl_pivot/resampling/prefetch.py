"""Groups that the last steps used and dropped -> number of prompts to generate ahead in the next step."""

from collections import deque
from math import floor, sqrt

_NUM_STEPS = 5
"""Number of last steps from which the share of usable groups is estimated."""


def num_ahead(batch_size: int, *, num_used: int, num_dropped: int, budget: int) -> int:
    """Prompts to generate at once beyond a batch, so that few rounds of replacements are needed.

    A step needs batch_size / share prompts on average, where `share` is the usable share of groups, with a standard
    deviation of sqrt(batch_size * (1 - share)) / share (negative binomial). One deviation less than the average is
    generated, so that seldom more groups are usable than the update needs.

    Args:
        batch_size: Groups that the update needs.
        num_used: Groups that the last steps used.
        num_dropped: Groups that the last steps dropped and replaced.
        budget: Maximum number of prompts in one step.
    """
    if num_used == 0:
        return 0
    share = num_used / (num_used + num_dropped)
    needed = batch_size / share - sqrt(batch_size * (1.0 - share)) / share
    return max(0, min(floor(needed), budget) - batch_size)


class Prefetch:
    """Prompts of one step that were generated ahead; they replace dropped groups until they are used up."""

    def __init__(self) -> None:
        self.num_left = 0
        """Prompts generated ahead that have not replaced a dropped group."""
        self._steps: deque[tuple[int, int]] = deque(maxlen=_NUM_STEPS)
        """[num_steps, 2] numbers of groups that a step used, and that it dropped."""

    def begin(self, batch_size: int, budget: int) -> int:
        """Begin a step; returns the number of prompts to generate ahead."""
        self.num_left = num_ahead(
            batch_size,
            num_used=sum(used for used, _ in self._steps),
            num_dropped=sum(dropped for _, dropped in self._steps),
            budget=budget,
        )
        return self.num_left

    def replace(self, num_dropped: int) -> int:
        """Replace groups by prompts generated ahead; returns the number of groups that still need a prompt."""
        from_ahead = min(num_dropped, self.num_left)
        self.num_left -= from_ahead
        return num_dropped - from_ahead

    def end(self, num_used: int, num_dropped: int) -> None:
        """End a step, and remember its groups for the estimate of the next steps."""
        self.num_left = 0
        self._steps.append((num_used, num_dropped))
