"""The seed rule, by hand: the first 31 bits of sha256 over recipe seed, item, step and numbers."""

from hashlib import sha256

from verl_pivot.synthesis.seeds import seed_of


def test_a_seed_is_the_first_31_bits_of_the_digest() -> None:
    digest = sha256(b"7\0tasks-1\0rollouts\0003").hexdigest()

    assert seed_of(7, "tasks-1", "rollouts", 3) == int(digest[:8], 16) >> 1


def test_each_part_gives_another_seed() -> None:
    parts = [
        (0, "a", "x", 0),
        (1, "a", "x", 0),
        (0, "b", "x", 0),
        (0, "a", "y", 0),
        (0, "a", "x", 1),
        (0, "a", "x", 0, 0),
    ]

    assert len({seed_of(*each) for each in parts}) == len(parts)
