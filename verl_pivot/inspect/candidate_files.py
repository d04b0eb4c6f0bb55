"""Profile, pivots, trajectories and reasons of drops -> CandidateFiles: turns by trajectory, each opened on demand."""

import json
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import pyarrow.parquet

from verl_pivot.data.files import Place, RawRow
from verl_pivot.data.pivots import row_to_turn
from verl_pivot.data.trajectories import read_trajectory
from verl_pivot.data.turns import turns
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.inspect.candidates import CandidateTurn, FilterDrop, ListedTrajectory, SelectionFound
from verl_pivot.profiling.profiles import KIND, parse_line, profiled_sha256
from verl_pivot.runs.growing_lines import GrowingLines, PlacedLine
from verl_pivot.selection.decisions import Decision
from verl_pivot.selection.profile_table import profiles_of
from verl_pivot.selection.selecting import SelectionOutputs
from verl_pivot.types import Json, JsonObject, Turn, TurnProfile

_OF_PROFILE = ("outcome", "num_scores", "pass_rate", "reward_mean", "num_prompt_tokens")
"""Columns of a profile's table that a turn keeps."""
_BROKEN_LINE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors that decoding a line raises if it is not JSON, has another form or is nested too deeply."""
_PIVOT_COLUMNS = ["trajectory_id", "turn_index", "split", "pass_rate", "reward_mean", "num_prompt_tokens"]


class CandidateKind(StrEnum):
    """Kind of a file that one of the stages before training writes."""

    PROFILE = "profile"
    PIVOTS = "pivots"
    TRAJECTORIES = "trajectories"
    DROPPED = "dropped"
    """Reasons for which `verl-pivot filter` dropped trajectories."""


def kind_of(path: Path) -> CandidateKind | None:
    """Kind of a file, by its suffix or its first line; None if it is of no such kind.

    Raises:
        DataError: If it cannot be read.
    """
    try:
        if not path.is_file():
            return None
        if path.suffix == ".parquet":
            return CandidateKind.PIVOTS
        with path.open("rb") as file:
            first = msgspec.json.decode(file.readline())
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; give a file that can be read") from error
    except _BROKEN_LINE:
        return None
    fields = first if isinstance(first, dict) else {}
    if fields.get("kind") == KIND:
        return CandidateKind.PROFILE
    if {"id", "messages", "verifier"} <= fields.keys():
        return CandidateKind.TRAJECTORIES
    return CandidateKind.DROPPED if {"id", "filter", "reason", "detail"} <= fields.keys() else None


class _Spot(NamedTuple):
    """Place of a trajectory or a turn in a file."""

    path: Path
    number: int
    """Number of the line in a JSON lines file, from 1, or of the row in a parquet file, from 0."""
    offset: int
    """Number of bytes before the line; 0 in a parquet file."""


class _TrajectoryMessage(msgspec.Struct, gc=False):
    role: str


class _TrajectoryLine(msgspec.Struct):
    """Fields of a line of trajectories that are read before the trajectory is opened."""

    id: str
    messages: list[_TrajectoryMessage]
    passed: bool | None = None
    expert_turns: list[int] | Literal["all", "last"] = "all"
    """The same as in `types.Trajectory`."""


_TRAJECTORY = msgspec.json.Decoder(_TrajectoryLine)
_DROPPED = msgspec.json.Decoder(FilterDrop)


class CandidateFiles:
    """Facts about each turn from the files; samples and states are read only when a turn is opened."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Read the files once.

        Args:
            paths: Files about one set of trajectories, in any order: at most one of each kind, of pivots both splits.

        Raises:
            DataError: If a file cannot be read, or a line is not of the kind of its file.
            ConfigError: If two files are of the same kind, or more than two hold pivots.
        """
        self.paths = tuple(paths)
        self.trajectories: dict[str, ListedTrajectory] = {}
        """{id: trajectory}, in the order in which the files name them."""
        self.selection: SelectionFound | None = None
        self.has_profile = False
        self._spots: dict[CandidateKind, dict[Any, _Spot]] = {kind: {} for kind in CandidateKind}
        kinds = [kind_of(path) for path in paths]
        if len(kinds) > len({*kinds}) + (kinds.count(CandidateKind.PIVOTS) == 2):
            raise ConfigError(
                "give at most one file of each kind, all about the same trajectories; only pivots may be two files, "
                "one per split"
            )
        read = {
            CandidateKind.TRAJECTORIES: self._read_trajectories,
            CandidateKind.DROPPED: self._read_dropped,
            CandidateKind.PROFILE: self._read_profile,
            CandidateKind.PIVOTS: self._read_pivots,
        }
        for kind, function in read.items():  # trajectories first, since their order is that of the list
            for path in (path for path, its in zip(paths, kinds, strict=True) if its is kind):
                function(path)
        if self.selection is not None:
            num_found = len(self._spots[CandidateKind.PIVOTS])
            num_missing = max(0, self.selection.num_by_decision.get(Decision.KEPT, 0) - num_found)
            self.selection = msgspec.structs.replace(self.selection, num_missing=num_missing)

    def profile(self, trajectory_id: str, turn_index: int) -> TurnProfile | None:
        """Samples of a turn; None if it has no profile here.

        Raises:
            DataError: If the file was changed since it was read.
        """
        spot = self._spots[CandidateKind.PROFILE].get((trajectory_id, turn_index))
        return None if spot is None else parse_line(f"{spot.path}, line {spot.number}", _line_at(spot))

    def turn(self, trajectory_id: str, turn_index: int) -> Turn | None:
        """State, tools and expert's action of a turn, from the trajectories or else from the pivots.

        Raises:
            DataError: If the file was changed since it was read, or the line is no trajectory.
        """
        if (spot := self._spots[CandidateKind.TRAJECTORIES].get(trajectory_id)) is not None:
            found = turns(read_trajectory(_raw_row(spot.path, spot.number, _line_at(spot))))
            return next((turn for turn in found if turn.index == turn_index), None)
        if (spot := self._spots[CandidateKind.PIVOTS].get((trajectory_id, turn_index))) is not None:
            return row_to_turn(_parquet_row(spot))
        return None

    def _listed(self, trajectory_id: str) -> ListedTrajectory:
        return self.trajectories.setdefault(trajectory_id, ListedTrajectory(trajectory_id))

    def _candidate(self, trajectory_id: str, turn_index: int) -> CandidateTurn:
        return self._listed(trajectory_id).turns.setdefault(turn_index, CandidateTurn(turn_index))

    def _read_trajectories(self, path: Path) -> None:
        for line in _lines(path):
            try:
                found = _TRAJECTORY.decode(line.text)
            except _BROKEN_LINE as error:
                raise DataError(
                    f"{path}, line {line.number} is not a trajectory ({error}); write it with `verl-pivot import`"
                ) from error
            listed = self._listed(found.id)
            listed.passed = found.passed
            positions = [at for at, message in enumerate(found.messages) if message.role == "assistant"]
            listed.num_turns = len(positions)
            for index in _expert_indices(found.expert_turns, len(positions)):
                if positions[index] > 0:  # as in `data.turns.turns`: one without a state is no candidate
                    self._candidate(found.id, index)
            self._spots[CandidateKind.TRAJECTORIES][found.id] = _Spot(path, line.number, line.offset)

    def _read_dropped(self, path: Path) -> None:
        for line in _lines(path):
            try:
                found = _DROPPED.decode(line.text)
            except _BROKEN_LINE as error:
                raise DataError(
                    f"{path}, line {line.number} does not say why a trajectory was dropped ({error}); write it with "
                    "`verl-pivot filter`"
                ) from error
            self._listed(found.id).dropped = found

    def _read_profile(self, path: Path) -> None:
        profiled_sha256(path)  # refuses a file of another version
        self.has_profile = True
        for lines in _chunks(path):
            measured = [line for line in lines if line.number > 1]  # the first one has the settings
            rows = tuple(_raw_row(path, line.number, line.text) for line in measured)
            for line, found in zip(measured, profiles_of(rows).to_pylist(), strict=True):
                key = (found["trajectory_id"], found["turn_index"])
                turn = self._candidate(*key)
                for name in _OF_PROFILE:
                    setattr(turn, name, found[name])
                self._spots[CandidateKind.PROFILE][key] = _Spot(path, line.number, line.offset)

    def _read_pivots(self, path: Path) -> None:
        try:
            table = _read_columns(path, _PIVOT_COLUMNS)
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(
                f"{path} holds no pivots ({error}); wait until `verl-pivot select` has written it, or write it again"
            ) from error
        if self.selection is None:
            self.selection = _selection_beside(path)
        for number, row in enumerate(table.to_pylist()):
            key = (row["trajectory_id"], row["turn_index"])
            turn = self._candidate(*key)
            turn.split = row["split"]
            turn.pass_rate, turn.reward_mean = row["pass_rate"], row["reward_mean"]
            turn.num_prompt_tokens = row["num_prompt_tokens"]
            self._spots[CandidateKind.PIVOTS][key] = _Spot(path, number, 0)


def _expert_indices(expert_turns: list[int] | Literal["all", "last"], num_turns: int) -> list[int]:
    """The same as `types.Trajectory.expert_indices`, without positions that are out of range."""
    if isinstance(expert_turns, list):
        return [index for index in expert_turns if 0 <= index < num_turns]
    return [*range(num_turns)] if expert_turns == "all" else [*range(num_turns)][-1:]


def _raw_row(path: Path, number: int, text: bytes) -> RawRow:
    return RawRow(place=Place(file=str(path), unit="line", number=number), raw=text)


def _lines(path: Path) -> Iterator[PlacedLine]:
    return chain.from_iterable(_chunks(path))


def _chunks(path: Path) -> Iterator[list[PlacedLine]]:
    """Lines of a file, a few MiB at a time."""
    reader, is_all = GrowingLines(path), False
    while not is_all:
        try:
            lines, _, is_all = reader.read()
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from error
        yield lines


def _line_at(spot: _Spot) -> bytes:
    try:
        with spot.path.open("rb") as file:
            file.seek(spot.offset)
            return file.readline()
    except OSError as error:
        raise DataError(f"{spot.path} cannot be read: {error.strerror}") from error


def _read_columns(path: Path, names: Sequence[str]) -> pyarrow.Table:
    with pyarrow.parquet.ParquetFile(path) as file:
        if missing := {*names} - {*file.schema_arrow.names}:
            raise pyarrow.ArrowInvalid(f"it lacks {', '.join(sorted(missing))}")
        return file.read([*names])


def _parquet_row(spot: _Spot) -> JsonObject:
    number = spot.number
    try:
        with pyarrow.parquet.ParquetFile(spot.path) as file:
            for group in range(file.num_row_groups):
                if number < (size := file.metadata.row_group(group).num_rows):
                    row: JsonObject = file.read_row_group(group).slice(number, 1).to_pylist()[0]
                    return row
                number -= size
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{spot.path} cannot be read: {error}") from error
    raise DataError(f"{spot.path} was replaced since it was read: start the command again")


def _selection_beside(path: Path) -> SelectionFound:
    """The rule and the counts of the report beside a file of pivots; empty if there is no report."""
    train = path.with_name(path.name.replace(".validation.parquet", ".parquet"))
    path = SelectionOutputs(train=train).report
    try:
        report: Json = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # the report is an addition, without which the rows are still shown
        return SelectionFound()
    try:
        return msgspec.convert(report, SelectionFound)
    except msgspec.ValidationError as error:
        raise DataError(f"{path} is not a report of `verl-pivot select`: {error}") from error
