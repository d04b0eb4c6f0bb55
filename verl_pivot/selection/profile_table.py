"""Lines of profile.jsonl -> the table of profiles: the statistics of each turn, without the sampled actions."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow

from verl_pivot.data.files import RawRow, read_rows
from verl_pivot.errors import DataError
from verl_pivot.profiling.early_stopping import turn_statistics
from verl_pivot.profiling.profiles import parse_line
from verl_pivot.profiling.summary import outcome
from verl_pivot.types import JsonObject, Sample, TurnProfile, Verdict

PROFILES = pyarrow.schema(
    [
        ("trajectory_id", pyarrow.string()),
        ("turn_index", pyarrow.int64()),
        ("outcome", pyarrow.string()),
        ("pass_rate", pyarrow.float64()),  # null, like the next three, if no sample was decided
        ("reward_mean", pyarrow.float64()),
        ("reward_std", pyarrow.float64()),
        ("reward_var", pyarrow.float64()),
        ("num_scores", pyarrow.int64()),
        ("num_prompt_tokens", pyarrow.int64()),
        ("line", pyarrow.int64()),  # position in the file, from 1
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


class _Sample(msgspec.Struct):
    score: float | None


class _Line(msgspec.Struct):
    trajectory_id: str
    turn_index: int
    num_prompt_tokens: int | None
    samples: list[_Sample]


_DECODER = msgspec.json.Decoder(_Line)


def profiles_of(rows: tuple[RawRow, ...]) -> pyarrow.Table:
    """The statistics of each line's turn over its samples.

    Raises:
        DataError: If a line is no turn's profile, naming the line.
    """
    return pyarrow.Table.from_pylist([_columns(row) for row in rows], schema=PROFILES)


def _columns(row: RawRow) -> JsonObject:
    assert isinstance(row.raw, bytes)
    try:
        line = _DECODER.decode(row.raw)
        scores = tuple(sample.score for sample in line.samples)
        statistics = _statistics(scores, 0 if line.num_prompt_tokens == 0 else None)
    except (msgspec.MsgspecError, ValueError) as error:
        parse_line(str(row.place), row.raw)  # raises DataError with what is wrong
        raise DataError(
            f"{row.place} was not written by `verl-pivot profile`: {error}; delete that line and run it again"
        ) from error
    return {
        "trajectory_id": line.trajectory_id,
        "turn_index": line.turn_index,
        "num_prompt_tokens": line.num_prompt_tokens,
        "line": row.place.number,
        **statistics,
    }


@lru_cache(maxsize=1 << 14)  # 8 samples that are right or wrong have only 256 sequences of scores
def _statistics(scores: tuple[float | None, ...], num_prompt_tokens: Literal[0] | None) -> JsonObject:
    """Statistics of a turn; its number of prompt tokens counts only where it is 0, so that few turns fill the cache."""
    samples = (Sample(text="", verdict=Verdict(score=score, reason=""), num_tokens=0) for score in scores)
    profile = TurnProfile(trajectory_id="", index=0, samples=tuple(samples), num_prompt_tokens=num_prompt_tokens)
    return {
        "outcome": outcome(profile).value,
        **turn_statistics(profile).as_dict(),
        "num_scores": len(profile.scores),
    }
