"""DumpedRollout <-> a line of `<rollout_data_dir>/tools/<step>.jsonl`, the dump of a step's rollouts with tools."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from verl_pivot.data.rollout_records import RolloutRecord
from verl_pivot.errors import DataError
from verl_pivot.types import JsonObject


class DumpedRollout(RolloutRecord, frozen=True, kw_only=True):
    """One line of a dump: the record of a rollout, its score, and whether the update saw it."""

    uid: str
    """Key of the row in verl, `<group>_<session>_<part>`; verl's own dump of the step holds the text under this key."""
    score: float | None
    """Score of the outcome; None if it is undecided."""
    is_kept: bool = msgspec.field(name="kept")
    """Whether the update saw the rollout."""

    @classmethod
    def of(cls, record: RolloutRecord, *, uid: str, score: float | None, is_kept: bool) -> "DumpedRollout":
        """A record as a line of a dump."""
        return cls(**msgspec.structs.asdict(record), uid=uid, score=score, is_kept=is_kept)

    @property
    def group(self) -> str:
        """Name of the group in verl, which the rollouts of one prompt in one step share."""
        return self.uid.split("_")[0]

    @property
    def id(self) -> str:
        """Name of the rollout, `<group>_<session>`, which rows that are parts of one rollout share."""
        return self.uid.rsplit("_", 1)[0]


def write_rollouts(path: Path, rollouts: Iterable[DumpedRollout], *, append: bool = False) -> None:
    """Write one line per rollout, in the order of their uids."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab" if append else "wb") as file:
        file.writelines(_line(rollout) for rollout in sorted(rollouts, key=lambda rollout: rollout.uid))


def _line(rollout: DumpedRollout) -> bytes:
    fields = rollout.as_dict()
    try:
        return msgspec.json.encode(fields) + b"\n"  # three times as fast as json.dumps
    except UnicodeEncodeError:  # lone surrogates in arguments, which JSON can only escape
        return json.dumps(fields).encode() + b"\n"


def read_rollouts(path: Path) -> Iterator[DumpedRollout]:
    """Read every line of a dump; unknown keys are ignored.

    Raises:
        DataError: If the file cannot be read or is empty, or a line is not a rollout; the message names the line.
    """
    from verl_pivot.data.files import read_rows  # needs the extra `data`, which training need not have

    for row in read_rows(path):
        yield _parse(row.raw, str(row.place))


def _parse(line: bytes | JsonObject, place: str) -> DumpedRollout:
    try:
        # json reads the NaN and lone surrogates that Python writes, which msgspec's decoder refuses.
        return msgspec.convert(json.loads(line) if isinstance(line, bytes) else line, DumpedRollout)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{place} is not a rollout ({error}): give a file of the folder 'tools' in trainer.rollout_data_dir or "
            "trainer.validation_data_dir, written by this version"
        ) from error
