"""The example's policy: a tiny Qwen2 that seldom writes code, trained by SFT on the transcripts."""

import re
from pathlib import Path

from transformers import Qwen2Tokenizer

from examples.grpo_roc.policy import FIRST_SFT_SEED
from examples.grpo_roc.problems import MAX_NUMBER
from examples.quickstart.policy import Lessons, SftConfig, learn_tokenizer, teach_policy
from examples.zerotir.transcripts import OBSERVED, record_transcripts
from verl_pivot.types import Trajectory

CODE_SHARE = 0.15
"""Share of the transcripts with code."""
_VALUES = tuple(map(str, range(MAX_NUMBER + 1)))
"""Numbers that are one token each."""
_BETWEEN_PHRASES = re.compile(
    r"<\|[^|]*\|>|(?<=assistant\n)|(?=```)|(?<=```output\n)|(?<=```python\n)|(?<=```\n)|\d+"
    r"|(?<=\()|(?<!\))(?=\))|(?<=\))(?!\))|(?<= )(?=[\^~])|(?<=[\^~])(?=\n)"
)
"""Marks of the chat template, fences, numbers, and the places where code can be wrong; each text between these is one
token."""


def sft_config(seed: int) -> SftConfig:
    """Settings of the base policy, which decide its skill."""
    return SftConfig(
        seed=seed,
        num_logs=3000,
        num_copy_steps=140,
        num_careful_steps=600,
        num_careless_steps=500,
        carelessness=0.4,
    )


def make_policy(folder: Path, config: SftConfig) -> Path:
    """Train the base policy into `folder`, unless it is there already with the same configuration."""
    return teach_policy(folder, config, _lessons)


def _lessons(config: SftConfig) -> Lessons:
    """First transcripts that all have code, which teach to write it, and then those that seldom have any."""
    first = FIRST_SFT_SEED * (config.seed + 1)
    coding, seldom = (
        record_transcripts(range(first, first + config.num_logs), code_share=share, carelessness=config.carelessness)
        for share in (1.0, CODE_SHARE)
    )
    return Lessons(build_tokenizer(coding + seldom), coding, seldom, OBSERVED)


def build_tokenizer(transcripts: list[Trajectory]) -> Qwen2Tokenizer:
    """A tokenizer whose tokens are bytes, numbers, and the phrases between numbers in the transcripts."""
    return learn_tokenizer(transcripts, _VALUES, _BETWEEN_PHRASES)
