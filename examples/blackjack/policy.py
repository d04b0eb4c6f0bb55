"""The example's policy: a tiny Qwen2 that plays at random, trained by SFT on the transcripts."""

import re
from pathlib import Path

from examples.blackjack.hands import MOVES
from examples.blackjack.transcripts import record_transcripts
from examples.quickstart.policy import Lessons, SftConfig, learn_tokenizer, teach_policy

FIRST_SFT_SEED = 900_000
"""First seed of the hands for SFT, which neither training nor evaluation uses."""
_NUM_HANDS = 1000
_VALUES = (*map(str, range(32)), *MOVES, "soft", "hard")
_BETWEEN_PHRASES = re.compile(rf"<[^>]*>|\n|\d+|{'|'.join(MOVES)}|soft|hard")


def sft_config(seed: int) -> SftConfig:
    """Settings of the base policy, which learns how to write a move, and to choose moves at random."""
    return SftConfig(
        seed=seed, num_logs=_NUM_HANDS, num_copy_steps=0, num_careful_steps=150, num_careless_steps=0, hidden_size=64
    )


def make_policy(folder: Path, config: SftConfig) -> Path:
    """Train the base policy into `folder`, unless it is there already with the same configuration."""
    return teach_policy(folder, config, _lessons)


def _lessons(config: SftConfig) -> Lessons:
    first = FIRST_SFT_SEED + config.num_logs * config.seed
    transcripts = record_transcripts(range(first, first + config.num_logs))
    return Lessons(learn_tokenizer(transcripts, _VALUES, _BETWEEN_PHRASES), transcripts, [])
