"""Records of rollouts with defaults, and lines of dumps."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_pivot.data.rollout_dumps import DumpedRollout, write_rollouts
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
    rollout = DumpedRollout.of(make_record(**changes), uid=uid, score=score, is_kept=True)
    return json.dumps(rollout.as_dict()) + "\n"


def write_dump(path: Path, records: Mapping[str, RolloutRecord]) -> Path:
    """Write a dump of {uid: record}, as the replay buffer does."""
    write_rollouts(
        path, [DumpedRollout.of(record, uid=uid, score=1.0, is_kept=True) for uid, record in records.items()]
    )
    return path
