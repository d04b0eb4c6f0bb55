"""StepReturnOutput: verl's output of an agent loop, with the return of each of its steps in place of a score."""

from typing import Any

import torch
from pydantic import Field

from verl_pivot.advantages.steps import sampled_runs
from verl_pivot.rewards.turn_rewards import TurnRewardOutput


class StepReturnOutput(TurnRewardOutput):
    """One row of a trajectory, which may have several rows; each turn of a row is a step.

    verl gives the score of a trajectory's last row to all of them. `as_dict` writes the returns of the steps into
    `rm_scores` instead, each on the last token of its step, where the estimator `step_reinforce_pp` reads them.
    """

    step_returns: list[float] = Field(default_factory=list)
    """[num_turns] return of each step of the row. Empty if only the score of the whole trajectory counts: in
    validation, for an estimator that knows no steps, and for an undecided trajectory."""

    def as_dict(self) -> dict[str, Any]:
        """The row that verl stores.

        Raises:
            ValueError: If there are returns, but not one for each run of sampled tokens.
        """
        row: dict[str, Any] = super().as_dict()
        row.pop("step_returns", None)
        if not self.step_returns:
            return row
        ends = [end for _, end in sampled_runs(self.response_mask)]
        if ends != self.turn_ends or len(ends) != len(self.step_returns):
            raise ValueError(
                f"there must be one return for each run of sampled tokens, got {len(self.step_returns)} returns, steps "
                f"that end at {self.turn_ends}, and runs that end at {ends}"
            )
        scores = torch.zeros_like(row["response_mask"], dtype=torch.float32)
        scores[[end - 1 for end in ends]] = torch.tensor(self.step_returns, dtype=torch.float32)
        return {**row, "rm_scores": scores}
