"""Arguments of an editor's call (view, create, str_replace, insert, undo_edit) -> the text of the file afterwards."""

import ast
from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple, TypeAlias

from pydantic import Field, StrictInt, StrictStr, TypeAdapter, ValidationError

from verl_pivot.types import JsonObject
from verl_pivot.validation import Options


class ViewCommand(Options):
    command: Literal["view"]
    path: StrictStr
    view_range: tuple[StrictInt, StrictInt] | None = None
    """First and last line, counted from 1; -1 for the last line of the file."""


class CreateCommand(Options):
    command: Literal["create"]
    path: StrictStr
    file_text: StrictStr


class ReplaceCommand(Options):
    command: Literal["str_replace"]
    path: StrictStr
    old_str: StrictStr
    new_str: StrictStr = ""


class InsertCommand(Options):
    command: Literal["insert"]
    path: StrictStr
    insert_line: Annotated[StrictInt, Field(ge=0)]
    new_str: StrictStr


class UndoCommand(Options):
    command: Literal["undo_edit"]
    path: StrictStr


WritingCommand: TypeAlias = CreateCommand | ReplaceCommand | InsertCommand
EditCommand: TypeAlias = ViewCommand | WritingCommand | UndoCommand
_ADAPTER: TypeAdapter[EditCommand] = TypeAdapter(Annotated[EditCommand, Field(discriminator="command")])


class EditedFile(NamedTuple):
    """Result of an edit; exactly one of the fields is None."""

    text: str | None
    """Text of the file afterwards."""
    problem: str | None
    """Reason for which the editor would refuse the edit."""


def parse_edit(arguments: JsonObject) -> EditCommand | None:
    """The command that a call's arguments describe; None if an editor would not take them."""
    given = {name: value for name, value in arguments.items() if value is not None}
    if isinstance(given.get("view_range"), list):
        given["view_range"] = tuple(given["view_range"])  # type: ignore[assignment,arg-type]
    try:
        return _ADAPTER.validate_python(given)
    except ValidationError:
        return None


def apply_edit(edit: WritingCommand, files: Mapping[str, str]) -> EditedFile:
    """Text of the edited file, or the reason for which the editor would refuse the edit.

    Args:
        edit: The command.
        files: Text before the edit, by path.
    """
    if isinstance(edit, CreateCommand):
        return EditedFile(None, "the file exists already") if edit.path in files else EditedFile(edit.file_text, None)
    if edit.path not in files:
        return EditedFile(None, f"there is no file {edit.path}")
    text = files[edit.path]
    if isinstance(edit, InsertCommand):
        lines = text.splitlines(keepends=True)
        if edit.insert_line > len(lines):
            return EditedFile(None, f"the file has {len(lines)} lines")
        new = edit.new_str if edit.new_str.endswith("\n") else f"{edit.new_str}\n"
        return EditedFile("".join([*lines[: edit.insert_line], new, *lines[edit.insert_line :]]), None)
    count = text.count(edit.old_str) if edit.old_str else 0
    if count != 1:
        return EditedFile(None, f"old_str is there {count} times")
    return EditedFile(text.replace(edit.old_str, edit.new_str), None)


def same_file(path: str, first: str, second: str) -> bool:
    """Whether two texts of a file are equal, but for space at the end, or for Python have equal syntax trees."""
    if first.rstrip() == second.rstrip():
        return True
    if not path.endswith(".py"):
        return False
    try:
        return ast.dump(ast.parse(first)) == ast.dump(ast.parse(second))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
