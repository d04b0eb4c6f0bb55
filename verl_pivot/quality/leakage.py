"""Filter `leakage`: no trajectory shares word n-grams with a row of a benchmark."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from verl_pivot.data.json_values import encode_json
from verl_pivot.errors import DataError
from verl_pivot.quality.benchmarks import BenchmarkIndex, read_benchmark
from verl_pivot.quality.contract import FilterOptions, Finding, Names, TrajectoryFilter, shortened
from verl_pivot.quality.ngrams import words_of_all
from verl_pivot.quality.registry import register_filter
from verl_pivot.types import JsonObject, Message, Role, Trajectory


class LeakageOptions(FilterOptions):
    files: Names = Field(min_length=1)
    """Files of benchmarks: JSON lines, parquet, or .txt with one task per line."""
    columns: Names = ()
    """Columns of JSON lines and parquet to read; if none is named, all text of a row is read."""
    text: Literal["user", "all"] = "user"
    """Text that is compared: the user's messages, or every message with its reasoning and its calls' arguments."""
    n: int = Field(default=8, ge=1)
    """Number of words in an n-gram."""
    max_rows_per_ngram: int = Field(default=10, ge=1)
    """An n-gram in more rows of the benchmarks than this is a phrase of their prompts and is ignored."""
    min_ngrams: int = Field(default=1, ge=1)
    """Minimum number of different n-grams shared with one row for which a trajectory is dropped."""


@register_filter("leakage", options=LeakageOptions)
class Leakage(TrajectoryFilter):
    """Drops trajectories that share word n-grams with a row of a benchmark.

    Source: rStar2-Agent (arXiv:2508.20722, section 5.1), which removes problems that share an 8-gram with its
    benchmarks. The paper does not say how text is normalised; here n-grams are of words without case and punctuation,
    within one message, and phrases that many rows share are ignored.
    """

    def __init__(self, options: LeakageOptions) -> None:
        self._options = options
        rows = (row for file in options.files for row in read_benchmark(Path(file), options.columns))
        self._index = BenchmarkIndex(rows, n=options.n, max_rows_per_ngram=options.max_rows_per_ngram)
        if self._index.num_rows == self._index.num_short_rows:
            raise DataError(
                f"leakage: no row of {', '.join(options.files)} has {options.n} words, so no overlap can be found; "
                "lower n, or name other columns"
            )

    def facts(self) -> JsonObject:
        return {
            "num_benchmark_rows": self._index.num_rows,
            "num_rows_too_short": self._index.num_short_rows,
            "num_ngrams_ignored": self._index.num_common_ngrams,
        }

    def judge(self, trajectory: Trajectory) -> Finding | None:
        is_all = self._options.text == "all"
        messages = (message for message in trajectory.messages if is_all or message.role is Role.USER)
        overlap = self._index.overlap(words_of_all(text for message in messages for text in _texts(message)))
        if overlap is None or overlap.num_ngrams < self._options.min_ngrams:
            return None
        detail = f"{overlap.place}: {overlap.num_ngrams} n-grams, first {overlap.words!r}"
        return Finding(reason="benchmark_overlap", detail=shortened(detail))


def _texts(message: Message) -> list[str]:
    arguments = (encode_json(call.arguments) for call in message.tool_calls)
    return [message.content, message.reasoning or "", *arguments]
