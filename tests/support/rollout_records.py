"""Records of rollouts with defaults, and lines of dumps."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_pivot.data.rollout_dumps import DumpedOutcome, DumpedTurn, encode_line, encode_transcript
from verl_pivot.data.rollout_records import RolloutRecord, StopReason


def make_record(**changes: Any) -> RolloutRecord:
    fields: dict[str, Any] = {
        "prompt_id": "0" * 16,
        "stop_reason": StopReason.ANSWERED,
        "calls": (),
        "turn_tokens": (5,),
        "prompt_tokens": 10,
        "response_tokens": 5,
        "generate_seconds": 1.0,
        "tool_seconds": 0.0,
        **changes,
    }
    return RolloutRecord(**fields)


def dump_line(uid: str, score: float | None = 1.0, **changes: Any) -> str:
    """One line of a dump of rollouts."""
    return _line(uid, score, make_record(**changes)).decode()


def write_dump(path: Path, records: Mapping[str, RolloutRecord]) -> Path:
    """Write a dump of {uid: record}."""
    path.write_bytes(b"".join(_line(uid, 1.0, record) for uid, record in records.items()))
    return path


def _line(uid: str, score: float | None, record: RolloutRecord) -> bytes:
    transcript = encode_transcript({}, record, [DumpedTurn(text="It is 5.", num_tokens=5, ended=True)])
    return encode_line(DumpedOutcome(uid=uid, step=1, score=score, is_kept=True), transcript)
