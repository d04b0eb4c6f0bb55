"""Ids and a seed -> a random order that depends on nothing else."""

import hashlib
from collections.abc import Iterable, Sequence


def shuffled(positions: Iterable[int], ids: Sequence[str], seed: int) -> list[int]:
    """The positions in an order by a digest of seed and id, which does not depend on the order of the file.

    Args:
        positions: Positions in `ids`.
        ids: [num_trajectories]; positions of equal ids stay in their order.
        seed: Another seed gives another order.
    """

    def rank(position: int) -> tuple[bytes, int]:
        return hashlib.sha256(f"{seed}:{ids[position]}".encode()).digest(), position

    return sorted(positions, key=rank)
