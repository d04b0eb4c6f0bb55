"""The base policy's evaluation and the training, as arms."""

from pathlib import Path

from examples.arms import Lengths, ToolArm
from examples.blackjack.hands import write_hands
from examples.blackjack.transcripts import TOOLS

BASE, TRAINED = "base", "grpo"
ARMS = (BASE, TRAINED)
LENGTHS = Lengths(max_turns=12, prompt=96, turn=24, response=512)
HELD_OUT = range(100_000, 101_000)
"""Seeds of the held-out hands."""
_FIRST_SEED, _SEEDS_OF_A_TRAINING = 200_000, 10_000


def make_arm(name: str, policy: Path, folder: Path, seed: int, *, num_steps: int) -> ToolArm:
    """One arm of a seed, whose training deals each hand once."""
    first = _FIRST_SEED + _SEEDS_OF_A_TRAINING * seed
    return ToolArm(
        name=name,
        model=policy,
        rows=write_hands(folder / "hands.parquet", range(first, first + _SEEDS_OF_A_TRAINING)),
        held_out=write_hands(folder / "held_out.parquet", HELD_OUT),
        tools=TOOLS,
        folder=folder / name,
        seed=seed,
        num_steps=num_steps,
        learning_rate=2e-4,
        batch_size=32,
        group_size=8,
        project="blackjack",
        overrides=("+method=tool_rollout",),
        is_base=name == BASE,
        lengths=LENGTHS,
    )
