"""Profile or dump of rollouts, with its trajectories -> StoredTurns: stored samples that can be scored again."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from verl_pivot.data.actions import TRUNCATED
from verl_pivot.data.files import RawRow, read_rows
from verl_pivot.data.pivots import row_to_turn
from verl_pivot.data.rollout_dumps import FOLDER, DumpedRollout, read_rollouts
from verl_pivot.data.trajectories import read_trajectories
from verl_pivot.data.turns import turns
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.profiling.early_stopping import EarlyStop
from verl_pivot.profiling.profiles import (
    KIND,
    TurnKey,
    file_sha256,
    index_lines,
    is_published,
    parse_line,
    read_settings,
)
from verl_pivot.types import Sample, Turn, Verdict

_NUM_EXAMPLES = 4
"""Number of example ids in the error message about an unknown turn."""
_OUTCOME = "outcome"
"""Verifier name in a dump for rollouts that an environment or a failure of the system decided."""


class StoredSample(NamedTuple):
    """One sample, and whether its turn ended."""

    sample: Sample
    ended: bool
    """Whether the policy ended its turn by itself; False if it was cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTurn:
    """A turn with its stored samples."""

    turn: Turn
    samples: tuple[StoredSample, ...]
    """[num_samples] samples; empty if the prompt was too long, or the turn was not sampled yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleStore:
    """Source of turns and their stored samples."""

    turns: Path
    """trajectories.jsonl or pivots.parquet."""
    source: Path
    """The file that the user named: a profile, a dump, or the file of `turns`."""
    samples: Callable[[Turn], tuple[StoredSample, ...] | None]
    """Function that returns the samples of a turn, or None for a turn that the source lacks."""
    num_turns: int | None = None
    """Number of turns with samples, for a progress bar; None if it is not known."""
    early_stop: EarlyStop | None = None
    """Plan by which the profile was sampled."""
    note: str = ""
    """Message for the user about rollouts that were left out; "" if there are none."""

    def stored_turn(self, turn_id: str) -> StoredTurn:
        """The turn with an id `<trajectory id>:<number of the turn>`.

        Raises:
            DataError: If there is no such turn; the message names some turns that exist.
        """
        known: list[str] = []
        for stored in self.stored_turns():
            if stored.turn.id == turn_id:
                return stored
            if stored.turn.trajectory_id == turn_id.rpartition(":")[0] or len(known) < _NUM_EXAMPLES:
                known.append(stored.turn.id)
        raise DataError(
            f"there is no turn {turn_id!r} in {self.source}; examples of its turns: "
            f"{', '.join(known[-_NUM_EXAMPLES:]) or 'none'}"
        )

    def stored_turns(self, limit: int | None = None) -> Iterator[StoredTurn]:
        """Every turn in the order of the trajectories; turns that the source lacks are left out.

        Args:
            limit: Number of trajectories, or rows of pivots.parquet, to read from the start; None reads all.

        Raises:
            DataError: If a line of a file is broken.
        """
        for turn in _turns(self.turns, limit):
            if (samples := self.samples(turn)) is not None:
                yield StoredTurn(turn=turn, samples=samples)


def open_samples(source: Path, trajectories: Path | None) -> SampleStore:
    """Find the samples that `source` holds.

    Args:
        source: profile.jsonl; a dump of rollouts; or trajectories.jsonl or pivots.parquet, which hold no samples.
        trajectories: File with the turns of the profile or the dump; None looks for it in the profile's folder.

    Raises:
        DataError: If `source` cannot be read, holds published scores without actions, or belongs to other trajectories.
        ConfigError: If the trajectories are not found.
    """
    begin = _first_line(source)
    if begin.startswith(f'{{"kind": "{KIND}"'.encode()):
        return _open_profile(source, trajectories)
    columns = _columns(begin)
    if {"input", "output"} <= columns:
        raise DataError(
            f"{source} is verl's own dump, without the turns of its rows; give {source.parent / FOLDER / source.name}"
        )
    if {"uid", "kept"} <= columns:
        if trajectories is None:
            raise ConfigError(
                f"{source} is a dump of rollouts, which does not hold their prompts; give the pivots.parquet of the "
                "training as --trajectories"
            )
        return _open_dump(source, trajectories)
    if trajectories is not None:
        raise ConfigError(f"{source} is neither a profile nor a dump, so --trajectories is not used; leave it out")
    return SampleStore(turns=source, source=source, samples=lambda turn: ())


def _turns(path: Path, limit: int | None) -> Iterator[Turn]:
    if path.suffix == ".parquet":
        yield from map(_turn_of, islice(read_rows(path), limit))
        return
    for trajectory in islice(read_trajectories(path), limit):
        yield from turns(trajectory)


def _turn_of(row: RawRow) -> Turn:
    try:
        return row_to_turn(row.decoded())
    except (ValueError, TypeError) as error:  # a DataError, or a value of another type
        raise DataError(f"{row.place} is no pivot ({error}); give the pivots.parquet of `verl-pivot select`") from error


def _first_line(source: Path) -> bytes:
    try:
        with source.open("rb") as file:
            return file.readline(1 << 24)
    except OSError as error:
        raise DataError(
            f"{source} cannot be read: {error.strerror}; give the profile.jsonl of `verl-pivot profile`, or a "
            "trajectories.jsonl"
        ) from error


def _open_profile(profile: Path, trajectories: Path | None) -> SampleStore:
    if is_published(profile):
        raise DataError(
            f"{profile} holds published scores without actions, so nothing can be scored again; measure a profile with "
            "`verl-pivot profile`"
        )
    settings = read_settings(profile)
    if trajectories is None:
        trajectories = _beside(profile, settings.input_sha256)
    elif file_sha256(trajectories) != settings.input_sha256:
        raise DataError(
            f"{profile} was not measured on the present content of {trajectories}; give the file that it was measured "
            "on with --trajectories"
        )
    index = index_lines(profile)

    def samples(turn: Turn) -> tuple[StoredSample, ...] | None:
        line = index.line(TurnKey(turn.trajectory_id, turn.index))
        if line is None:
            return None
        with profile.open("rb") as lines:
            lines.seek(index.offset(line))
            found = parse_line(f"{profile}, line {line + 2}", lines.readline()).samples
        return tuple(StoredSample(sample, not _was_truncated(sample)) for sample in found)

    return SampleStore(
        turns=trajectories, source=profile, samples=samples, num_turns=len(index), early_stop=settings.early_stop
    )


def _beside(profile: Path, sha256: str) -> Path:
    """The trajectories file of a profile, found in its folder by its digest; trajectories.jsonl is tried first."""
    usual = profile.with_name("trajectories.jsonl")
    others = sorted(path for path in profile.parent.glob("*.jsonl") if path not in (usual, profile))
    for path in (usual, *others):
        if path.is_file() and file_sha256(path) == sha256:
            return path
    raise ConfigError(
        f"no .jsonl file in the folder of {profile} is the file that the profile was measured on; give that file as "
        "--trajectories"
    )


def _was_truncated(sample: Sample) -> bool:
    """Whether the verdict of a sample says that the turn was cut off at the token limit."""
    return (sample.verdict.reason, sample.verdict.detail) == (TRUNCATED.reason, TRUNCATED.detail)


def _columns(line: bytes) -> frozenset[str]:
    """Keys of the JSON object in a line; empty if the line holds anything else."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return frozenset()
    return frozenset(fields) if isinstance(fields, dict) else frozenset()


def _open_dump(dump: Path, trajectories: Path) -> SampleStore:
    """Samples of a dump: the first turn of each rollout that a verifier scored."""
    found: defaultdict[TurnKey, list[StoredSample]] = defaultdict(list)
    seen: set[str] = set()
    num_textless = 0
    for rollout in read_rollouts(dump):
        num_textless += rollout.id not in seen and not rollout.has_texts
        if rollout.id not in seen and (sample := _sample_of(rollout, dump)) is not None:
            found[TurnKey(str(rollout.trajectory_id), int(rollout.turn_index or 0))].append(sample)
        seen.add(rollout.id)
    if not found and num_textless:
        raise DataError(
            f"{dump} holds no texts of actions, as pivot.record left them out; train with pivot.record=all to score "
            "them again"
        )
    if not found:
        raise DataError(
            f"{dump} holds no rollout of a pivot that a verifier scored: rollouts with tools are scored by their "
            "environment or by verl's reward function"
        )
    num_left_out = len(seen) - sum(map(len, found.values())) - num_textless
    known = {TurnKey(turn.trajectory_id, turn.index) for turn in _turns(trajectories, None)}
    if unknown := found.keys() - known:
        raise DataError(
            f"{len(unknown)} of {len(found)} pivots of {dump} are not in {trajectories}, such as turn "
            f"{':'.join(map(str, min(unknown)))}; give the training file as --trajectories"
        )

    def samples(turn: Turn) -> tuple[StoredSample, ...] | None:
        key = TurnKey(turn.trajectory_id, turn.index)
        return tuple(found[key]) if key in found else None

    notes = [
        f"{number} rollouts are left out: {why}."
        for number, why in (
            (num_left_out, "no verifier scored them"),
            (num_textless, "pivot.record left out their texts"),
        )
        if number
    ]
    return SampleStore(turns=trajectories, source=dump, samples=samples, num_turns=len(found), note="\n".join(notes))


def _sample_of(rollout: DumpedRollout, dump: Path) -> StoredSample | None:
    """The rollout's first turn, which is the action at the pivot; None if no verifier scored it."""
    is_scored = rollout.verifier not in (None, _OUTCOME)
    if rollout.trajectory_id is None or not rollout.turns or not rollout.has_texts or not is_scored:
        return None
    try:
        verdict = Verdict(score=rollout.score, reason=rollout.reason, detail=rollout.detail)
    except ValueError as error:
        raise DataError(f"{dump}, rollout {rollout.uid}: {error}") from error
    action = rollout.turns[0]
    return StoredSample(Sample(text=action.recorded_text, verdict=verdict, num_tokens=action.num_tokens), action.ended)
