"""The example's policy: a tiny Qwen2 that solves problems with code, brought to partial skill by SFT on transcripts."""

import re
from pathlib import Path

from transformers import Qwen2Tokenizer

from examples.grpo_roc.problems import MAX_NUMBER
from examples.grpo_roc.transcripts import record_transcripts
from examples.quickstart.policy import Lessons, SftConfig, learn_tokenizer, teach_policy
from verl_pivot.types import Trajectory

_VALUES = tuple(map(str, range(MAX_NUMBER + 1)))
"""Numbers that are one token each."""
_BETWEEN_PHRASES = re.compile(
    r"<\|[^|]*\|>|(?<=assistant\n)|(?<=<tool_response>\n)|(?=\n</tool_response>)|\d+"
    r"|(?<=\"code\": \")|(?=\"}})|(?<=\\n)|(?<=\()|(?<!\))(?=\))|(?<=\))(?!\))|(?<= )(?=[\^~])|(?<=[\^~])(?=\n)"
)
"""Marks of the chat template, numbers, and the places where code can be wrong; each text between these is one token."""
FIRST_SFT_SEED = 10_000_000
"""First seed of the problems for SFT, which training never sees."""


def sft_config(seed: int) -> SftConfig:
    """Settings of the base policy, which decide its skill."""
    return SftConfig(
        seed=seed,
        num_logs=3000,
        num_copy_steps=140,
        num_careful_steps=0,
        num_careless_steps=1200,
        carelessness=0.55,
    )


def make_policy(folder: Path, config: SftConfig) -> Path:
    """Train the base policy into `folder`, unless it is there already with the same configuration."""
    return teach_policy(folder, config, _lessons)


def _lessons(config: SftConfig) -> Lessons:
    first = FIRST_SFT_SEED * (config.seed + 1)
    careless = record_transcripts(range(first, first + config.num_logs), carelessness=config.carelessness)
    return Lessons(build_tokenizer(careless), [], careless)


def build_tokenizer(transcripts: list[Trajectory]) -> Qwen2Tokenizer:
    """A tokenizer whose tokens are bytes, numbers, and the phrases between numbers in the transcripts."""
    return learn_tokenizer(transcripts, _VALUES, _BETWEEN_PHRASES)
