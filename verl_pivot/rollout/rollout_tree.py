"""RolloutTree: one rollout with tools -> the branches of its search, each with tools in a state of its own."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from verl_pivot.all_at_once import all_at_once
from verl_pivot.data.json_values import equal
from verl_pivot.data.rollout_records import SearchRecord, StopReason
from verl_pivot.errors import ToolBugError, ToolFailureError
from verl_pivot.rollout.observed_turn import ObservedTurn
from verl_pivot.rollout.played_rollout import PlayedRollout, ToolLoopParts
from verl_pivot.rollout.rollout_so_far import RolloutSoFar
from verl_pivot.rollout.tool_rollout import ToolRollout
from verl_pivot.rollout.tree_search import search
from verl_pivot.rollout.tree_search_settings import ScoredBy, TreeSearchSettings
from verl_pivot.rollout.workflows import RankedWorkflows
from verl_pivot.tools.rollout_tools import RolloutTools
from verl_pivot.types import JsonObject

logger = logging.getLogger(__name__)

_QUOTED_BEFORE = 20
"""Characters of an observation that a message quotes before the first one that differs."""
_MAX_QUOTED = 120
"""Maximum number of characters of an observation that a message quotes."""


class NotReplayedError(ToolFailureError):
    """Tools that do not replay exactly, so that each branch of the search would differ."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"tree search runs calls again, but the tools do not replay exactly: {why}; see `verl-pivot tools "
            "check-replay`, or give the environment a method `fork`"
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Branch:
    """A rollout up to the end of a turn with its observations, and tools in the state after it."""

    rollout: RolloutSoFar
    tools: RolloutTools
    held: AsyncExitStack
    """Closes the tools."""


class SearchedRollout(NamedTuple):
    """The rollout that a search chose, with its tools, which are open."""

    played: PlayedRollout
    tools: RolloutTools


async def play_search(
    parts: ToolLoopParts,
    settings: TreeSearchSettings,
    sampling_params: Mapping[str, Any],
    prompt: Sequence[JsonObject],
    open_tools: Callable[[], RolloutTools],
    stack: AsyncExitStack,
    workflows: RankedWorkflows | None = None,
) -> SearchedRollout:
    """Search for a rollout of a prompt.

    Args:
        parts: The agent loop.
        settings: The section `pivot.tree_search`.
        sampling_params: verl's sampling parameters.
        prompt: The row's prompt.
        open_tools: Makes new tools of the row, at each call.
        stack: Closes the tools of all branches that are still open, also those of the result.
        workflows: Workflows for the row; None where they are off.

    Raises:
        DataError: If the prompt is too long, or holds anything but text.
        ToolFailureError: If the first tools cannot be opened, or tools answer otherwise than before when calls are run
            again.
        UserCodeError: If `progress`, `score` or `fork` of an environment fails.
    """
    tools = open_tools()
    held = await _held(tools, stack)
    rollouts = ToolRollout(parts, tools, sampling_params, workflows)
    last = await rollouts.begun(prompt)
    tree = RolloutTree(rollouts, settings.scored_by, prompt, open_tools, stack)
    try:
        found = await search(tree, Branch(rollout=last, tools=tools, held=held), settings.shape)
        last = found.node.rollout
    finally:
        journey = await rollouts.end(last)
    searched = SearchRecord(gain=found.gain, extra_tokens=tree.num_sampled - last.tokens.num_sampled)
    return SearchedRollout(last.played(prompt, journey, searched), found.node.tools)


class RolloutTree:
    """The tree that `search` walks.

    The tools of a branch are a copy of its parent's. If these cannot be copied, the calls so far are run again in new
    tools, which must answer as before.
    """

    def __init__(
        self,
        rollouts: ToolRollout,
        scored_by: ScoredBy,
        prompt: Sequence[JsonObject],
        open_tools: Callable[[], RolloutTools],
        stack: AsyncExitStack,
    ) -> None:
        self._rollouts, self._scored_by, self._prompt = rollouts, scored_by, prompt
        self._open_tools, self._stack = open_tools, stack
        self.num_sampled = 0
        """Number of tokens of all turns that were drawn."""

    async def grow(self, node: Branch, number: int) -> Sequence[Branch]:
        """Branches with one more turn, equal ones merged; if the system failed all of them, only the first."""
        drawn = await all_at_once(self._rollouts.with_turn(node.rollout) for _ in range(number))
        self.num_sampled += sum(each.tokens.num_sampled - node.rollout.tokens.num_sampled for each in drawn)
        distinct = {tuple(each.tokens.token_ids): each for each in drawn}.values()
        children = await all_at_once(self._observed_or_failed(node, each) for each in distinct)
        kept = [child for child in children if not _is_masked(child)] or children[:1]
        for child in children:
            if child not in kept:
                await self.drop(child)
        return kept

    async def score(self, node: Branch) -> float | None:
        """Score by the setting `scored_by`; None if unknown, or if the system failed the rollout."""
        if _is_masked(node):
            return None
        if self._scored_by is ScoredBy.PROGRESS:
            return node.tools.progress()
        if node.rollout.stop is None:
            verdict = await node.tools.score(None)
        else:
            verdict = await node.rollout.played(self._prompt, None).outcome(node.tools)
        return None if verdict is None else verdict.score

    def is_finished(self, node: Branch) -> bool:
        return node.rollout.stop is not None

    def is_failed(self, node: Branch) -> bool:
        return _is_masked(node)

    async def drop(self, node: Branch) -> None:
        await _close(node.held)

    async def _observed_or_failed(self, node: Branch, drawn: RolloutSoFar) -> Branch:
        """The branch of a drawn turn; a masked one if a system fails while its tools are brought into their state."""
        try:
            return await self._observed(node, drawn)
        except NotReplayedError:
            raise
        except ToolFailureError as error:
            if drawn.stop is None or not drawn.stop.is_masked:
                failed = ObservedTurn(texts=[], calls=[], failure=str(error), is_bug=isinstance(error, ToolBugError))
                drawn = replace(drawn, observed=(*drawn.observed, failed), stop=StopReason.TOOL_FAILURE)
            return Branch(rollout=drawn, tools=node.tools, held=AsyncExitStack())  # of these only schemas are read

    async def _observed(self, node: Branch, drawn: RolloutSoFar) -> Branch:
        """The branch of a drawn turn, with tools of its own, which have answered the turn's calls."""
        copy = node.tools.fork()
        tools = self._open_tools() if copy is None else copy
        held = await _held(tools, self._stack)
        try:
            if copy is None:
                await self._run_again(node, tools)
        except ToolFailureError:
            await _close(held)
            raise
        rollout = drawn if drawn.stop is not None else await self._rollouts.with_observations(drawn, tools.toolbox)
        return Branch(rollout=rollout, tools=tools, held=held)

    async def _run_again(self, node: Branch, tools: RolloutTools) -> None:
        """Bring new tools into the state of a node."""
        for turn, before in zip(node.rollout.turns, node.rollout.observed, strict=True):
            again = await self._rollouts.observe(turn, tools.toolbox)
            if again.failure:
                raise (ToolBugError if again.is_bug else ToolFailureError)(again.failure)
            if again.texts != before.texts:
                first, now = first_difference(str(before.texts), str(again.texts))
                raise NotReplayedError(
                    f"turn {turn.index} gave {first} at first, and {now} when its calls were run again"
                )
        if not equal([*tools.states()], [*node.tools.states()]):
            raise NotReplayedError("the results are the same, but the states of environments differ")


async def _held(tools: RolloutTools, stack: AsyncExitStack) -> AsyncExitStack:
    """Open the tools; the returned stack closes them, and `stack` closes it at the latest."""
    held = AsyncExitStack()
    stack.push_async_callback(held.aclose)
    await held.enter_async_context(tools)
    return held


async def _close(held: AsyncExitStack) -> None:
    """Close the tools of a branch that is left out; if a system fails at that, the other branches go on."""
    try:
        await held.aclose()
    except (ToolFailureError, OSError) as error:
        logger.warning("the tools of a branch of a tree search were not closed: %s", error)


def first_difference(text: str, other: str) -> tuple[str, str]:
    """Excerpts of two texts from shortly before the first character that differs."""
    pairs = enumerate(zip(text, other, strict=False))
    first = next((index for index, (one, two) in pairs if one != two), min(len(text), len(other)))
    begin = max(0, first - _QUOTED_BEFORE)
    return text[begin : begin + _MAX_QUOTED], other[begin : begin + _MAX_QUOTED]


def _is_masked(node: Branch) -> bool:
    return node.rollout.stop is not None and node.rollout.stop.is_masked
