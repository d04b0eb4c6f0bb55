"""Agent loop `pivot_tree_search` of verl: a row -> the rollout that a search over its turns chose (TSR)."""

from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from verl_pivot.data.validation_rows import is_for_validation
from verl_pivot.rollout.group_rewards import FinishedRollout
from verl_pivot.rollout.rollout_tree import play_search
from verl_pivot.rollout.tool_loop import ToolLoop
from verl_pivot.rollout.tree_search_settings import parse_tree_search


class TreeSearchLoop(ToolLoop):
    """The loop `pivot_tools`, whose training rollouts are chosen among several; those of validation are not.

    Tokens, masks and logprobs are those of the turns as the policy sampled them, but the rollout is not its own draw.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Raises ConfigError if `pivot.tree_search` is wrong, or a section that the loop `pivot_tools` reads."""
        super().__init__(*args, **kwargs)
        self._search = parse_tree_search(self.config)

    async def _finish(self, sampling_params: dict[str, Any], row: dict[str, Any]) -> FinishedRollout:
        if is_for_validation(row, "pivot.tree_search", "tree_search"):
            return await super()._finish(sampling_params, row)
        async with AsyncExitStack() as stack:
            open_tools = partial(self._opened_tools, row)
            played, tools = await play_search(
                self._parts, self._search, sampling_params, row["raw_prompt"], open_tools, stack,
                self._workflows_for(row),
            )  # fmt: skip
            return await self._finished(played, tools, row)
