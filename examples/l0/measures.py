"""Dumps of trajectories in a notebook -> the study's measures of each trajectory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from examples.dumps import decided, step_dumps
from verl_pivot.data.rollout_dumps import DumpedRollout
from verl_pivot.data.rollout_records import RolloutRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One decided trajectory."""

    prompt_id: str
    em: float
    """1 if the submitted answer is right, else 0."""
    format: float
    """Share of the steps in the right format."""
    execution: float
    """Share of the steps whose cell ran."""
    num_steps: int
    num_tokens: int
    """Tokens that the policy sampled."""
    num_trims: int
    num_searches: int
    num_redundant: int
    """Number of searches that repeat an earlier query of the trajectory."""


MEASURES: Mapping[str, Callable[[Played], float]] = {
    "EM": lambda played: played.em,
    "response tokens": lambda played: played.num_tokens,
    "steps": lambda played: played.num_steps,
    "format": lambda played: played.format,
    "execution": lambda played: played.execution,
    "redundant searches": lambda played: played.num_redundant,
}
"""{name: value of a trajectory}; the plots show their means, as figure 3 of L0 (arXiv:2506.23667) does."""


def read_dump(path: Path) -> list[Played]:
    """All decided trajectories of a dump; of the rows of a trajectory, the last one has its record."""
    return [_played(each.row, each.record) for each in decided(path)]


def read_training(folder: Path) -> dict[int, list[Played]]:
    """{step: trajectories} of `trainer.rollout_data_dir`, in order of the steps."""
    return {step: read_dump(path) for step, path in step_dumps(folder).items()}


def mean(name: str, played: Sequence[Played]) -> float:
    """Mean of one of MEASURES."""
    return fmean(MEASURES[name](each) for each in played)


def _played(row: DumpedRollout, record: RolloutRecord) -> Played:
    queries = [
        str((call.arguments or {}).get("query")).lower().split() for call in record.calls if call.name == "search"
    ]
    return Played(
        prompt_id=record.prompt_id,
        em=float(row.reward_info["em"]),
        format=float(row.reward_info["format"]),
        execution=float(row.reward_info["execution"]),
        num_steps=len(record.turn_tokens),
        num_tokens=sum(record.turn_tokens),
        num_trims=record.num_trims,
        num_searches=len(queries),
        num_redundant=len(queries) - len(set(map(tuple, queries))),
    )
