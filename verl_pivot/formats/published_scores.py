"""Columns of a published pivot -> the scores of the samples that its publisher drew at that turn."""

import math

from verl_pivot.data.json_values import BadRowError, as_list, type_in_words
from verl_pivot.types import Json, JsonObject

_TOLERANCE = 0.005
"""Largest allowed error of a published mean, that of rounding to two decimals. One of 64 samples shifts it 3 times as
far."""
_MAX_SAMPLES = 10_000


def published_scores(row: JsonObject) -> tuple[float, ...]:
    """[num_samples] scores in [0, 1] of the samples that the row was published with; empty if it has none.

    The scores are the list `rewards` in the one column `*_info` that has it. Without such a column, `pass_rate_passed`
    scores are 1 and the rest, up to `pass_rate_total` scores, are 0.

    Raises:
        BadRowError: If the columns contradict each other.
    """
    counted = _counted(row)
    rewards = {
        key: value
        for key, value in row.items()
        if key.endswith("_info") and isinstance(value, dict) and value.get("rewards")
    }
    if len(rewards) > 1:
        names = ", ".join(sorted(rewards))
        raise _contradiction(f"{names} hold rewards of different models; keep one of these columns")
    return next((_rewards(key, value) for key, value in rewards.items()), counted)


def _rewards(key: str, info: JsonObject) -> tuple[float, ...]:
    rewards = tuple(_number(f"a reward in {key}", reward) for reward in as_list(info["rewards"], f"{key}.rewards"))
    if wrong := [reward for reward in rewards if not 0.0 <= reward <= 1.0]:
        raise _contradiction(f"a reward in {key} must lie in [0, 1], got {wrong[0]:g}")
    if info.get("reward_mean") is not None:
        _check_mean(f"{key}.reward_mean", info["reward_mean"], math.fsum(rewards) / len(rewards))
    return rewards


def _counted(row: JsonObject) -> tuple[float, ...]:
    if row.get("pass_rate_passed") is None or row.get("pass_rate_total") is None:
        return ()
    passed, total = (_count(key, row[key]) for key in ("pass_rate_passed", "pass_rate_total"))
    if passed > total:
        raise _contradiction(f"pass_rate_passed is {passed}, more than pass_rate_total, {total}")
    if total and row.get("pass_rate") is not None:
        _check_mean("pass_rate", row["pass_rate"], passed / total)
    return (1.0,) * passed + (0.0,) * (total - passed)


def _check_mean(key: str, given: Json, mean: float) -> None:
    if abs(_number(key, given) - mean) > _TOLERANCE:
        raise _contradiction(f"{key} is {given}, but the mean of the row's samples is {mean:g}")


def _count(key: str, value: Json) -> int:
    number = _number(key, value)
    if not number.is_integer() or not 0 <= number <= _MAX_SAMPLES:
        raise _contradiction(f"{key} must be a whole number from 0 to {_MAX_SAMPLES}, got {value}")
    return int(number)


def _number(key: str, value: Json) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _contradiction(f"{key} must be a number, got {type_in_words(value)}")
    try:
        return float(value)
    except OverflowError as error:
        raise _contradiction(f"{key} is too large a number") from error


def _contradiction(detail: str) -> BadRowError:
    return BadRowError("bad_scores", detail)
