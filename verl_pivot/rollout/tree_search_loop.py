"""Agent loop `pivot_tree_search` of verl: a row -> the rollout that a search over its turns chose (TSR)."""

from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from verl_pivot.data.rollout_records import IS_VALIDATION
from verl_pivot.errors import ConfigError
from verl_pivot.rollout.group_rewards import MANAGER_KEY, FinishedRollout
from verl_pivot.rollout.rollout_tree import play_search
from verl_pivot.rollout.tool_loop import ToolLoop
from verl_pivot.rollout.tree_search_settings import parse_tree_search


class TreeSearchLoop(ToolLoop):
    """The loop `pivot_tools`, whose training rollouts are chosen among several; those of validation are not.

    Tokens, masks and logprobs are those of the turns as the policy sampled them, but the rollout is not its own draw.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Raises ConfigError if `pivot.tree_search` is wrong, or what the loop `pivot_tools` reads."""
        super().__init__(*args, **kwargs)
        self._search = parse_tree_search(self.config)

    async def _finish(self, sampling_params: dict[str, Any], row: dict[str, Any]) -> FinishedRollout:
        if IS_VALIDATION not in row:
            raise ConfigError(
                f"pivot.tree_search cannot tell training from validation: leave out {MANAGER_KEY}, or name a class "
                "that is derived from that of +method=tree_search"
            )
        if row[IS_VALIDATION]:
            return await super()._finish(sampling_params, row)
        async with AsyncExitStack() as stack:
            open_tools = partial(self._opened_tools, row)
            played, tools = await play_search(
                self._parts, self._search, sampling_params, row["raw_prompt"], open_tools, stack
            )
            return await self._finished(played, tools, row)
