"""Dumps of trajectories with searches -> the study's measures of each trajectory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.comparison import mean
from examples.dumps import decided, step_dumps
from examples.ppr.oracle import grade
from examples.world.questions import KINDS, WorldQuestion
from verl_pivot.data.rollout_dumps import DumpedRollout, DumpedTurn
from verl_pivot.data.rollout_records import RolloutRecord
from verl_pivot.errors import DataError
from verl_pivot.rewards.principles import ShownTurn
from verl_pivot.rewards.process_record import ProcessRecord, process_record

Questions = Mapping[str, WorldQuestion]
"""{prompt_id: question}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One decided trajectory."""

    prompt_id: str
    is_unseen: bool
    """Whether the question is of a kind that training never asks."""
    em: float
    """1 if the answer is right, else 0."""
    reward: float
    """Sum of the rewards of its turns."""
    num_turns: int
    num_tokens: int
    """Tokens that the policy sampled."""
    num_chars: int
    """Characters that the policy wrote."""
    num_searches: int
    num_valid_searches: int
    """Searches for the entity whose page tells the next fact on the way to the answer."""
    scores: tuple[float | None, ...] = ()
    """The judge's scores of the turns before the last; None where its answer was invalid."""


Measure = Callable[[Sequence[Played]], float]
"""Trajectories -> a number; NaN where no trajectory has what is measured."""


def _valid_share(played: Sequence[Played]) -> float:
    searches = sum(each.num_searches for each in played)
    return sum(each.num_valid_searches for each in played) / searches if searches else float("nan")


def _valid_answers(played: Sequence[Played]) -> float:
    scores = [score for each in played for score in each.scores]
    return mean([float(score is not None) for score in scores])


def _score_where(is_right: bool) -> Measure:
    def measure(played: Sequence[Played]) -> float:
        of_outcome = [each for each in played if (each.em > 0.0) == is_right]
        return mean([score for each in of_outcome for score in each.scores if score is not None])

    return measure


EM, REWARD, TOKENS, TURNS = "EM", "reward", "response tokens", "turns"
SEARCHES, VALID_SEARCHES = "searches", "valid searches"
MEASURES: Mapping[str, Measure] = {
    EM: lambda played: mean([each.em for each in played]),
    REWARD: lambda played: mean([each.reward for each in played]),
    TURNS: lambda played: mean([each.num_turns for each in played]),
    TOKENS: lambda played: mean([each.num_tokens for each in played]),
    "response characters": lambda played: mean([each.num_chars for each in played]),
    SEARCHES: lambda played: mean([each.num_searches for each in played]),
    VALID_SEARCHES: _valid_share,
    "valid answers of the judge": _valid_answers,
    "judge's score of right trajectories": _score_where(True),
    "judge's score of wrong trajectories": _score_where(False),
}
"""{name: measure}; `valid searches` is the share of the valid searches in all searches."""


def read_dump(path: Path, questions: Questions) -> list[Played]:
    """All decided trajectories of a dump.

    Raises:
        DataError: If the dump has no texts, because `pivot.record` left them out.
    """
    return [_played(row, record, score, questions[record.prompt_id]) for row, record, score in decided(path)]


def read_training(folder: Path, questions: Questions) -> dict[int, list[Played]]:
    """{step: trajectories} of `trainer.rollout_data_dir`, in order of the steps."""
    return {step: read_dump(path, questions) for step, path in step_dumps(folder).items()}


def _played(row: DumpedRollout, record: RolloutRecord, score: float, question: WorldQuestion) -> Played:
    if not row.has_texts:
        raise DataError(f"rollout {row.uid} has no texts, by which searches are graded: train with pivot.record=all")
    turns = [_shown(each) for each in row.turns]
    searches = {call.turn for call in record.calls if call.name == "search"}
    process = process_record(row.reward_info) or ProcessRecord(rewards=(), scores=())
    return Played(
        prompt_id=record.prompt_id,
        is_unseen=KINDS[question.kind].is_held_out,
        em=score,
        reward=sum(process.rewards),
        num_turns=len(record.turn_tokens),
        num_tokens=sum(record.turn_tokens),
        num_chars=sum(len(each.text) for each in turns),
        num_searches=len(searches),
        num_valid_searches=sum(grade(question, turns[:number], turns[number]).query for number in searches),
        scores=process.scores,
    )


def _shown(turn: DumpedTurn) -> ShownTurn:
    return ShownTurn(text=turn.recorded_text, observation="\n".join(turn.observations))
