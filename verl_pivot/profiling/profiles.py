"""profile.jsonl -> ProfileSettings and TurnProfiles; `profiling.writer` writes it."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, Self

from verl_pivot.data.storage import BadRowError, as_object, decode_json
from verl_pivot.errors import DataError
from verl_pivot.rollout.engine import Sampling
from verl_pivot.types import Json, JsonObject, Sample, TurnProfile, Verdict

KIND = "verl-pivot profile"
VERSION = 1


class TurnKey(NamedTuple):
    """Which turn of which trajectory; a plain tuple to whoever looks one up."""

    trajectory_id: str
    turn_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSettings:
    """What all lines of a profile share; a run with others may not go on with the file."""

    model: str
    input_sha256: str
    num_samples: int
    sampling: Sampling
    max_prompt_tokens: int
    chat_template_kwargs: JsonObject

    def as_dict(self) -> JsonObject:
        return asdict(self)

    @classmethod
    def parse(cls, obj: Json) -> Self:
        """The inverse of `as_dict`.

        Raises:
            BadRowError: If it is anything else.
        """
        settings = as_object(obj, "settings")
        sampling = as_object(settings.get("sampling"), "settings.sampling")
        try:
            return cls(**{**settings, "sampling": Sampling(**sampling)})  # type: ignore[arg-type]  # as_dict wrote it
        except TypeError as error:
            raise BadRowError("bad_profile", f"settings of another version: {error}") from error


def read_profiles(path: Path) -> dict[TurnKey, TurnProfile]:
    """Every finished turn of a profile, in the file's order.

    Raises:
        DataError: If the file is missing or a line of it is no profile, naming the line.
    """
    return {TurnKey(profile.trajectory_id, profile.index): profile for profile in iter_profiles(path)}


def iter_profiles(path: Path) -> Iterator[TurnProfile]:
    """`read_profiles` one by one, for files that do not fit into memory."""
    seen: set[TurnKey] = set()
    for place, row in _read_lines(path):
        try:
            profile = parse_profile(row)
        except DataError as error:
            raise DataError(
                f"{place} is no turn's profile: {error}; delete that line and run `verl-pivot profile` "
                "again: it measures the turn anew"
            ) from error
        key = TurnKey(profile.trajectory_id, profile.index)
        if key in seen:
            raise DataError(f"{place} repeats turn {key.trajectory_id}:{key.turn_index}; delete that line")
        seen.add(key)
        yield profile


def read_settings(path: Path) -> ProfileSettings:
    """How a profile was measured.

    Raises:
        DataError: If the file is missing or no profile.
    """
    with _open_to_read(path) as lines:
        return parse_header(next(lines, b""), path)


def profile_as_dict(profile: TurnProfile) -> JsonObject:
    """The line of one turn; NaN becomes null."""
    statistics = {
        "pass_rate": profile.pass_rate,
        "reward_mean": profile.reward_mean,
        "reward_std": profile.reward_std,
        "reward_var": profile.reward_var,
    }
    return {
        "trajectory_id": profile.trajectory_id,
        "turn_index": profile.index,
        "num_prompt_tokens": profile.num_prompt_tokens,
        "samples": [_sample_as_dict(sample) for sample in profile.samples],
        **{name: None if math.isnan(value) else value for name, value in statistics.items()},
    }


def parse_profile(obj: Json) -> TurnProfile:
    """The inverse of `profile_as_dict`; the statistics are computed from the samples again.

    Raises:
        BadRowError: If it is anything else.
    """
    match obj:
        case {
            "trajectory_id": str(identity),
            "turn_index": int(index),
            "num_prompt_tokens": int(num_prompt_tokens),
            "samples": [*samples],
        }:
            return TurnProfile(
                trajectory_id=identity,
                index=index,
                samples=tuple(_parse_sample(sample) for sample in samples),
                num_prompt_tokens=num_prompt_tokens,
            )
    raise BadRowError("bad_profile", "a turn needs trajectory_id, turn_index, num_prompt_tokens and samples")


def file_sha256(path: Path) -> str:
    """Digest of a file's content.

    Raises:
        DataError: If it cannot be read.
    """
    digest = sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; write it with `verl-pivot import`") from error
    return digest.hexdigest()


def _sample_as_dict(sample: Sample) -> JsonObject:
    return {
        "text": sample.text,
        "score": sample.verdict.score,
        "reason": sample.verdict.reason,
        "detail": sample.verdict.detail,
        "num_tokens": sample.num_tokens,
    }


def _parse_sample(obj: Json) -> Sample:
    match obj:
        case {
            "text": str(text),
            "score": None | float() | int() as score,
            "reason": str(reason),
            "detail": str(detail),
            "num_tokens": int(num_tokens),
        }:
            try:
                verdict = Verdict(score=None if score is None else float(score), reason=reason, detail=detail)
            except ValueError as error:
                raise BadRowError("bad_profile", str(error)) from error
            return Sample(text=text, verdict=verdict, num_tokens=num_tokens)
    raise BadRowError("bad_profile", "a sample needs text, score, reason, detail and num_tokens")


@contextmanager
def _open_to_read(path: Path) -> Iterator[Iterator[bytes]]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; write it with `verl-pivot profile`") from error
    with file:
        yield file


def _read_lines(path: Path) -> Iterator[tuple[str, Json]]:
    """(place, value) of every line after the first."""
    with _open_to_read(path) as lines:
        parse_header(next(lines, b""), path)
        for number, line in enumerate(lines, start=2):
            place = f"{path}, line {number}"
            try:
                yield place, decode_json(line)
            except BadRowError as error:
                remedy = "delete it" if line.endswith(b"\n") else "run `verl-pivot profile` again to finish the file"
                raise DataError(f"{place} is broken ({error}); {remedy}") from error


def parse_header(line: bytes, path: Path) -> ProfileSettings:
    """Settings of the profile whose first line this is.

    Raises:
        DataError: If it is no profile of this version.
    """
    try:
        header = as_object(decode_json(line), "the first line")
        if header.get("kind") != KIND or header.get("version") != VERSION:
            raise BadRowError("bad_profile", f"kind {header.get('kind')!r}, version {header.get('version')!r}")
        return ProfileSettings.parse(header.get("settings"))
    except DataError as error:
        raise DataError(
            f"{path} is no profile of version {VERSION} ({error}); choose another --out, or write it with "
            "`verl-pivot profile`"
        ) from error
