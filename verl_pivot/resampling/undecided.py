"""Rows of a sampled batch -> DecidedRows: the rows that remain after undecided ones are dropped."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedRows:
    """Positions of the rows that remain, and counts of those that were dropped."""

    rows: tuple[int, ...]
    """Positions in the batch, ascending."""
    num_undecided: int
    num_lone: int
    """Decided rows dropped since their group has too few rollouts left: GRPO would use a lone reward as advantage."""


def keep_decided(
    group_ids: Sequence[str],
    rollout_ids: Sequence[str],
    decided: Sequence[bool],
    *,
    min_group_size: int,
    short_groups: Collection[str] = (),
) -> DecidedRows:
    """Drop undecided rows, then all rows of groups that are left with fewer than `min_group_size` rollouts.

    A group that lost no row stays, even if its configured size is smaller than `min_group_size`.

    Args:
        group_ids: [num_rows] id of each row's group.
        rollout_ids: [num_rows] id of each row's rollout, which may have several rows.
        decided: [num_rows] whether a verifier could decide the row.
        min_group_size: Rollouts that a group needs: 2 for a baseline over the group, 1 in validation.
        short_groups: Ids of groups of which some rollouts gave no row at all.
    """
    rows = list(zip(group_ids, rollout_ids, decided, strict=True))
    num_left = Counter(group for group, _ in {(group, rollout) for group, rollout, is_decided in rows if is_decided})
    incomplete = {group for group, _, is_decided in rows if not is_decided} | set(short_groups)
    kept = tuple(
        place
        for place, (group, _, is_decided) in enumerate(rows)
        if is_decided and (group not in incomplete or num_left[group] >= min_group_size)
    )
    num_decided = sum(decided)
    return DecidedRows(rows=kept, num_undecided=len(decided) - num_decided, num_lone=num_decided - len(kept))
