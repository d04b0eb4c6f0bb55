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
    """Decided rows dropped since their group has too few left: GRPO would use a lone reward as the advantage."""


def keep_decided(
    group_ids: Sequence[str], decided: Sequence[bool], *, min_group_size: int, short_groups: Collection[str] = ()
) -> DecidedRows:
    """Drop undecided rows, then all rows of groups that are left with fewer than `min_group_size` rows.

    A group that lost no row stays, even if its configured size is smaller than `min_group_size`.

    Args:
        group_ids: [num_rows] id of each row's group.
        decided: [num_rows] whether a verifier could decide the row.
        min_group_size: 2 for a baseline over the group, 1 in validation.
        short_groups: Ids of groups of which some rollouts gave no row at all.
    """
    num_left = Counter(group for group, is_decided in zip(group_ids, decided, strict=True) if is_decided)
    undecided_groups = {group for group, is_decided in zip(group_ids, decided, strict=True) if not is_decided}
    incomplete = undecided_groups | set(short_groups)
    rows = tuple(
        row
        for row, (group, is_decided) in enumerate(zip(group_ids, decided, strict=True))
        if is_decided and (group not in incomplete or num_left[group] >= min_group_size)
    )
    num_decided = sum(decided)
    return DecidedRows(rows=rows, num_undecided=len(decided) - num_decided, num_lone=num_decided - len(rows))
