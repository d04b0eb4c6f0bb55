"""The study's policy: a tiny Qwen2 that was taught some facts, and searches as often for these as for others."""

from pathlib import Path

from examples.ppr.policy import FIRST_SFT_WORLD, QUESTIONS_OF_A_WORLD, build_tokenizer
from examples.ppr.transcripts import OBSERVED
from examples.quickstart.policy import Lessons, SftConfig, teach_policy
from examples.search.questions import KINDS_ASKED, SEED, make_small_world, taught_questions
from examples.search.transcripts import answered, record_all
from examples.world.entities import make_documents
from examples.world.pages import Pages
from examples.world.questions import demonstration_questions
from verl_pivot.types import Trajectory


def sft_config(seed: int) -> SftConfig:
    """Settings of the base policy, which decide its skill."""
    return SftConfig(
        seed=seed,
        num_logs=2400,
        num_copy_steps=150,
        num_far_copy_steps=150,
        num_careful_steps=2400,
        num_careless_steps=1300,
        head_size=32,
    )


def make_policy(folder: Path, config: SftConfig) -> Path:
    """Train the base policy into `folder`, unless it is there already with the same configuration."""
    return teach_policy(folder, config, lambda config: _lessons(folder / "worlds", config))


def _lessons(folder: Path, config: SftConfig) -> Lessons:
    """First answers to taught questions with about as many transcripts of other worlds, then transcripts of both.

    A policy that first learns the answers alone forgets how to copy what it reads.
    """
    taught, others = taught_questions(), []
    pages = _pages(SEED, folder / "taught")
    known = [
        each
        for number in range(-(-config.num_logs // 2 // len(taught)))
        for each in record_all(taught, pages, 1000 * config.seed + number, knows=True)
    ]
    for number in range(config.num_logs // 2 // QUESTIONS_OF_A_WORLD):
        seed = FIRST_SFT_WORLD * (config.seed + 1) + number
        questions = demonstration_questions(make_small_world(seed), QUESTIONS_OF_A_WORLD, seed, KINDS_ASKED)
        others += record_all(questions, _pages(seed, folder / str(number)), seed, knows=False)
    transcripts: list[Trajectory] = [*known, *others]
    answers = [answered(each, each.answer) for each in taught] * (len(others) // len(taught))
    return Lessons(build_tokenizer(transcripts), [*answers, *others], transcripts, OBSERVED)


def _pages(seed: int, folder: Path) -> Pages:
    """The pages of a world; each world needs its own folder, since an open index stays in memory."""
    folder.mkdir(parents=True, exist_ok=True)
    return Pages.of(make_documents(make_small_world(seed), seed, num_fillers=1), folder)
