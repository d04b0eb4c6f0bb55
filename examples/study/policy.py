"""The study's policy: one tiny Qwen2 with one vocabulary, taught all domains and the questions outside of them."""

import asyncio
import re
from pathlib import Path

from transformers import Qwen2Tokenizer

from examples.quickstart.policy import Lessons, SftConfig, learn_tokenizer, teach_policy
from examples.quickstart.shop import EMAIL_PARTS, ITEMS, NAME_PARTS
from examples.study.domains.known import DOMAINS, OUTSIDE
from examples.study.domains.shell import FOLDERS
from examples.study.domains.sql import SCHEMAS
from examples.study.recording import LESSONS_USUAL, record_all, tasks_of
from examples.world.names import NAME, TRADE
from examples.world.names import VALUES as SYLLABLES
from verl_pivot.types import Trajectory

MAX_PROMPT_TOKENS = 384
"""Most tokens of a state."""
MAX_TURN_TOKENS = 40
"""Most tokens of one action."""
MAX_RESPONSE_TOKENS = 480
"""Most tokens of a whole task, observations included."""
MAX_TURNS = 10
_FIRST_SEED = 1_000_000
"""First seed of the tasks of the base policy's lessons, which no arm trains on."""
_KINDS = tuple(dict.fromkeys(kind for schema in SCHEMAS.values() for kind in schema.kinds))
_VALUES = (
    *(half for sides in (NAME_PARTS, EMAIL_PARTS) for side in sides for half in side),
    *ITEMS,
    *_KINDS,
    *(f"{folder}/" for folder in FOLDERS),
    *(f"{number:02}" for number in range(100)),
    *map(str, range(1900, 2020)),  # years as one token each, since they all begin alike
    *SYLLABLES,
)
_EITHER = {name: "|".join(words) for name, words in (("items", ITEMS), ("kinds", _KINDS), ("folders", FOLDERS))}
_EMAILS = "".join(f"(?:{'|'.join(side)})" for side in EMAIL_PARTS)
_BETWEEN_PHRASES = re.compile(
    rf"<[^>]*>|\n|(?<=[.?])(?= )|\d+|{_EITHER['items']}|{_EITHER['kinds']}|\b{NAME}| {TRADE}|{_EMAILS}(?=@)"
    rf"|(?:{_EITHER['folders']})/|(?= and )|(?= of )|(?= has )|(?= have )|(?= the (?:next )?file )"
    r"|(?='\")|(?=\"\}\})|(?<=\"query\": \")"
)
"""Pattern of values, and of places where an action can go on in several ways; each text between these is one token."""

_HARDER = ("adding", "adding", "sorting")
"""Kinds of tasks outside of the domains that need more logs than copying and asking."""


def sft_config(seed: int) -> SftConfig:
    """Settings of the base policy, which decide its skill."""
    return SftConfig(
        seed=seed,
        num_logs=8000,
        num_copy_steps=150,
        num_far_copy_steps=150,
        num_careful_steps=2400,
        num_careless_steps=400,
        carelessness=0.7,
        hidden_size=128,
        head_size=32,
    )


def make_policy(folder: Path, config: SftConfig, device: str = "cpu") -> Path:
    """Train the base policy into `folder`, unless it is there already with the same configuration."""
    return teach_policy(folder, config, lambda config: asyncio.run(_lessons(config)), device)


async def _lessons(config: SftConfig) -> Lessons:
    """Logs of careful clerks and of careless ones; two thirds of each are of the domains, with all their families."""
    first = _FIRST_SEED * (config.seed + 1)
    num_outside = config.num_logs // 3
    outside = await record_all(tasks_of([*OUTSIDE, *_HARDER], range(first, first + num_outside)))
    tasks = tasks_of(list(DOMAINS), range(first, first + config.num_logs - num_outside), every_family=True)
    careful, careless = [
        await record_all(tasks, carelessness=share, usual=LESSONS_USUAL) for share in (0.0, config.carelessness)
    ]
    return Lessons(build_tokenizer([*careless, *outside]), [*careful, *outside], [*careless, *outside])


def build_tokenizer(logs: list[Trajectory]) -> Qwen2Tokenizer:
    """A tokenizer whose tokens are bytes, values, and the phrases between values in the logs."""
    return learn_tokenizer(logs, _VALUES, _BETWEEN_PHRASES)
