"""Arguments of an editor call, in the words of any of several editors -> texts of the files after the call."""

import posixpath
from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple, TypeAlias

from pydantic import Field, StrictBool, StrictInt, StrictStr, TypeAdapter, ValidationError

from verl_pivot.types import Json, JsonObject
from verl_pivot.validation import Options
from verl_pivot.verifiers.edit_patches import PatchError, apply_patch

MAX_CHARS = 4_000_000
"""Most characters of a file after replacements."""


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


class _Replacement(Options):
    old_str: StrictStr
    new_str: StrictStr = ""
    replace_all: StrictBool = False


class WriteCommand(Options):
    """Writes a file anew, whether it exists or not (Claude Code's Write)."""

    command: Literal["write"]
    path: StrictStr
    file_text: StrictStr


class SeveralReplacements(Options):
    """Replacements in one file, one after the other (Claude Code's Edit and MultiEdit)."""

    command: Literal["replace"]
    path: StrictStr
    edits: Annotated[tuple[_Replacement, ...], Field(min_length=1)]


class PatchCommand(Options):
    """A unified diff, or a patch of OpenAI's `apply_patch`, of any number of files."""

    command: Literal["patch"]
    patch: StrictStr


WritingCommand: TypeAlias = (
    CreateCommand | ReplaceCommand | InsertCommand | WriteCommand | SeveralReplacements | PatchCommand
)
EditCommand: TypeAlias = ViewCommand | WritingCommand | UndoCommand
_ADAPTER: TypeAdapter[EditCommand] = TypeAdapter(Annotated[EditCommand, Field(discriminator="command")])
_COMMANDS_OF_OTHER_TOOLS = ("write", "replace", "patch")
"""Commands that no editor takes as an argument; here, each stands for a tool of its own."""
_IGNORED = frozenset({"security_risk"})
"""Arguments that change nothing in a file (OpenHands)."""
_OPTIONAL = frozenset({"replace_all"})
"""Optional arguments of a tool without commands."""
_PATCH_ARGUMENTS = ("patch", "diff", "input")
"""Names of the argument that holds the patch, in tools that take no other argument."""


class EditedFiles(NamedTuple):
    """Result of an edit; exactly one of the fields is None."""

    texts: dict[str, str | None] | None
    """{path: text after the edit} of each file that the edit names; the text of a deleted file is None."""
    problem: str | None
    """Reason why the editor would refuse the edit."""


def parse_edit(arguments: JsonObject) -> EditCommand | None:
    """The command that a call's arguments describe; None if an editor would not take them."""
    given: JsonObject = {name: arguments[name] for name in _given_names(arguments)}
    if "command" not in given:
        given = _with_command(given)
    elif given["command"] in _COMMANDS_OF_OTHER_TOOLS:
        return None
    if isinstance(path := given.get("path"), str):
        given["path"] = plain_path(path)
    if isinstance(lines := given.get("view_range"), list):
        if lines == [1, -1]:
            del given["view_range"]
        else:
            given["view_range"] = tuple(lines)  # type: ignore[assignment]
    if isinstance(line := given.get("insert_line"), str) and line.isascii() and line.isdigit() and len(line) < 10:
        given["insert_line"] = int(line)
    try:
        return _ADAPTER.validate_python(given)
    except ValidationError:
        return None


def has_same_words(arguments: JsonObject, expert: JsonObject) -> bool:
    """Whether a tool that takes the expert's arguments takes these: both have a command, or the same names."""
    if "command" in expert:
        return "command" in arguments
    return _given_names(arguments) - _OPTIONAL == _given_names(expert) - _OPTIONAL


def _given_names(arguments: JsonObject) -> set[str]:
    return {name for name, value in arguments.items() if value is not None} - _IGNORED


def plain_path(path: str) -> str:
    """A path without `.` and doubled slashes; one with `..` is kept, since the part before may be a symbolic link."""
    return path if ".." in path else posixpath.normpath(path).replace("//", "/")


def _with_command(given: JsonObject) -> JsonObject:
    """Arguments of a tool for one command, as an editor with one tool for all commands would take them."""
    renamed: JsonObject = {_renamed(name): value for name, value in given.items()}
    if len(renamed) < len(given):
        return given
    if renamed.keys() == {"path", "file_text"}:
        return {"command": "write", **renamed}
    if isinstance(edits := renamed.get("edits"), list) and renamed.keys() == {"path", "edits"}:
        return {"command": "replace", "path": renamed["path"], "edits": [_renamed_keys(edit) for edit in edits]}
    if {"path", "old_str", "new_str"} <= renamed.keys():
        path = renamed.pop("path")
        return {"command": "replace", "path": path, "edits": [renamed]}
    if len(given) == 1 and given.keys() <= set(_PATCH_ARGUMENTS):
        return {"command": "patch", "patch": next(iter(given.values()))}
    return given


def _renamed(name: str) -> str:
    words = {"file_path": "path", "old_string": "old_str", "new_string": "new_str", "content": "file_text"}
    return words.get(name, name)


def _renamed_keys(value: Json) -> Json:
    return {_renamed(name): inner for name, inner in value.items()} if isinstance(value, dict) else value


def apply_edit(edit: WritingCommand, files: Mapping[str, str]) -> EditedFiles:
    """Texts of the edited files, or the reason why the editor would refuse the edit.

    Args:
        edit: The command.
        files: Text before the edit, by path.
    """
    try:
        if isinstance(edit, PatchCommand):
            return EditedFiles(dict(apply_patch(edit.patch, files)), None)
        return EditedFiles({edit.path: _edited(edit, files)}, None)
    except PatchError as error:
        return EditedFiles(None, str(error))


def _edited(
    edit: CreateCommand | ReplaceCommand | InsertCommand | WriteCommand | SeveralReplacements, files: Mapping[str, str]
) -> str:
    if isinstance(edit, CreateCommand) and edit.path in files:
        raise PatchError("the file exists already")
    if isinstance(edit, CreateCommand | WriteCommand):
        return edit.file_text
    if edit.path not in files:
        raise PatchError(f"there is no file {edit.path}")
    text = files[edit.path]
    if isinstance(edit, InsertCommand):
        return _inserted(edit, text)
    edits = edit.edits if isinstance(edit, SeveralReplacements) else [edit]
    for each in edits:
        replaces_all = isinstance(each, _Replacement) and each.replace_all
        count = text.count(each.old_str) if each.old_str else 0
        if count == 0 or (count > 1 and not replaces_all):
            raise PatchError(f"old_str occurs {count} times in the file")
        if len(text) + count * (len(each.new_str) - len(each.old_str)) > MAX_CHARS:
            raise PatchError(f"the file would have more than {MAX_CHARS} characters")
        text = text.replace(each.old_str, each.new_str)
    return text


def _inserted(edit: InsertCommand, text: str) -> str:
    # Only a line feed ends a line, as editors count lines; str.splitlines would also split at a form feed.
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1].removesuffix("\n")
    if not lines[-1]:
        lines.pop()
    if edit.insert_line > len(lines):
        raise PatchError(f"insert_line is {edit.insert_line}, but the file has only {len(lines)} lines")
    if edit.insert_line == len(lines) and lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    new = edit.new_str if edit.new_str.endswith("\n") else f"{edit.new_str}\n"
    return "".join([*lines[: edit.insert_line], new, *lines[edit.insert_line :]])
