"""problems.parquet and dumps of rollouts -> the problems that the policy does not always solve, and a picture."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import pyarrow
import pyarrow.parquet

from verl_pivot.data.files import replacing
from verl_pivot.data.prompts import prompt_id
from verl_pivot.data.rollout_dumps import read_rollouts
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.extras import extra

with extra("data"):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure


_BATCH_ROWS = 1024
_MAX_BARS = 33


class PassCount(NamedTuple):
    """How often the policy solved one problem."""

    num_rollouts: int = 0
    num_decided: int = 0
    """Number of rollouts with a score."""
    num_right: int = 0
    """Number of rollouts that solved the problem."""


class Standing(StrEnum):
    """How often the rollouts of a problem solve it."""

    NEVER_RIGHT = "never right"
    SOMETIMES_RIGHT = "sometimes right"
    ALWAYS_RIGHT = "always right"
    TOO_FEW = "too few decided rollouts"
    UNSEEN = "not rolled out"


class JudgedProblem(NamedTuple):
    """A problem, judged by its rollouts."""

    standing: Standing
    pass_rate: float | None
    """Share of decided rollouts that solved the problem; None where none was decided."""

    @property
    def is_kept(self) -> bool:
        return self.standing is not Standing.ALWAYS_RIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class HardSet:
    """Judged problems, which say what is kept and what is dropped.

    Source: rStar2-Agent (arXiv:2508.20722, section 4.3), whose stage 3 leaves out problems that the policy of stage 2
    solved 8 of 8 times.
    """

    judged: tuple[JudgedProblem, ...]
    """[num_problems] in the order of the file."""
    min_rollouts: int
    """Number of decided rollouts that a problem needs before it can be dropped."""
    most_decided: int
    """Largest number of decided rollouts that any problem has."""

    @property
    def num_by_standing(self) -> dict[Standing, int]:
        counts = Counter(problem.standing for problem in self.judged)
        return {standing: counts[standing] for standing in Standing}

    @property
    def num_kept(self) -> int:
        return sum(problem.is_kept for problem in self.judged)

    def note(self, standing: Standing) -> str:
        """Whether problems of this standing are kept or dropped, in words."""
        if standing is Standing.TOO_FEW:
            return f"kept: fewer than {self.min_rollouts}"
        return "dropped" if standing is Standing.ALWAYS_RIGHT else "kept"

    def check(self, problems: Path) -> None:
        """Refuse inputs that can only be a mistake, before a file is written.

        Raises:
            DataError: If the rollouts are of other problems, or nothing would be left.
            ConfigError: If no problem has enough rollouts to be judged.
        """
        num_unseen = self.num_by_standing[Standing.UNSEEN]
        if num_unseen == len(self.judged):
            raise DataError(
                f"no problem of {problems} occurs in the rollouts: give the file that was data.val_files when they "
                "were sampled, and its column of prompts as --prompt-key"
            )
        if self.most_decided < self.min_rollouts:
            raise ConfigError(
                f"no problem has {self.min_rollouts} decided rollouts, the most is {self.most_decided}: roll out with "
                f"actor_rollout_ref.rollout.val_kwargs.n={self.min_rollouts} or lower --min-rollouts"
            )
        if self.num_kept == 0:
            raise DataError(
                f"the policy always solves all {len(self.judged)} problems of {problems}, so nothing is left to train "
                "on: take harder problems, or sample more rollouts of each and raise --min-rollouts"
            )


def read_pass_counts(
    dumps: Sequence[Path], on_done: Callable[[int], None], *, right_from: float = 1.0
) -> dict[str, PassCount]:
    """How often each prompt was solved, by prompt id; a rollout counts once, even with several lines or in two dumps.

    Args:
        dumps: JSON lines, one per rollout.
        on_done: Called with the number of lines read since the last call.
        right_from: Smallest score of a rollout that solved its problem.

    Raises:
        DataError: If a line is no record of a rollout.
    """
    counts: dict[str, PassCount] = {}
    seen: set[str] = set()
    for rollout in (rollout for dump in dumps for rollout in read_rollouts(dump)):
        on_done(1)
        if rollout.record is not None and rollout.id not in seen:
            seen.add(rollout.id)
            prompt = rollout.record.prompt_id
            counts[prompt] = _add(counts.get(prompt, PassCount()), rollout.score, right_from)
    return counts


def _add(count: PassCount, score: float | None, right_from: float) -> PassCount:
    return PassCount(
        num_rollouts=count.num_rollouts + 1,
        num_decided=count.num_decided + (score is not None),
        num_right=count.num_right + (score is not None and score >= right_from),
    )


def judge(count: PassCount | None, min_rollouts: int) -> JudgedProblem:
    """Judge a problem by its rollouts; undecided ones are ignored."""
    if count is None:
        return JudgedProblem(Standing.UNSEEN, None)
    pass_rate = count.num_right / count.num_decided if count.num_decided else None
    if count.num_decided < min_rollouts:
        return JudgedProblem(Standing.TOO_FEW, pass_rate)
    if count.num_right == 0:
        return JudgedProblem(Standing.NEVER_RIGHT, pass_rate)
    always = count.num_right == count.num_decided
    return JudgedProblem(Standing.ALWAYS_RIGHT if always else Standing.SOMETIMES_RIGHT, pass_rate)


def judge_problems(problems: Path, counts: Mapping[str, PassCount], *, min_rollouts: int, prompt_key: str) -> HardSet:
    """Judge each row of a file; rows with the same prompt share their rollouts.

    Args:
        problems: A parquet file.
        counts: How often each prompt was solved, by prompt id.
        min_rollouts: Number of decided rollouts that a problem needs before it can be dropped.
        prompt_key: Column of the chat messages.

    Raises:
        DataError: If the file cannot be read or has no such messages.
    """
    found = [counts.get(each) for each in _prompt_ids(problems, prompt_key)]
    return HardSet(
        judged=tuple(judge(count, min_rollouts) for count in found),
        min_rollouts=min_rollouts,
        most_decided=max((count.num_decided for count in found if count), default=0),
    )


def _prompt_ids(problems: Path, prompt_key: str) -> Iterator[str]:
    with _reading(problems):
        file = pyarrow.parquet.ParquetFile(problems)
        if prompt_key not in file.schema_arrow.names:
            raise DataError(
                f"{problems} has no column {prompt_key!r}, only {', '.join(file.schema_arrow.names)}: set "
                "--prompt-key to the column of the chat messages"
            )
        if file.metadata.num_rows == 0:
            raise DataError(f"{problems} holds no rows: give the file that was rolled out")
        number = 0
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=[prompt_key]):
            for value in batch.column(0).to_pylist():
                number += 1
                yield _id_of(value, f"{problems}, row {number}")


def _id_of(value: object, place: str) -> str:
    """Id of a prompt, given as a list of messages or as their JSON (as in pivots.parquet)."""
    try:
        messages = json.loads(value) if isinstance(value, str) else value
        if isinstance(messages, list) and all(isinstance(message, dict) for message in messages):
            return prompt_id(messages)
        problem = "it is not a list of chat messages"
    except (TypeError, ValueError, RecursionError) as error:
        problem = str(error)
    raise DataError(f"{place}: no prompt can be read: {problem}; set --prompt-key to the column of the chat messages")


@contextmanager
def _reading(problems: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{problems} cannot be read as parquet: {error}") from error


def write_hard_set(problems: Path, hard_set: HardSet, out: Path, picture: Path, on_done: Callable[[int], None]) -> None:
    """Write the rows that are kept, a row group at a time and with the file's own schema, and the picture.

    Raises:
        ConfigError: If they cannot be written.
        DataError: If the file cannot be read.
    """
    with ExitStack() as outputs:
        kept_path, picture_path = (outputs.enter_context(replacing(path)) for path in (out, picture))
        with _reading(problems):
            file = pyarrow.parquet.ParquetFile(problems)
        # Keeps the names of fields within lists as the file has them, also where an older writer chose other names.
        own_names = {"use_compliant_nested_type": False}
        with pyarrow.parquet.ParquetWriter(kept_path, file.schema_arrow, compression="zstd", **own_names) as writer:
            for kept in _kept_rows(problems, file, hard_set, on_done):
                writer.write_table(kept)
        draw_pass_rates(hard_set, picture_path)


def _kept_rows(
    problems: Path, file: pyarrow.parquet.ParquetFile, hard_set: HardSet, on_done: Callable[[int], None]
) -> Iterator[pyarrow.Table]:
    """The kept rows of each row group, if there are any."""
    begin = 0
    for group in range(file.num_row_groups):
        with _reading(problems):
            table = file.read_row_group(group)
        judged = hard_set.judged[begin : begin + table.num_rows]
        begin += table.num_rows
        kept = table.filter(pyarrow.array([problem.is_kept for problem in judged], pyarrow.bool_()))
        if kept.num_rows:
            yield kept
        on_done(table.num_rows)


def draw_pass_rates(hard_set: HardSet, path: Path) -> None:
    """Draw a histogram of pass rates as PNG, of kept and of dropped problems."""
    num_bars = min(hard_set.most_decided + 1, _MAX_BARS)
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    bottoms = [0] * num_bars
    for is_kept, label, colour in ((True, "kept", "#0072B2"), (False, "dropped", "#D55E00")):
        rates = [each.pass_rate for each in hard_set.judged if each.is_kept == is_kept and each.pass_rate is not None]
        bars = Counter(round(rate * (num_bars - 1)) for rate in rates)
        heights = [bars[bar] for bar in range(num_bars)]
        places = [bar / (num_bars - 1) for bar in range(num_bars)]
        axes.bar(places, heights, bottom=bottoms, width=0.8 / (num_bars - 1), color=colour, label=label)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    axes.legend()
    axes.set_xlabel("pass rate of the policy on the problem")
    axes.set_ylabel("problems")
    axes.set_title(f"{len(hard_set.judged)} problems, {hard_set.num_kept} kept")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, format="png", dpi=150)
