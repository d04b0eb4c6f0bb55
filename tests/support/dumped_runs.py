"""Folders of trainings as a launch leaves them: dumps, metrics and Hydra's configuration."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.rollout_records import make_record
from verl_pivot.data.rollout_dumps import DumpedOutcome, DumpedTurn, encode_line, encode_prompt, encode_transcript
from verl_pivot.inspect.queries import RunIndex
from verl_pivot.runs.run import TrainingRun


def make_line(
    uid: str = "g_0_0", score: float | None = 1.0, texts: Sequence[str] = ("It is 5.",), **changes: Any
) -> bytes:
    """One line of a dump.

    `changes` are fields of the outcome or of the record, columns of the row, `observations`, `seconds` and `tool_waits`
    of each turn, `mask` and `turn_ends` of the response, and the messages of the `prompt`.
    """
    nothing = [None] * len(texts)
    waited = zip(changes.pop("seconds", nothing), changes.pop("tool_waits", nothing), strict=True)
    mask, turn_ends, prompt = changes.pop("mask", ()), changes.pop("turn_ends", ()), changes.pop("prompt", None)
    read = changes.pop("observations", [()] * len(texts))
    outcome = {name: changes.pop(name) for name in list(changes) if name in DumpedOutcome.__struct_fields__}
    columns: dict[str, Any] = {
        name: changes.pop(name) for name in ("trajectory_id", "turn_index", "data_source") if name in changes
    }
    turns = [
        DumpedTurn(text=text, num_tokens=5, ended=True, observations=tuple(seen), seconds=own, tool_seconds=of_tools)
        for text, seen, (own, of_tools) in zip(texts, read, waited, strict=True)
    ]
    record = make_record(**{"turn_tokens": (5,) * len(turns), **changes})
    fields = {
        "step": 1,
        "is_kept": True,
        "verifier": "math",
        "reason": "accepted" if score else "wrong_value",
        **outcome,
    }
    transcript = encode_transcript(columns, record, turns, mask, turn_ends)
    shown = None if prompt is None else encode_prompt(prompt)
    return encode_line(DumpedOutcome(uid=uid, score=score, **fields), transcript, shown)


def write_run(folder: Path, steps: Mapping[int, Sequence[bytes]], metrics: Sequence[Mapping[str, Any]] = ()) -> Path:
    """Write {step: lines of its dump} and lines of metrics as a run; returns the run's folder."""
    dumps = folder / "rollouts" / "pivot"
    dumps.mkdir(parents=True, exist_ok=True)
    for step, lines in steps.items():
        (dumps / f"{step}.jsonl").write_bytes(b"".join(lines))
    if metrics:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    return folder


def read_index(*folders: Path) -> RunIndex:
    """An index that has read all files of the runs in these folders."""
    index = RunIndex([TrainingRun(folder) for folder in folders])
    while index.refresh():
        pass
    return index
