"""One prompt, or one pivot -> PromptAtStep: the outcomes of its rollouts in each step of training."""

from typing import NamedTuple

import msgspec

from verl_pivot.errors import ConfigError
from verl_pivot.inspect.filters import RolloutFilter
from verl_pivot.inspect.queries import RunIndex


class FollowedPrompt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prompt or pivot that is followed through training: a prompt by its digest, or a pivot by its place.

    Example:
        FollowedPrompt(trajectory_id="shop-17", turn_index=3)
    """

    prompt_id: str | None = None
    trajectory_id: str | None = None
    turn_index: int | None = None

    def filter(self) -> RolloutFilter:
        """Filter that selects its rollouts.

        Raises:
            ConfigError: If neither a prompt nor a pivot is named.
        """
        if self.prompt_id is None and (self.trajectory_id is None or self.turn_index is None):
            raise ConfigError("name a prompt_id, or a trajectory_id with its turn_index")
        return RolloutFilter(prompt_id=self.prompt_id, trajectory_id=self.trajectory_id, turn_index=self.turn_index)


class PromptAtStep(NamedTuple):
    """Outcomes of one prompt in one step of a run."""

    run: int
    """Number of the run, from 0."""
    part: str
    step: int
    num_rollouts: int
    num_decided: int
    mean_score: float | None
    """Mean score of the decided rollouts; None if there are none."""


def history(index: RunIndex, followed: FollowedPrompt) -> list[PromptAtStep]:
    """[num_steps of all runs] outcomes by run, part and step; rollouts without a step are left out.

    Raises:
        ConfigError: If neither a prompt nor a pivot is named.
    """
    where, values = followed.filter().sql()
    rows = index.count(
        "SELECT run, part, step, count(*), count(score), avg(score) FROM rollouts "
        f"WHERE step IS NOT NULL AND {where} GROUP BY 1, 2, 3 ORDER BY 1, 2, 3",
        *values,
    )
    return [PromptAtStep(*row) for row in rows]
