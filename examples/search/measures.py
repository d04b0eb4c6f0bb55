"""Dumps of trajectories with searches -> the study's measures on taught and on untaught facts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from examples.dumps import decided, step_dumps

RIGHT_FROM = 0.5
"""Reward from which an answer counts as right: each search costs at most 0.1, and there are at most two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One decided trajectory."""

    prompt_id: str
    em: float
    """1 if the answer is right, else 0."""
    num_searches: int


def read_dump(path: Path) -> list[Played]:
    """All decided trajectories of a dump."""
    return [
        Played(
            prompt_id=each.record.prompt_id,
            em=float(each.score >= RIGHT_FROM),
            num_searches=sum(call.name == "search" for call in each.record.calls),
        )
        for each in decided(path)
    ]


def read_training(folder: Path) -> dict[int, list[Played]]:
    """{step: trajectories} of `trainer.rollout_data_dir`, in order of the steps."""
    return {step: read_dump(path) for step, path in step_dumps(folder).items()}


def split(played: Sequence[Played], taught: frozenset[str]) -> Mapping[str, list[Played]]:
    """{"taught", "untaught": trajectories on these questions}"""
    parts: dict[str, list[Played]] = {"taught": [], "untaught": []}
    for each in played:
        parts["taught" if each.prompt_id in taught else "untaught"].append(each)
    return parts


def mean_em(played: Sequence[Played]) -> float:
    return fmean(each.em for each in played) if played else float("nan")


def mean_searches(played: Sequence[Played]) -> float:
    return fmean(each.num_searches for each in played) if played else float("nan")
