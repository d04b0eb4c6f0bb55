"""FirstStep: finished groups of a launch's first step -> an error if a row or the user's code is at fault."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from verl_pivot.data.faults import fault_of
from verl_pivot.errors import UserCodeError
from verl_pivot.resampling.sampled_rows import read_sampled_rows


class FirstStep:
    """Checks each group once, as soon as it has finished, until a training batch has been sampled."""

    def __init__(self) -> None:
        self._is_over = False
        self._checked: set[str] = set()
        """Uids of the groups that were checked."""

    def end(self) -> None:
        """End the checks: from now on a fault masks its rollout, and the launch goes on."""
        self._is_over = True
        self._checked.clear()

    def check_finished(self, uids: Collection[str], keys: Collection[str], partition_id: str) -> None:
        """Check groups that have finished.

        Args:
            uids: Uids of all groups that have finished.
            keys: Keys of all rows.
            partition_id: "train" or "val".

        Raises:
            UserCodeError: With the most frequent cause.
        """
        new = set() if self._is_over else set(uids) - self._checked
        if not new:
            return
        self._checked |= new
        rows = read_sampled_rows([key for key in keys if key.split("_")[0] in new], partition_id)
        self.check([row.reward for row in rows])

    def check(self, rewards: Sequence[Mapping[str, Any]]) -> None:
        """Check rollouts.

        Args:
            rewards: [num_rollouts] `reward_extra_info` of the rollouts.

        Raises:
            UserCodeError: With the most frequent cause.
        """
        if not self._is_over and (fault := fault_of(rewards)) is not None:
            raise UserCodeError(fault)
