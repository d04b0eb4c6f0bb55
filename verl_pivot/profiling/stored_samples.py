"""profile.jsonl and its trajectories -> StoredTurns: the samples that a profile keeps, to be scored anew."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from verl_pivot.data.actions import TRUNCATED
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
from verl_pivot.types import Sample, Turn

_NUM_EXAMPLES = 4
"""Ids of turns in the message about one that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTurn:
    """A turn with the samples that are stored for it."""

    turn: Turn
    samples: tuple[Sample, ...]
    """[num_samples] none where the prompt was too long, or where nothing was sampled yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleStore:
    """Where the turns and their samples are read from."""

    trajectories: Path
    profile: Path | None
    """None: there are the experts' actions alone."""
    early_stop: EarlyStop | None = None
    """Plan by which the profile was sampled."""

    def stored_turn(self, turn_id: str) -> StoredTurn:
        """The turn of that id, `<trajectory id>:<number of the turn>`.

        Raises:
            DataError: If there is none, naming some that there are.
        """
        known: list[str] = []
        for stored in self.stored_turns():
            if stored.turn.id == turn_id:
                return stored
            if stored.turn.trajectory_id == turn_id.rpartition(":")[0] or len(known) < _NUM_EXAMPLES:
                known.append(stored.turn.id)
        raise DataError(
            f"there is no turn {turn_id!r} in {self.profile or self.trajectories}; there are "
            f"{', '.join(known[-_NUM_EXAMPLES:]) or 'none'}"
        )

    def stored_turns(self, limit: int | None = None) -> Iterator[StoredTurn]:
        """Every turn in the order of the trajectories; those that the profile lacks are left out.

        Args:
            limit: Trajectories to read from the start of the file; None reads all.

        Raises:
            DataError: If a line of a file is broken.
        """
        found = (turn for each in islice(read_trajectories(self.trajectories), limit) for turn in turns(each))
        if self.profile is None:
            yield from (StoredTurn(turn=turn, samples=()) for turn in found)
            return
        index = index_lines(self.profile)
        with self.profile.open("rb") as lines:
            for turn in found:
                line = index.line(TurnKey(turn.trajectory_id, turn.index))
                if line is not None:
                    lines.seek(index.offset(line))
                    profile = parse_line(f"{self.profile}, line {line + 2}", lines.readline())
                    yield StoredTurn(turn=turn, samples=profile.samples)


def open_samples(source: Path, trajectories: Path | None) -> SampleStore:
    """Find what is stored in `source`.

    Args:
        source: profile.jsonl, or trajectories.jsonl, which holds no samples.
        trajectories: What the profile was measured on; None looks for it beside the profile.

    Raises:
        DataError: If `source` cannot be read, holds published scores without actions, or the trajectories are others.
        ConfigError: If the trajectories are not found.
    """
    if not _is_profile(source):
        if trajectories is not None:
            raise ConfigError(f"{source} is no profile, so --trajectories has nothing to add; leave it out")
        return SampleStore(trajectories=source, profile=None)
    if is_published(source):
        raise DataError(
            f"{source} holds scores that were published without the actions that got them, so nothing can be scored "
            "anew; measure a profile with `verl-pivot profile`"
        )
    settings = read_settings(source)
    if trajectories is None:
        trajectories = _beside(source, settings.input_sha256)
    elif file_sha256(trajectories) != settings.input_sha256:
        raise DataError(
            f"{source} was measured on another file than {trajectories}, or on what was in it before; give the file "
            "that it was measured on with --trajectories"
        )
    return SampleStore(trajectories=trajectories, profile=source, early_stop=settings.early_stop)


def _is_profile(source: Path) -> bool:
    try:
        with source.open("rb") as file:
            return file.readline().startswith(f'{{"kind": "{KIND}"'.encode())
    except OSError as error:
        raise DataError(
            f"{source} cannot be read: {error.strerror}; give the profile.jsonl of `verl-pivot profile`, or a "
            "trajectories.jsonl"
        ) from error


def _beside(profile: Path, sha256: str) -> Path:
    """The file in the profile's folder that it was measured on; trajectories.jsonl is tried first."""
    usual = profile.with_name("trajectories.jsonl")
    others = sorted(path for path in profile.parent.glob("*.jsonl") if path not in (usual, profile))
    for path in (usual, *others):
        if path.is_file() and file_sha256(path) == sha256:
            return path
    raise ConfigError(
        f"no .jsonl file beside {profile} is what the profile was measured on; name the trajectories.jsonl with "
        "--trajectories"
    )


def was_truncated(sample: Sample) -> bool:
    """Whether a sample reached its token limit before the turn ended, as its verdict says."""
    return (sample.verdict.reason, sample.verdict.detail) == (TRUNCATED.reason, TRUNCATED.detail)
