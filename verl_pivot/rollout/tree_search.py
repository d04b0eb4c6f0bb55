"""Candidates of each turn and their scores -> the rollout that a search keeps: a beam over turns, with lookahead.

Source: TSR (arXiv:2602.11767). Its beam search draws `num_candidates` turns after each of the `beam` best rollouts so
far, and keeps the best `beam` of all. Its lookahead scores each candidate `lookahead` turns later. Here the two are
combined, and beam=1 is lookahead alone. Differs from the released code, whose beam keeps one candidate of each turn,
scored after one step.

A rollout that is chosen like this is not the policy's own draw, and updates are not corrected for that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Generic, NamedTuple, Protocol, TypeVar

from verl_pivot.all_at_once import all_at_once

NodeT = TypeVar("NodeT")


class SearchTree(Protocol[NodeT]):
    """Rollouts up to the end of a turn, as nodes whose children have one more turn."""

    async def grow(self, node: NodeT, number: int) -> Sequence[NodeT]:
        """Draw `number` turns that follow a node. Equal draws give one child; there is at least one."""
        ...

    async def score(self, node: NodeT) -> float | None:
        """How good a node is, on one scale for unfinished and finished nodes; None if unknown."""
        ...

    def is_finished(self, node: NodeT) -> bool: ...

    def is_failed(self, node: NodeT) -> bool:
        """Whether a system failed, so that the node is kept only where there are too few others."""
        ...

    async def drop(self, node: NodeT) -> None:
        """Release the resources of an open node that the search does not need any more."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchShape:
    """Size of a search; one candidate with a beam and a lookahead of 1 is plain sampling."""

    num_candidates: int = 4
    """Turns that are drawn after each node of the beam."""
    beam: int = 2
    """Nodes that stay after each turn."""
    lookahead: int = 1
    """Turns after which a candidate is scored, its own included."""


class SearchResult(NamedTuple, Generic[NodeT]):
    """The best of the finished nodes."""

    node: NodeT
    gain: float | None
    """Mean over the turns of the mean score of kept nodes less that of all nodes; None if nothing was scored."""


class _Scored(NamedTuple, Generic[NodeT]):
    node: NodeT
    score: float | None


async def search(tree: SearchTree[NodeT], root: NodeT, shape: SearchShape) -> SearchResult[NodeT]:
    """Search until every node of the beam is finished. All nodes but the result have been dropped then.

    Raises:
        Exception: The first exception of the tree; its other running calls are cancelled.
    """
    beam, gains = [_Scored(root, None)], list[float]()
    while any(not tree.is_finished(each.node) for each in beam):
        finished = [each for each in beam if tree.is_finished(each.node)]
        parents = [each.node for each in beam if not tree.is_finished(each.node)]
        grown = await all_at_once(tree.grow(parent, shape.num_candidates) for parent in parents)
        children = [child for children in grown for child in children]
        scores = await all_at_once(_value(tree, child, shape.lookahead) for child in children)
        candidates = [*finished, *map(_Scored, children, scores)]
        order = ranking([each.score for each in candidates])
        order.sort(key=lambda number: tree.is_failed(candidates[number].node))  # of the others, the order stays
        beam = [candidates[number] for number in order[: shape.beam]]
        if (gain := kept_gain([each.score for each in candidates], order[: shape.beam])) is not None:
            gains.append(gain)
        for node in (*parents, *(candidates[number].node for number in order[shape.beam :])):
            await tree.drop(node)
    for other in beam[1:]:
        await tree.drop(other.node)
    return SearchResult(beam[0].node, fmean(gains) if gains else None)


async def _value(tree: SearchTree[NodeT], node: NodeT, lookahead: int) -> float | None:
    """Score of a node; with lookahead, of the node that is reached by one draw of each further turn."""
    reached = node
    for _ in range(lookahead - 1):
        if tree.is_finished(reached):
            break
        (following,) = await tree.grow(reached, 1)
        if reached is not node:
            await tree.drop(reached)
        reached = following
    score = await tree.score(reached)
    if reached is not node:
        await tree.drop(reached)
    return score


def ranking(scores: Sequence[float | None]) -> list[int]:
    """Positions of the scores, the largest score first; equal ones in their order, and those of None last."""
    return sorted(range(len(scores)), key=lambda number: _descending(scores[number]))


def _descending(score: float | None) -> tuple[bool, float]:
    return (score is None, 0.0 if score is None else -score)


def kept_gain(scores: Sequence[float | None], kept: Sequence[int]) -> float | None:
    """Mean of the kept scores less the mean of all, where None does not count; None if no kept score is known."""
    known = [score for score in scores if score is not None]
    of_kept = [score for number in kept if (score := scores[number]) is not None]
    return fmean(of_kept) - fmean(known) if of_kept else None
