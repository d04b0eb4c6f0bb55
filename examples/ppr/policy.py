"""The study's policy: a tiny Qwen2 that searches, with partial skill from SFT on careless transcripts."""

import re
from pathlib import Path

from transformers import Qwen2Tokenizer

from examples.ppr.agent import CARELESS, SearchHabits
from examples.ppr.transcripts import OBSERVED, record_all
from examples.ppr.world import KINDS_ASKED, make_pages, make_small_world
from examples.quickstart.policy import Lessons, SftConfig, learn_tokenizer, teach_policy
from examples.world.names import NAME, TRADE, VALUES
from examples.world.questions import demonstration_questions
from verl_pivot.types import Trajectory

_BETWEEN_PHRASES = re.compile(
    rf"<\|[^|]*\|>|(?<=assistant\n)|(?<=system\n)|(?<=user\n)|\d+|(?<=[.?] )|(?<=[.?])(?=[\n<])|(?<=<think>)"
    rf"|(?=\n\n<information>)|(?<=</information>\n\n)|(?=</information>)|(?<=\(Title: )"
    rf"|\b{NAME}| {TRADE}"
)
"""Marks of the chat template and of the tools, names, numbers and ends of sentences; each text between these is one
token, so that a policy chooses what to do in a single token."""
FIRST_SFT_WORLD = 1_000_000
"""Seed of the first world of the transcripts; all of these worlds differ from the study's."""
QUESTIONS_OF_A_WORLD = 60
"""Number of questions from one world in the transcripts; each world has its own names."""


def sft_config(seed: int) -> SftConfig:
    """Settings of the base policy, which decide its skill."""
    return SftConfig(
        seed=seed,
        num_logs=2400,
        num_copy_steps=150,
        num_far_copy_steps=150,
        num_careful_steps=1500,
        num_careless_steps=300,
        carelessness=0.5,
        head_size=32,
    )


def make_policy(folder: Path, config: SftConfig) -> Path:
    """Train the base policy into `folder`, unless it is there already with the same configuration."""
    return teach_policy(folder, config, lambda config: _lessons(folder / "world", config))


def _lessons(folder: Path, config: SftConfig) -> Lessons:
    careful: list[Trajectory] = []
    careless: list[Trajectory] = []
    for number in range(config.num_logs // QUESTIONS_OF_A_WORLD):
        seed = FIRST_SFT_WORLD * (config.seed + 1) + number
        world = make_small_world(seed)
        pages = make_pages(world, seed, folder / str(number))  # one folder for each: an open index stays in memory
        questions = demonstration_questions(world, QUESTIONS_OF_A_WORLD, seed, KINDS_ASKED)
        right = record_all(questions, pages, SearchHabits())
        assert all(each.is_right for each in right), [each.log for each in right if not each.is_right][:1]
        careful += (each.log for each in right)
        careless += (each.log for each in record_all(questions, pages, CARELESS.scaled(config.carelessness)))
    return Lessons(build_tokenizer(careless[:300]), careful, careless, OBSERVED)


def build_tokenizer(transcripts: list[Trajectory]) -> Qwen2Tokenizer:
    """A tokenizer whose tokens are bytes, syllables, numbers, and the phrases between these in the transcripts."""
    return learn_tokenizer(transcripts, VALUES, _BETWEEN_PHRASES)
