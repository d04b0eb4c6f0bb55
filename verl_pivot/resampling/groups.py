"""Which rows of a sampled batch the update sees, once undecided ones are left out."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Positions that stay, and what was dropped on the way."""

    rows: tuple[int, ...]
    num_undecided: int
    num_lone: int
    """Decided rows whose whole group was undecided but for them: GRPO would take their reward for an advantage."""


def keep_decided(
    group_ids: Sequence[str], decided: Sequence[bool], *, min_group_size: int, short: Collection[str] = ()
) -> Kept:
    """Leave out undecided rows, then groups with fewer than ``min_group_size`` members left.

    A group that was sampled whole and is smaller by configuration stays: only a loss makes a group lone.

    Args:
        group_ids: [num_rows] the prompt that each row was sampled from.
        decided: [num_rows] whether its verifier could decide.
        min_group_size: 2 for a group baseline, 1 in validation.
        short: Groups that lost members before, whose rows are not here.
    """
    left = Counter(group for group, is_decided in zip(group_ids, decided, strict=True) if is_decided)
    hurt = set(short) | {group for group, is_decided in zip(group_ids, decided, strict=True) if not is_decided}
    rows = tuple(
        row
        for row, (group, is_decided) in enumerate(zip(group_ids, decided, strict=True))
        if is_decided and (group not in hurt or left[group] >= min_group_size)
    )
    num_decided = sum(decided)
    return Kept(rows=rows, num_undecided=len(decided) - num_decided, num_lone=num_decided - len(rows))
