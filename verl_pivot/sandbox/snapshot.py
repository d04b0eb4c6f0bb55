"""Snapshots of sessions: the bytes that a client keeps, and the cells that write and read them inside a session.

Code of the session made the bytes, so only sessions unpickle them. Here, their first line and size are checked, and the
list of what was lost is read as JSON.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from verl_pivot.errors import SnapshotError
from verl_pivot.sandbox.execution import MAX_FILE_BYTES
from verl_pivot.sandbox.in_session.saving import MAGIC, MAX_LOST, MAX_REASON_LENGTH

MAX_SNAPSHOT_BYTES = MAX_FILE_BYTES
_MAX_LOST_BYTES = (MAX_LOST + 1) * 12 * MAX_REASON_LENGTH
"""Most bytes of the list of what was lost: each character of a name or reason takes up to six bytes of JSON."""
_FOLDER = Path(__file__).parent / "in_session"
_MODULES = ("pickling", "definitions", "saving", "restoring")
"""Modules of the folder, each after those that it imports."""
_CELL = """
def run():
    import sys, types
    sources = {sources!r}
    try:
        for name, source in sources.items():
            module = sys.modules[name] = types.ModuleType(name)
            exec(compile(source, name, 'exec'), module.__dict__)
        return module.{call}
    finally:
        for name in sources:
            sys.modules.pop(name, None)
run()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """State of a session, from which `Sandbox.open` makes another session.

    Example:
        snapshot = await session.snapshot()
        Path("state.bin").write_bytes(snapshot.content)
        other = await sandbox.open(snapshot=Path("state.bin").read_bytes())
    """

    content: bytes
    """Bytes to give to `Sandbox.open`; at most MAX_SNAPSHOT_BYTES."""
    lost: tuple[str, ...]
    """Variables, attributes and files that could not be kept, each as "name: reason"."""


def decode_snapshot(content: bytes) -> Snapshot:
    """Read the head of a snapshot.

    Raises:
        SnapshotError: If the bytes are no snapshot, or too many.
    """
    if not content.startswith(MAGIC):
        raise SnapshotError(
            f"these {len(content)} bytes are not a snapshot; give the content of a Snapshot of Session.snapshot"
        )
    if len(content) > MAX_SNAPSHOT_BYTES:
        raise SnapshotError(f"a snapshot of {len(content)} bytes is larger than {MAX_SNAPSHOT_BYTES}")
    end = content.find(b"\n", len(MAGIC), len(MAGIC) + _MAX_LOST_BYTES)
    if end < 0:
        raise SnapshotError("the snapshot is damaged: its list of lost parts is missing")
    return Snapshot(content=content, lost=decode_lost(content[len(MAGIC) : end]))


def decode_lost(line: bytes) -> tuple[str, ...]:
    """Read the list of what was lost, which code of the session can forge.

    Raises:
        SnapshotError: If it cannot be read.
    """
    try:
        lost = msgspec.json.decode(line[:_MAX_LOST_BYTES], type=dict[str, str])
    except (ValueError, RecursionError) as error:
        raise SnapshotError(f"the snapshot is damaged: its list of lost parts cannot be read: {error}") from error
    return tuple(f"{name}: {reason}" for name, reason in lost.items())


def saving_cell(name: str) -> str:
    """Cell that writes a snapshot into a file of the working folder."""
    return _cell(f"save('/tmp/{name}', {MAX_SNAPSHOT_BYTES - _MAX_LOST_BYTES})", num_modules=3)


def restoring_cell(name: str) -> str:
    """Cell that restores a snapshot from a file of the working folder, and replaces it by the list of what is lost."""
    return _cell(f"restore('/tmp/{name}')", num_modules=4)


def removing_cell(name: str) -> str:
    """Cell that removes a file of the working folder."""
    return f"__import__('os').unlink('/tmp/{name}')"


def _cell(call: str, *, num_modules: int) -> str:
    sources = {f"{__package__}.in_session.{name}": _source(name) for name in _MODULES[:num_modules]}
    return f"exec({_CELL.format(sources=sources, call=call)!r}, {{}})"


@cache
def _source(name: str) -> str:
    return (_FOLDER / f"{name}.py").read_text(encoding="utf-8")
