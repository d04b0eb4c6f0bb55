"""Rollouts <-> lines of `<rollout_data_dir>/pivot/<step>.jsonl`, with rewards and their reasons; docs/dumps.md."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import numpy

from verl_pivot.data.rollout_records import RolloutRecord
from verl_pivot.errors import DataError
from verl_pivot.types import JsonObject

FOLDER = "pivot"
"""Folder of the dumps within `trainer.rollout_data_dir` and `trainer.validation_data_dir`."""

REPEATED = "rollout that was read before, such as from a copy of a dump"
"""Reason for which a reader of several dumps leaves a rollout out, which would count twice."""


class RecordedTexts(StrEnum):
    """Which rollouts have their texts in a dump, as `pivot.record` says; every rollout has a line."""

    ALL = "all"
    KEPT = "kept"
    """The rollouts that the update saw."""
    CALLS = "calls"
    """No rollout. A line then has the calls of a rollout with tools, or else only the outcome and numbers of tokens."""


class LeftOut(StrEnum):
    """Why the update does not see a rollout."""

    UNDECIDED = "undecided"
    """The verifier could not tell; `reason` and `detail` say why."""
    MASKED = "masked"
    """The system failed, as `failure` says."""
    LONE = "lone"
    """The rollout is the only usable one left of its group, so that it has no advantage."""
    RESAMPLED = "resampled"
    """GRPO-RoC drew other rollouts of the group."""
    GROUP_TOO_FEW = "group_too_few"
    """The group has fewer usable rollouts than the update needs."""
    GROUP_EQUAL_REWARDS = "group_equal_rewards"
    """All rollouts of the group scored the same, so that it was replaced or rejected."""
    GROUP_FAILED = "group_failed"
    """Another rollout of the group raised an error, and verl replaced the group."""
    GROUP_STALE = "group_stale"
    """The policy had more updates since the group began than `max_off_policy_threshold` allows."""
    GROUP_SURPLUS = "group_surplus"
    """More groups were generated ahead than the step needs."""


class DumpedStep(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a turn in a notebook, from which the reward of its step is computed.

    Example:
        DumpedStep(has_form=True, ran=True, num_outputs=1, num_errors=0, step_return=0.31)
    """

    has_form: bool
    """Whether the turn had exactly one think block and one code block, neither of them too short."""
    ran: bool
    """Whether its cell ran without an error; false if there was none."""
    num_outputs: int
    """Outputs of the cell: what it printed, its value, and its error."""
    num_errors: int
    step_return: float | None = None
    """Discounted sum of the rewards of this step and all later ones; None if the rollout is masked."""
    is_trimmed: bool = False
    """Whether the context was trimmed before the turn."""
    was_restarted: bool = False
    """Whether the cell ended its interpreter, so that all variables were gone."""


class DumpedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of the policy, and the text that it read afterwards.

    Example:
        DumpedTurn(text='<tool_call>...</tool_call>', num_tokens=31, ended=True, observations=("5",))
    """

    text: str | None = None
    """Text of the policy, without its end-of-turn token; None where `pivot.record` leaves texts out."""
    num_tokens: int
    """Tokens that the policy sampled."""
    ended: bool
    """Whether the policy ended the turn by itself; False if it was cut off."""
    observations: tuple[str, ...] = ()
    """[num_calls] text that the policy read after each call of the turn, or the retry message alone."""
    seconds: float | None = None
    """Seconds of waiting for the engine; None in dumps of earlier versions."""
    tool_seconds: float | None = None
    """Seconds of waiting for the tools after the turn; None if there was none, or its time is not known."""
    step: DumpedStep | None = None
    """Outcome of the turn in a notebook; None for rollouts without a notebook."""

    @property
    def recorded_text(self) -> str:
        """The text of a turn whose rollout `has_texts`."""
        assert self.text is not None, self
        return self.text


class DumpedOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a line that the replay buffer writes: the verdict, and whether the update saw the rollout."""

    uid: str
    """Key of the row in verl, `<group>_<session>_<part>`; verl's own dump of the step holds the text under this key."""
    step: int | None = None
    """Training step; None in lines of versions that did not write it."""
    score: float | None
    """Score of the rollout; None if it is undecided."""
    verifier: str | None = None
    """Name of the verifier, or "outcome" for the verdict of an environment or of a failure; None if verl's reward
    function scored the rollout."""
    reason: str = ""
    """Reason of the verdict, a short code; "" if verl's reward function scored the rollout."""
    detail: str = ""
    """Explanation of the verdict for people."""
    is_kept: bool = msgspec.field(name="kept")
    """Whether the update saw the rollout; always true in validation, unless it is undecided."""
    left_out: LeftOut | None = None
    """Why the update did not see it; None if it did."""
    reward_info: dict[str, Any] = {}
    """Other values that the reward function returned beside the score."""


class DumpedRollout(DumpedOutcome, frozen=True, kw_only=True):
    """One line of a dump."""

    trajectory_id: str | None = None
    """Trajectory of the row's pivot; None for other rows."""
    turn_index: int | None = None
    """Index of the pivot among the trajectory's assistant turns, from 0."""
    data_source: str | None = None
    prompt: tuple[dict[str, Any], ...] | None = None
    """[num_messages] messages of the prompt; None if they equal those of the line before in the same group, or if
    `pivot.record` leaves texts out."""
    sampled_spans: tuple[tuple[int, int], ...] = ()
    """[num_spans, 2] first position, and position after the last, of each stretch of the response that the policy
    sampled. The tokens between the stretches are observations, which get no loss."""
    turn_ends: tuple[int, ...] = ()
    """[num_turns] positions in the response, each behind the last sampled token of a turn."""
    turns: tuple[DumpedTurn, ...] = ()
    record: RolloutRecord | None = None
    """Fields that stand beside these in the line; None if an agent loop of verl sampled the rollout, and in all but the
    last line of a rollout that has several."""

    @property
    def group(self) -> str:
        """Name of the group in verl, which the rollouts of one prompt in one step share."""
        return self.uid.split("_")[0]

    @property
    def has_texts(self) -> bool:
        """Whether its texts stand in the dump, which `pivot.record` may leave out."""
        return all(turn.text is not None for turn in self.turns)

    @property
    def id(self) -> str:
        """Name of the rollout, `<group>_<session>`, which rows that are parts of one rollout share."""
        return self.uid.rsplit("_", 1)[0]


def place_in_dump(uid: str) -> tuple[str, int, int]:
    """Group, session and part of a row, by which verl sorts its dumps; text would put part 10 before part 2."""
    found = _UID.fullmatch(uid)
    return (uid, 0, 0) if found is None else (found[1], int(found[2]), int(found[3]))


_UID = re.compile(r"(.*)_(\d{1,18})_(\d{1,18})", re.DOTALL)


def encode_transcript(
    row: Mapping[str, Any],
    record: RolloutRecord | None,
    turns: Sequence[DumpedTurn],
    mask: Sequence[int] = (),
    turn_ends: Sequence[int] = (),
) -> bytes:
    """The part of a line that the agent loop writes, as a JSON object.

    Args:
        row: Columns of the row that was rolled out.
        record: Record of the rollout; None in all but the last line of a rollout that has several.
        turns: [num_turns] texts of the policy and of its tools.
        mask: [num_response_tokens] 1 where the policy sampled the token.
        turn_ends: [num_turns] positions in the response, each behind the last sampled token of a turn.
    """
    turn_index = row.get("turn_index")
    return _encode(
        {
            "trajectory_id": row.get("trajectory_id"),
            "turn_index": None if turn_index is None else int(turn_index),
            "data_source": row.get("data_source"),
            **({} if record is None else record.as_dict()),
            "sampled_spans": sampled_spans(mask),
            "turn_ends": list(turn_ends),
            "turns": [_turn_fields(turn) for turn in turns],
        }
    )


def sampled_spans(mask: Sequence[int]) -> list[tuple[int, int]]:
    """[num_spans] first position, and position behind the last, of the stretches of a mask that are 1."""
    marks = bytearray(mask)  # takes a third of the time of bytes(mask)
    marks.append(0)
    spans, end = [], 0
    while (begin := marks.find(1, end)) >= 0:
        end = marks.find(0, begin)
        spans.append((begin, end))
    return spans


def _turn_fields(turn: DumpedTurn) -> dict[str, Any]:
    """Fields of a turn, without those that it has no value for, and without observations where texts are left out."""
    fields = {name: value for name, value in msgspec.structs.asdict(turn).items() if value is not None}
    if turn.text is None:
        del fields["observations"]
    return fields


def encode_prompt(messages: Sequence[JsonObject]) -> bytes:
    """The messages of a prompt as a JSON array, for `encode_line`."""
    return _encode([dict(message) for message in messages])


def encode_line(outcome: DumpedOutcome, transcript: bytes | None, prompt: bytes | None = None) -> bytes:
    """A line of a dump: the fields of the outcome, followed by the prompt and by the transcript if there are any."""
    parts = [_encode(outcome)[:-1]]
    if prompt is not None:
        parts.append(b'"prompt":' + prompt)
    if transcript is not None:
        parts.append(transcript[1:-1])
    return b",".join(parts) + b"}\n"


def without_texts(transcript: bytes) -> bytes:
    """The transcript without the texts of its turns and without their observations."""
    try:  # values that stay are not decoded, which takes a third of the time
        fields = _RAW_FIELDS.decode(transcript)
        turns = _RAW_TURNS.decode(fields["turns"])
    except msgspec.DecodeError:  # lone surrogates
        fields = json.loads(transcript)
        turns = fields["turns"]
    left = ("text", "observations")
    fields["turns"] = [{name: turn[name] for name in turn if name not in left} for turn in turns]
    return _encode(fields)


_RAW_FIELDS: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RAW_TURNS: msgspec.json.Decoder[list[dict[str, Any]]] = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


def _encode(fields: object) -> bytes:
    try:
        return _ENCODER.encode(fields)  # three times as fast as json.dumps
    except (UnicodeEncodeError, OverflowError):  # lone surrogates, which JSON can only escape, and huge integers
        return json.dumps(_finite(msgspec.to_builtins(fields, enc_hook=_as_plain))).encode()


def _finite(value: object) -> object:
    """The value with null for NaN and infinity, which JSON does not have; msgspec's encoder writes null, too."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _as_plain(value: object) -> object:
    """A JSON value for an object that msgspec does not know, such as a number of numpy from a reward function."""
    return value.tolist() if isinstance(value, numpy.generic | numpy.ndarray) else repr(value)


_ENCODER = msgspec.json.Encoder(enc_hook=_as_plain)


def read_rollouts(path: Path) -> Iterator[DumpedRollout]:
    """Read every line of a dump, also of the folder `tools` of earlier versions; unknown keys are ignored.

    Raises:
        DataError: If the file cannot be read or is empty, or a line is not a rollout; the message names the line.
    """
    from verl_pivot.data.files import read_rows  # needs the extra `data`, which training need not have

    for row in read_rows(path):
        yield _parse(row.raw, str(row.place))


def _parse(line: bytes | JsonObject, place: str) -> DumpedRollout:
    try:
        # json reads the NaN and lone surrogates that Python writes, which msgspec's decoder refuses.
        fields = json.loads(line) if isinstance(line, bytes) else line
        rollout = msgspec.convert(fields, DumpedRollout)
        if "stop_reason" not in fields:
            return rollout
        return msgspec.structs.replace(rollout, record=msgspec.convert(fields, RolloutRecord))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{place} is not a rollout ({error}): give a file of the folder '{FOLDER}' in trainer.rollout_data_dir or "
            "trainer.validation_data_dir, written by this version of verl-pivot"
        ) from error
