"""Workflows <-> files of JSON lines, one workflow per line."""

import json
from collections.abc import Iterable
from pathlib import Path

import msgspec

from verl_pivot.data.files import read_rows, replacing
from verl_pivot.errors import DataError
from verl_pivot.rollout.workflows import Workflow


def read_workflows(path: Path) -> tuple[Workflow, ...]:
    """Workflows of a file, one per line.

    Raises:
        DataError: If the file cannot be read, or a line is no workflow; the message names the line.
    """
    found = []
    for row in read_rows(path):
        try:
            raw = row.raw if isinstance(row.raw, bytes) else json.dumps(row.raw).encode()
            workflow = msgspec.json.decode(raw, type=Workflow)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DataError(
                f"{row.place} is not a workflow ({error}): give a file that `verl-pivot workflows induce` wrote"
            ) from error
        if not workflow.steps or not workflow.goal.strip():
            raise DataError(f"{row.place} is a workflow without a goal or a step: remove the line")
        found.append(workflow)
    return tuple(found)


def write_workflows(path: Path, workflows: Iterable[Workflow]) -> None:
    """Write workflows, one per line; the file is written completely, or not at all."""
    with replacing(path) as unfinished:
        unfinished.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in workflows))
