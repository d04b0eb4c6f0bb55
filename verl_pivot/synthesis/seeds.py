"""The seed rule: recipe seed, item, step and numbers -> the seed of one draw, whatever else runs at the same time."""

from hashlib import sha256

_BITS = 31
"""Bits of a seed: every server and library takes a signed integer of 32 bits."""


def seed_of(recipe_seed: int, item: str, step: str, *numbers: int) -> int:
    """The first bits of sha256(recipe seed, item, step, k), so that equal answers give equal bytes at any concurrency.

    Args:
        recipe_seed: Seed of the whole run.
        item: Id of the draft that the step got.
        step: Label of the step.
        numbers: Numbers of the draw within the step, such as the rollout and its turn.

    Returns:
        A number in [0, 2**31).
    """
    text = "\0".join([str(recipe_seed), item, step, *map(str, numbers)])
    return int.from_bytes(sha256(text.encode(errors="surrogatepass")).digest()) >> (256 - _BITS)
