"""The seed rule: recipe seed, item, step and numbers -> the seed of one draw, regardless of concurrency."""

from hashlib import sha256

_BITS = 31
"""Bits of a seed, so that it fits into a signed 32-bit integer, which every server and library accepts."""


def seed_of(recipe_seed: int, item: str, step: str, *numbers: int) -> int:
    """Seed of one draw: the first bits of sha256(recipe seed, item, step, numbers).

    It does not depend on concurrency, so that runs with equal answers have byte-identical outputs.

    Args:
        recipe_seed: Seed of the whole run.
        item: Id of the draft, or name of the group, that the step got.
        step: Label of the step.
        numbers: Numbers of the draw within the step, such as the rollout and its turn.

    Returns:
        A number in [0, 2**31).
    """
    text = "\0".join([str(recipe_seed), item, step, *map(str, numbers)])
    return int.from_bytes(sha256(text.encode(errors="surrogatepass")).digest()) >> (256 - _BITS)
