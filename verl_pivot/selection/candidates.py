"""Lines of trajectories.jsonl -> the table of pivot candidates, with what the selection needs to know of each turn."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from multiprocessing.util import Finalize

import pyarrow

from verl_pivot.data.files import RawRow
from verl_pivot.data.trajectories import read_trajectory
from verl_pivot.data.turns import fingerprints, split_key, split_of, turns
from verl_pivot.errors import ConfigError
from verl_pivot.profiling.profiles import TurnKinds
from verl_pivot.types import JsonObject, Turn, Verdict
from verl_pivot.verifiers.judge_usage import usage
from verl_pivot.verifiers.registry import load_verifier_modules
from verl_pivot.verifiers.scoring import score_expert

CANDIDATES = pyarrow.schema(
    [
        ("row", pyarrow.int64()),  # position of the trajectory in its file, from 0
        ("trajectory_id", pyarrow.string()),
        ("turn_index", pyarrow.int64()),
        ("fingerprint", pyarrow.binary(32)),
        ("split", pyarrow.string()),
        ("num_prompt_tokens", pyarrow.int64()),  # null: not counted
        ("expert_checked", pyarrow.bool_()),
        ("expert_score", pyarrow.float64()),  # null: not checked, or undecided
        ("expert_reason", pyarrow.string()),
        ("expert_detail", pyarrow.string()),  # null: not checked, or full score
    ]
)
_TURNS_AT_ONCE = 256
"""Number of turns whose experts are verified at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateSettings:
    """Settings that the table depends on, besides the trajectories."""

    model: str | None
    """Checkpoint whose tokenizer counts the tokens of prompts; None leaves them uncounted."""
    check_verifier: bool
    """Whether to ask each turn's verifier, twice, about the expert's own action."""
    seed: int
    validation_share: float
    split_by: str
    """Unit that is never divided between splits: "task" or "trajectory"."""
    verifier_modules: tuple[str, ...] = ()
    turns: TurnKinds = "all"
    """Which turns are candidates, as in the profile: "all", or "calls" for those in which the expert made calls."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.validation_share < 1.0:
            raise ConfigError(f"--validation-share must lie in [0, 1), got {self.validation_share}")

    def prepare(self) -> None:
        """Load the verifier modules, as each process must before its first chunk."""
        load_verifier_modules(self.verifier_modules)


@dataclass(frozen=True, slots=True)
class NumberedRows:
    """Neighbouring rows of a trajectories file, and the number of the first."""

    first: int
    rows: tuple[RawRow, ...]


@dataclass(frozen=True, slots=True)
class CandidateChunk:
    """Candidates of one chunk of trajectories."""

    table: pyarrow.Table
    judge_usage: dict[tuple[str, str], int]
    """Requests and tokens of judges for this chunk, as `verifiers.judge_usage.usage` counts them."""


def candidates_of(settings: CandidateSettings, chunk: NumberedRows) -> CandidateChunk:
    """Every candidate of a chunk of trajectories, in their order.

    Raises:
        DataError: If a line is no trajectory.
    """
    usage.clear()
    count = None if settings.model is None else _prompt_counter(settings.model)
    table = pyarrow.Table.from_pylist(list(_rows(chunk, settings, count)), schema=CANDIDATES)
    return CandidateChunk(table, dict(usage))


@cache
def _prompt_counter(model: str) -> Callable[[Turn], int]:
    from verl_pivot.engines.rendering import PromptRenderer

    renderer = PromptRenderer(model)
    return lambda turn: len(renderer.prompt_ids(turn))


def _rows(
    chunk: NumberedRows, settings: CandidateSettings, count: Callable[[Turn], int] | None
) -> Iterator[JsonObject]:
    found = _turns(chunk, settings)
    # Many at the same time, since a verifier may wait for a sandbox or a judge.
    while batch := list(islice(found, _TURNS_AT_ONCE)):
        verdicts = _runner().run(_verdicts([turn for _, turn in batch])) if settings.check_verifier else None
        for position, (columns, turn) in enumerate(batch):
            yield {
                **columns,
                "num_prompt_tokens": None if count is None else count(turn),
                **_expert_columns(None if verdicts is None else verdicts[position]),
            }


def _turns(chunk: NumberedRows, settings: CandidateSettings) -> Iterator[tuple[JsonObject, Turn]]:
    """Every turn, with the columns that follow from its trajectory alone."""
    for number, raw in enumerate(chunk.rows, start=chunk.first):
        trajectory = read_trajectory(raw)
        key = split_key(trajectory.id, trajectory.metadata) if settings.split_by == "task" else trajectory.id
        split = split_of(key, seed=settings.seed, validation_share=settings.validation_share)
        for turn, fingerprint in zip(turns(trajectory), fingerprints(trajectory), strict=True):
            if settings.turns == "calls" and not turn.expert.tool_calls:
                continue
            columns: JsonObject = {
                "row": number,
                "trajectory_id": trajectory.id,
                "turn_index": turn.index,
                "fingerprint": fingerprint,  # type: ignore[dict-item]  # bytes, for parquet
                "split": split,
            }
            yield columns, turn


@cache
def _runner() -> asyncio.Runner:
    """One event loop for all chunks of a process, since what verifiers keep open, such as a sandbox, belongs to it."""
    Finalize(None, close_verifiers, exitpriority=1)
    return asyncio.Runner()


def close_verifiers() -> None:
    """Close what the verifiers of this process keep open; a process of `map_in_order` does so when it ends."""
    if _runner.cache_info().currsize:
        _runner().close()
        _runner.cache_clear()


async def _verdicts(batch: Sequence[Turn]) -> list[Verdict]:
    return list(await asyncio.gather(*map(score_expert, batch)))


def _expert_columns(verdict: Verdict | None) -> JsonObject:
    if verdict is None:
        return {"expert_checked": False, "expert_score": None, "expert_reason": None, "expert_detail": None}
    return {
        "expert_checked": True,
        "expert_score": verdict.score,
        "expert_reason": verdict.reason,
        "expert_detail": None if verdict.score == 1.0 else verdict.detail,
    }
