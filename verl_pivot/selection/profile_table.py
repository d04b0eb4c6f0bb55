"""Lines of profile.jsonl -> the table of profiles: the numbers of each turn, without what was sampled."""

import math
from collections.abc import Iterator
from pathlib import Path

import pyarrow

from verl_pivot.data.storage import RawRow, read_rows
from verl_pivot.errors import DataError
from verl_pivot.profiling.profiles import parse_profile
from verl_pivot.profiling.summary import outcome
from verl_pivot.types import JsonObject, TurnProfile

PROFILES = pyarrow.schema(
    [
        ("trajectory_id", pyarrow.string()),
        ("turn_index", pyarrow.int64()),
        ("outcome", pyarrow.string()),
        ("pass_rate", pyarrow.float64()),  # null, like the next three: no sample was decided
        ("reward_mean", pyarrow.float64()),
        ("reward_std", pyarrow.float64()),
        ("reward_var", pyarrow.float64()),
        ("num_scores", pyarrow.int64()),
        ("num_prompt_tokens", pyarrow.int64()),
        ("line", pyarrow.int64()),
    ]
)


def profile_rows(path: Path) -> Iterator[RawRow]:
    """Every line of a profile after its header.

    Raises:
        DataError: If the file cannot be read.
    """
    rows = read_rows(path)
    next(rows, None)
    return rows


def profiles_of(rows: tuple[RawRow, ...]) -> pyarrow.Table:
    """The numbers of some turns.

    Raises:
        DataError: If a line is no turn's profile, naming the line.
    """
    return pyarrow.Table.from_pylist([_columns(row) for row in rows], schema=PROFILES)


def _columns(row: RawRow) -> JsonObject:
    try:
        profile = parse_profile(row.decoded())
    except DataError as error:
        raise DataError(
            f"{row.place} is no turn's profile: {error}; delete that line and run `verl-pivot profile` "
            "again: it measures the turn anew"
        ) from error
    return {
        "trajectory_id": profile.trajectory_id,
        "turn_index": profile.index,
        "outcome": outcome(profile).value,
        **_statistics(profile),
        "num_scores": len(profile.scores),
        "num_prompt_tokens": profile.num_prompt_tokens,
        "line": row.place.number,
    }


def _statistics(profile: TurnProfile) -> JsonObject:
    values = {
        "pass_rate": profile.pass_rate,
        "reward_mean": profile.reward_mean,
        "reward_std": profile.reward_std,
        "reward_var": profile.reward_var,
    }
    return {name: None if math.isnan(value) else value for name, value in values.items()}
