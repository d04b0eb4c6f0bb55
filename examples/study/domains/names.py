"""Names of people; held-out tasks have other names than training."""

import random

from examples.quickstart.shop import NAME_PARTS


def draw_names(rng: random.Random, number: int, *, held_out: bool) -> list[str]:
    """[number] different names of two syllables."""
    pairs = [(i, j) for i in range(12) for j in range(12) if ((i + j) % 5 == 0) is held_out]
    return [NAME_PARTS[0][i] + NAME_PARTS[1][j] for i, j in rng.sample(pairs, number)]
