"""profile.jsonl -> ProfileSettings and TurnProfiles; `profiling.writer` writes the file."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal, NamedTuple, Self, TypeAlias

import msgspec

from verl_pivot.data.json_values import BadRowError, as_object, decode_json
from verl_pivot.data.sampling_record import SamplingRecord
from verl_pivot.engines.engine import Sampling
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.profiling.early_stopping import EarlyStop, turn_statistics
from verl_pivot.profiling.line_index import LineIndex, turn_of
from verl_pivot.types import Json, JsonObject, Sample, TurnProfile, Verdict

TurnKinds: TypeAlias = Literal["all", "calls"]
KIND = "verl-pivot profile"
VERSION = 1


class TurnKey(NamedTuple):
    """Key of a turn in a profile; equal to the plain tuple (trajectory_id, turn_index)."""

    trajectory_id: str
    turn_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSettings:
    """Settings that all lines of a profile share; a run with other settings cannot continue the file."""

    model: str
    """Checkpoint folder or Hugging Face name of the reference policy."""
    input_sha256: str
    """Digest of the trajectories file."""
    num_samples: int
    """Number of samples of each turn, K."""
    sampling: Sampling
    max_prompt_tokens: int
    """Length of the longest prompt that is sampled, in tokens."""
    chat_template_kwargs: JsonObject
    """Variables of the chat template, as verl's `data.apply_chat_template_kwargs` takes them."""
    early_stop: EarlyStop | None = None
    """Plan of early stopping; None draws all samples of every turn."""
    turns: TurnKinds = "all"
    """Turns that are measured: "all", or "calls" for turns at which the expert calls a tool."""
    model_digest: str | None = None
    """Digest of the weights; None for a model of the hub, and in profiles of earlier versions."""
    template_digest: str | None = None
    """Digest of the model's chat template; None in profiles of earlier versions."""

    def sampling_record(self) -> SamplingRecord:
        """The sampling settings that training has to repeat."""
        return SamplingRecord(
            model=self.model,
            model_digest=self.model_digest,
            max_new_tokens=self.sampling.max_new_tokens,
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            top_k=self.sampling.top_k,
            chat_template_kwargs=self.chat_template_kwargs,
            template_digest=self.template_digest,
        )

    def as_dict(self) -> JsonObject:
        """Settings for a profile's first line; unknown digests are left out, as in files of earlier versions."""
        unknown = {name for name in ("model_digest", "template_digest") if getattr(self, name) is None}
        return {name: value for name, value in asdict(self).items() if name not in unknown}

    @classmethod
    def parse(cls, obj: Json) -> Self:
        """Settings in a dictionary that `as_dict` made.

        Raises:
            BadRowError: If a field is missing, unknown or has a value of another type.
        """
        settings = as_object(obj, "settings")
        sampling = as_object(settings.get("sampling"), "settings.sampling")
        plan = settings.get("early_stop")
        try:
            early_stop = None if plan is None else EarlyStop.parse(as_object(plan, "settings.early_stop"))
            return cls(**{**settings, "sampling": Sampling(**sampling), "early_stop": early_stop})  # type: ignore[arg-type]  # as_dict wrote it
        except (TypeError, ConfigError) as error:
            raise BadRowError("bad_profile", f"settings of another version: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSettings:
    """Settings of a profile whose scores came with the trajectories; the sampling of these scores is not known."""

    input_sha256: str
    """Digest of the trajectories file."""

    def as_dict(self) -> JsonObject:
        return {"published": True, "input_sha256": self.input_sha256}

    @classmethod
    def parse(cls, obj: Json) -> Self:
        """Settings in a dictionary that `as_dict` made.

        Raises:
            BadRowError: If a field is missing.
        """
        match obj:
            case {"published": True, "input_sha256": str(input_sha256)}:
                return cls(input_sha256=input_sha256)
        raise BadRowError("bad_profile", "settings of published scores need input_sha256")


def read_profiles(path: Path) -> dict[TurnKey, TurnProfile]:
    """Every finished turn of a profile, in the file's order.

    Raises:
        DataError: If the file is missing, or a line of it is no profile; the message names the line.
    """
    return {TurnKey(profile.trajectory_id, profile.index): profile for profile in iter_profiles(path)}


def iter_profiles(path: Path) -> Iterator[TurnProfile]:
    """Like `read_profiles`, but yields the turns one by one, for files that do not fit into memory."""
    index_lines(path)
    for place, _, line in _lines(path):
        yield parse_line(place, line)


def index_lines(path: Path) -> LineIndex:
    """Index of a profile's lines by turn; fields of a line other than its turn are not checked.

    Raises:
        DataError: If a line names no turn, or repeats the turn of an earlier line; the message names the line.
    """
    index = LineIndex((_turn_of(place, line), offset) for place, offset, line in _lines(path))
    if (repeat := index.first_repeat()) is not None:
        with path.open("rb") as file:
            file.seek(index.offset(repeat))
            place = f"{path}, line {repeat + 2}"
            key = _turn_of(place, file.readline())
        raise DataError(f"{place} repeats turn {key.trajectory_id}:{key.turn_index}; delete that line")
    return index


def read_settings(path: Path) -> ProfileSettings:
    """Settings with which a profile was measured.

    Raises:
        DataError: If the file is missing or no profile, or holds published scores.
    """
    with _open_to_read(path) as lines:
        return parse_header(next(lines, b""), path)


def profiled_sha256(path: Path) -> str:
    """Digest of the trajectories file to which a profile belongs, whether it was measured or published.

    Raises:
        DataError: If the file is missing or no profile.
    """
    with _open_to_read(path) as lines:
        return _parse_any_header(next(lines, b""), path).input_sha256


def is_published(path: Path) -> bool:
    """Whether a profile's scores came with the trajectories.

    Raises:
        DataError: If the file is missing or no profile.
    """
    with _open_to_read(path) as lines:
        return isinstance(_parse_any_header(next(lines, b""), path), PublishedSettings)


def profile_as_dict(profile: TurnProfile, early_stop: EarlyStop | None = None) -> JsonObject:
    """Line of one turn, with None for NaN; with early stopping, its statistics are unbiased estimates."""
    return {
        "trajectory_id": profile.trajectory_id,
        "turn_index": profile.index,
        "num_prompt_tokens": profile.num_prompt_tokens,
        "samples": [_sample_as_dict(sample) for sample in profile.samples],
        **turn_statistics(profile, early_stop).as_dict(),
    }


def parse_profile(obj: Json) -> TurnProfile:
    """Profile from a dictionary that `profile_as_dict` made; statistics are computed again from the samples.

    Raises:
        BadRowError: If a field is missing or has a value of another type.
    """
    match obj:
        case {
            "trajectory_id": str(identity),
            "turn_index": int(index),
            "num_prompt_tokens": None | int() as num_prompt_tokens,
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
        DataError: If the file cannot be read.
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
        "text": _writable(sample.text),
        "score": sample.verdict.score,
        "reason": _writable(sample.verdict.reason),
        "detail": _writable(sample.verdict.detail),
        "num_tokens": sample.num_tokens,
    }


def _writable(text: str) -> str:
    """The text with an escape for half of a surrogate pair, which a call's JSON may spell, but no file can hold."""
    return text.encode(errors="backslashreplace").decode()


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


def _lines(path: Path) -> Iterator[tuple[str, int, bytes]]:
    """(place for messages, offset in bytes, line) of every line after the first."""
    with _open_to_read(path) as lines:
        header = next(lines, b"")
        _parse_any_header(header, path)
        offset = len(header)
        for number, line in enumerate(lines, start=2):
            yield f"{path}, line {number}", offset, line
            offset += len(line)


def _turn_of(place: str, line: bytes) -> TurnKey:
    try:
        return TurnKey(*turn_of(line))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        profile = parse_line(place, line)  # raises an error that says what is wrong
        return TurnKey(profile.trajectory_id, profile.index)


def parse_line(place: str, line: bytes) -> TurnProfile:
    """Profile of one turn, from any line after the first.

    Args:
        place: File and line number, for messages.
        line: The line.

    Raises:
        DataError: If the line is no turn's profile; the message names the place.
    """
    try:
        row = decode_json(line)
    except BadRowError as error:
        remedy = "delete it" if line.endswith(b"\n") else "run `verl-pivot profile` again to finish the file"
        raise DataError(f"{place} is broken ({error}); {remedy}") from error
    try:
        return parse_profile(row)
    except DataError as error:
        raise DataError(
            f"{place} is not the profile of a turn: {error}; delete that line and run `verl-pivot profile` "
            "again, which measures the turn again"
        ) from error


def parse_header(line: bytes, path: Path) -> ProfileSettings:
    """Settings in the first line of a measured profile.

    Raises:
        DataError: If the file is no profile of this version, or holds published scores.
    """
    settings = _parse_any_header(line, path, remedy="choose another --out, or write it with `verl-pivot profile`")
    if isinstance(settings, PublishedSettings):
        raise DataError(
            f"{path} holds scores that were published with the trajectories, which `verl-pivot profile` cannot "
            "continue; choose another --out"
        )
    return settings


def _parse_any_header(
    line: bytes, path: Path, remedy: str = "write it with `verl-pivot profile`"
) -> ProfileSettings | PublishedSettings:
    try:
        header = as_object(decode_json(line), "the first line")
        if header.get("kind") != KIND or header.get("version") != VERSION:
            raise BadRowError("bad_profile", f"kind {header.get('kind')!r}, version {header.get('version')!r}")
        settings = as_object(header.get("settings"), "settings")
        return PublishedSettings.parse(settings) if "published" in settings else ProfileSettings.parse(settings)
    except DataError as error:
        raise DataError(f"{path} is not a profile of version {VERSION} ({error}); {remedy}") from error
