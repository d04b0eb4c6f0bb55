"""Snapshots of a session: what a client keeps of one, and the cells that write and read it inside a session.

A snapshot is bytes that code of the session made. Only sessions look into them; here they are checked for their first
line and their size, and the list of what was lost is read as data.
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
"""Most bytes of the list of what was lost: a character is up to six bytes of JSON, in a name and in a reason."""
_FOLDER = Path(__file__).parent / "in_session"
_MODULES = ("pickling", "definitions", "saving", "restoring")
"""Modules of the folder, each behind those that it imports."""
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
    """State of a session, from which `Sandbox.open` makes another.

    Example:
        snapshot = await session.snapshot()
        Path("state.bin").write_bytes(snapshot.content)
        other = await sandbox.open(snapshot=Path("state.bin").read_bytes())
    """

    content: bytes
    """What `Sandbox.open` takes; at most MAX_SNAPSHOT_BYTES."""
    lost: tuple[str, ...]
    """What could not be kept: "name: reason" of each variable, attribute or file."""


def decode_snapshot(content: bytes) -> Snapshot:
    """Read the head of a snapshot.

    Raises:
        SnapshotError: If it is none.
    """
    if not content.startswith(MAGIC):
        raise SnapshotError(f"these {len(content)} bytes are no snapshot of a session; give what Session.snapshot gave")
    if len(content) > MAX_SNAPSHOT_BYTES:
        raise SnapshotError(f"a snapshot of {len(content)} bytes is larger than {MAX_SNAPSHOT_BYTES}")
    end = content.find(b"\n", len(MAGIC), len(MAGIC) + _MAX_LOST_BYTES)
    if end < 0:
        raise SnapshotError("the snapshot is damaged: it has no list of what was lost")
    return Snapshot(content=content, lost=decode_lost(content[len(MAGIC) : end]))


def decode_lost(line: bytes) -> tuple[str, ...]:
    """Read the list of what was lost, which code of the session can forge.

    Raises:
        SnapshotError: If it is none.
    """
    try:
        lost = msgspec.json.decode(line[:_MAX_LOST_BYTES], type=dict[str, str])
    except (ValueError, RecursionError) as error:
        raise SnapshotError(f"the snapshot is damaged: its list of what was lost cannot be read: {error}") from error
    return tuple(f"{name}: {reason}" for name, reason in lost.items())


def saving_cell(name: str) -> str:
    """Cell that writes a snapshot into a file of the working folder."""
    return _cell(f"save('/tmp/{name}', {MAX_SNAPSHOT_BYTES - _MAX_LOST_BYTES})", num_modules=3)


def restoring_cell(name: str) -> str:
    """Cell that takes a snapshot from a file of the working folder, and leaves the list of what was lost there."""
    return _cell(f"restore('/tmp/{name}')", num_modules=4)


def removing_cell(name: str) -> str:
    """Cell that removes the file."""
    return f"__import__('os').unlink('/tmp/{name}')"


def _cell(call: str, *, num_modules: int) -> str:
    sources = {f"{__package__}.in_session.{name}": _source(name) for name in _MODULES[:num_modules]}
    return f"exec({_CELL.format(sources=sources, call=call)!r}, {{}})"


@cache
def _source(name: str) -> str:
    return (_FOLDER / f"{name}.py").read_text(encoding="utf-8")
