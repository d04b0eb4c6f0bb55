"""The study's policy: a tiny Qwen2 that writes and revises careless pages, trained by SFT on the transcripts."""

import re
from pathlib import Path
from random import Random

from examples.quickstart.policy import Lessons, SftConfig, learn_tokenizer, teach_policy
from examples.render.pages import COLOURS, TITLES, Layout, layouts
from examples.render.transcripts import record_transcripts

_VALUES = (*COLOURS, *TITLES, *map(str, range(10)))
_BETWEEN_PHRASES = re.compile(
    rf"<\|[^|]*\|>|</?tool_[a-z]+>|\n|\d|{'|'.join((*COLOURS, *TITLES))}|(?=<h1>)|(?<=</h1>)|(?=<div)|(?=<script)"
    r"|(?<=direction:)|(?=;)|(?<=ById\(')|(?='\))|(?= left)|(?= above)|(?= a )|(?<= a )"
)
"""Marks of the chat template, values, and places where a page can be wrong; each text between these is one token."""


def sft_config(seed: int) -> SftConfig:
    """Settings of the base policy, which decide its skill."""
    return SftConfig(
        seed=seed, num_logs=500, num_copy_steps=100, num_careful_steps=0, num_careless_steps=700, carelessness=1.0
    )


def make_policy(folder: Path, config: SftConfig) -> Path:
    """Train the base policy into `folder`, unless it is there already with the same configuration."""
    return teach_policy(folder, config, lambda config: _lessons(folder.parent / "transcripts.jsonl", config))


def _lessons(path: Path, config: SftConfig) -> Lessons:
    rng = Random(f"pages {config.seed}")
    known = layouts(held_out=False) + layouts(held_out=True)
    asked: list[Layout] = rng.choices(known, k=config.num_logs)
    transcripts = record_transcripts(path, asked, config.seed)
    return Lessons(learn_tokenizer(transcripts, _VALUES, _BETWEEN_PHRASES), [], transcripts)
