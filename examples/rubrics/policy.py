"""The study's policy: a tiny Qwen2 that looks a person up and writes a careless report, trained by SFT."""

from pathlib import Path
from random import Random

from examples.ppr.policy import FIRST_SFT_WORLD, build_tokenizer
from examples.ppr.transcripts import OBSERVATION, OBSERVED
from examples.quickstart.policy import Lessons, SftConfig, teach_policy
from examples.rubrics.corpus import pages_of
from examples.rubrics.reports import careless_report, people, task_text
from examples.search.questions import make_small_world
from examples.world.entities import Entity
from examples.world.pages import Pages
from verl_pivot.tools.search import SearchTool
from verl_pivot.types import Message, Role, Trajectory

_REPORTS_OF_A_WORLD = 60
"""Number of reports from one world in the transcripts; each world has its own names."""


def sft_config(seed: int) -> SftConfig:
    """Settings of the base policy, which decide its skill."""
    return SftConfig(
        seed=seed,
        num_logs=1800,
        num_copy_steps=150,
        num_far_copy_steps=150,
        num_careful_steps=0,
        num_careless_steps=900,
        head_size=32,
    )


def make_policy(folder: Path, config: SftConfig) -> Path:
    """Train the base policy into `folder`, unless it is there already with the same configuration."""
    return teach_policy(folder, config, lambda config: _lessons(folder / "worlds", config))


def _lessons(folder: Path, config: SftConfig) -> Lessons:
    transcripts: list[Trajectory] = []
    for number in range(config.num_logs // _REPORTS_OF_A_WORLD):
        seed = FIRST_SFT_WORLD * (config.seed + 1) + number
        world = make_small_world(seed)
        rng, pages = Random(seed), pages_of(world, seed, folder / str(number))
        subjects = rng.sample(people(world, held_out=False), _REPORTS_OF_A_WORLD)
        transcripts += (transcript(each, pages, rng) for each in subjects)
    return Lessons(build_tokenizer(transcripts), [], transcripts, OBSERVED)


def transcript(person: Entity, pages: Pages, rng: Random) -> Trajectory:
    """Transcript of a search and a careless report."""
    page = pages.search(person.name)
    report = careless_report(person.name, page, rng)
    text = f"<search>{person.name}</search>{OBSERVATION.format(text=page)}<answer>{report}</answer>"
    messages = (
        Message(role=Role.USER, content=task_text(person.name)),
        Message(role=Role.ASSISTANT, content=text),
    )
    return Trajectory(id=person.name, messages=messages, tools=(SearchTool.schema,))
