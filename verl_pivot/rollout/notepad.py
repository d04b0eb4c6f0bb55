"""Notepad: the object `notepad` of a notebook -> the notes that the policy reads, or why they cannot be read."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from verl_pivot.sandbox import in_session
from verl_pivot.sandbox.execution import Result, Status
from verl_pivot.tools.tool_response import failure_reason

_MAX_NOTE_BYTES = 48 * 1024
"""Most bytes of a Notepad as JSON; a session returns 64 KiB of the text that a cell prints."""


class Todo(msgspec.Struct, frozen=True):
    """One thing to do."""

    text: str
    is_done: bool = False

    def shown(self, label: str) -> str:
        return f"[{'x' if self.is_done else ' '}] {label}: {self.text}"


class Notes(msgspec.Struct, frozen=True):
    """Contents of a Notepad.

    Example:
        Notes(todos={"T1": Todo("find the firm")}, facts={"F1": "Ada was born in Orlen"}, draft="")
    """

    todos: dict[str, Todo] = {}
    """{label: thing to do}, in the order in which they were added."""
    facts: dict[str, str] = {}
    draft: str = ""

    def shown(self) -> str:
        """The notes as the policy reads them."""
        lines = [
            *_section("To do", [todo.shown(key) for key, todo in self.todos.items()]),
            *_section("Facts", [f"{key}: {fact}" for key, fact in self.facts.items()]),
            *_section("Draft", [self.draft] if self.draft else []),
        ]  # fmt: skip
        return "\n".join(lines) or "(empty)"


class NotepadReading(NamedTuple):
    """State of a Notepad after a cell."""

    notes: Notes
    """The notes; if they cannot be read, the last ones that could be."""
    problem: str = ""
    """Why the Notepad cannot be read; "" if it can."""

    def shown(self) -> str:
        """The Notepad as the policy reads it, with its problem if it has one."""
        if not self.problem:
            return f"<notepad>\n{self.notes.shown()}\n</notepad>"
        return (
            f"<notepad>\n`notepad` cannot be read: {self.problem}\nWrite `notepad = Notepad()` for a new one. "
            f"Last it held:\n{self.notes.shown()}\n</notepad>"
        )


EMPTY_NOTEPAD = NotepadReading(Notes())
READ_NOTEPAD = "__import__('sys').stdout.write(__import__('json').dumps(notepad.contents())) and None"
"""Cell that prints the Notepad's contents as JSON."""


def read_notepad(result: Result, before: Notes) -> NotepadReading:
    """The Notepad that the cell READ_NOTEPAD printed; cells of the policy may have changed it in any way.

    Args:
        result: Result of the cell.
        before: Last notes that could be read.
    """
    if result.status is Status.ERROR:
        return NotepadReading(before, _last_line(result.error or result.stderr) or "error")
    if result.status is not Status.OK:
        return NotepadReading(before, failure_reason(result))
    if result.stdout_truncated or len(result.stdout) > _MAX_NOTE_BYTES:
        return NotepadReading(before, f"it is longer than {_MAX_NOTE_BYTES} characters of JSON; remove some of it")
    try:
        return NotepadReading(_DECODER.decode(result.stdout))
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError) as error:
        return NotepadReading(before, f"it does not hold notes: {str(error)[:200]}")


def make_notepad(notes: Notes) -> str:
    """Cell that defines the class Notepad, and `notepad` with these notes."""
    contents = msgspec.json.encode(notes).decode()
    return f"{_source()}\n\nnotepad = Notepad(__import__('json').loads({contents!r}))\n"


@cache
def _source() -> str:
    return (Path(in_session.__path__[0]) / "notepad.py").read_text()


_DECODER = msgspec.json.Decoder(Notes)


def _section(title: str, entries: list[str]) -> list[str]:
    return [f"{title}:", *(f"  {entry}" for entry in entries)] if entries else []


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1][:200] if text.strip() else ""
