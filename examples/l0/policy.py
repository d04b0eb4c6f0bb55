"""The study's policy: a tiny Qwen2 that works in a notebook, with partial skill from SFT on careless transcripts."""

import re
from functools import cache
from pathlib import Path

from transformers import Qwen2Tokenizer

from examples.l0.agent import CARELESS
from examples.l0.transcripts import record_all, scaffold
from examples.quickstart.policy import Lessons, SftConfig, learn_tokenizer, teach_policy
from examples.world.entities import make_documents, make_world
from examples.world.names import NAME, TRADE, VALUES
from examples.world.pages import Pages
from examples.world.questions import demonstration_questions
from verl_pivot.types import Trajectory

_BETWEEN_PHRASES = re.compile(
    rf"<\|[^|]*\|>|(?<=assistant\n)|(?<=system\n)|(?<=user\n)|\d+|(?<=[.?])(?=[ \n])|(?=\.</think>)|(?<=</think>)"
    rf"|(?<=<output>\n)|(?=\n</output>)|(?<=</output>)|(?<=\(nothing\))|(?=\n<notepad>)|(?<=</notepad>)"
    rf"|\b(?!File|NameError){NAME}| {TRADE}"
)
"""Marks of the chat template and of the notebook, names, numbers and ends of sentences; each text between these is one
token, so that a policy chooses what to do in a single token."""
FIRST_SFT_WORLD = 1_000_000
"""Seed of the first world of the transcripts, which differs from the study's world."""


def sft_config(seed: int) -> SftConfig:
    """Settings of the base policy, which decide its skill."""
    return SftConfig(
        seed=seed,
        num_logs=3000,
        num_copy_steps=130,
        num_careful_steps=500,
        num_careless_steps=250,
        carelessness=0.7,
        head_size=32,
    )


def make_policy(folder: Path, config: SftConfig) -> Path:
    """Train the base policy into `folder`, unless it is there already with the same configuration."""
    return teach_policy(folder, config, lambda config: _lessons(folder / "world", config))


def _lessons(folder: Path, config: SftConfig) -> Lessons:
    seed = FIRST_SFT_WORLD + config.seed
    world = make_world(seed)
    pages = Pages.of(make_documents(world, seed), folder)
    questions = demonstration_questions(world, config.num_logs, seed)
    few = record_all(questions[:200], pages, CARELESS, scaffold(_about_tokens))
    tokenizer = build_tokenizer(few)
    exact = scaffold(cache(lambda text: len(tokenizer.encode(text, add_special_tokens=False))))
    careful, careless = (
        record_all(questions, pages, CARELESS.scaled(factor), exact) for factor in (0.0, config.carelessness)
    )
    return Lessons(tokenizer, careful, careless)


def _about_tokens(text: str) -> int:
    """Rough number of tokens, used before there is a tokenizer."""
    return len(text) // 12


def build_tokenizer(transcripts: list[Trajectory]) -> Qwen2Tokenizer:
    """A tokenizer whose tokens are bytes, syllables, numbers, and the phrases between these in the transcripts.

    The phrases of the system prompt without a Notepad are tokens, too: as bytes this prompt would fill the window.
    """
    without = Trajectory(id="without a Notepad", messages=(scaffold(_about_tokens, has_notepad=False).system,))
    return learn_tokenizer([*transcripts, without], VALUES, _BETWEEN_PHRASES)
