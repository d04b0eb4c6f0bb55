"""Text of a patch -> the edited files, for unified diffs and for the format of OpenAI's `apply_patch`."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

_HUNK = re.compile(r"@@ -(\d{1,9})(?:,\d+)? \+\d+(?:,\d+)? @@", re.ASCII)
_BEGIN, _END = "*** Begin Patch", "*** End Patch"
_FILE_BEGINS, _NO_LINE_END = "diff ", "\\ No newline"
_INDEX = re.compile(r"index [0-9a-f.]+(?: 100(?:644|755))?")
_KIND_OF_MODE = {
    "new file mode 100644": "add",
    "deleted file mode 100644": "delete",
    "deleted file mode 100755": "delete",
}
_OTHER_CHANGES = re.compile(
    r"(?:old mode|new mode|new file mode|deleted file mode|rename|copy|similarity|dissimilarity|index|GIT binary"
    r"|Binary)\b"
)
"""Headings of a unified diff that change more than the text of a file: its mode, its name, or whether it is a link."""
_ABSENT = "/dev/null"


class PatchError(Exception):
    """A patch that cannot be read or applied; the message says why."""


@dataclass(slots=True)
class _Hunk:
    first_line: int | None
    """Number of the first old line, counted from 1; None if the patch does not say it."""
    heading: str = ""
    """Line of the file before the hunk, in `apply_patch`; "" if none is given."""
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _FilePatch:
    path: str
    kind: str
    """"add", "update" or "delete"."""
    hunks: list[_Hunk] = field(default_factory=list)


def apply_patch(patch: str, files: Mapping[str, str]) -> dict[str, str | None]:
    """Texts of the files that a patch changes, by path; None for a file that it deletes.

    Args:
        patch: Unified diff, or text from `*** Begin Patch` to `*** End Patch`.
        files: Text before the patch, by path. A path in the patch may be the end of one of these paths.

    Raises:
        PatchError: If the patch cannot be read, or does not fit the files.
    """
    lines = patch.strip("\r\n").split("\n")
    if all(line.endswith("\r") for line in lines[:-1]):
        lines = _without_returns(lines)
    parts = _read_begin_patch(lines) if lines[0].strip() == _BEGIN else _read_unified(lines)
    edited: dict[str, str | None] = {}
    for part in parts:
        path = _known_path(part.path, files)
        if path in edited:
            raise PatchError(f"{path} is patched twice")
        edited[path] = _apply(part, files.get(path))
    if not edited:
        raise PatchError("the patch names no file")
    return edited


def _known_path(path: str, files: Mapping[str, str]) -> str:
    if path in files:
        return path
    ends = [known for known in files if known.endswith(f"/{path}")]
    return ends[0] if len(ends) == 1 else path


def _read_begin_patch(lines: list[str]) -> list[_FilePatch]:
    if lines[-1].strip() != _END:
        raise PatchError(f"the patch does not end with {_END}")
    parts: list[_FilePatch] = []
    kinds = {"*** Add File: ": "add", "*** Update File: ": "update", "*** Delete File: ": "delete"}
    for line in lines[1:-1]:
        heading = next((heading for heading in kinds if line.startswith(heading)), None)
        if heading is not None:
            parts.append(_FilePatch(line.removeprefix(heading).strip(), kinds[heading]))
        elif not parts or line.startswith("*** Move"):
            raise PatchError(f"cannot read the line {line[:100]!r}")
        elif line.startswith("@@"):
            parts[-1].hunks.append(_Hunk(None, heading=line[2:].strip()))
        elif line != "*** End of File":
            if not parts[-1].hunks:
                parts[-1].hunks.append(_Hunk(None))
            _add_line(parts[-1].hunks[-1], line)
    return parts


def _read_unified(lines: list[str]) -> list[_FilePatch]:
    parts: list[_FilePatch] = []
    before, kind, in_hunk = "", "", False
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("--- ") and following.startswith("+++ "):
            before, in_hunk = line, False
        elif before:
            parts.append(_named_file(_path_of(before), _path_of(line), kind))
            before, kind = "", ""
        elif hunk := _HUNK.match(line):
            _last(parts).hunks.append(_Hunk(int(hunk[1])))
            in_hunk = True
        elif not in_hunk or line.startswith(_FILE_BEGINS):
            kind, in_hunk = _kind_of_heading(line, kind), False
        elif not line.startswith(_NO_LINE_END):
            _add_line(parts[-1].hunks[-1], line)
    _check_all_named(kind)
    return parts


def _kind_of_heading(line: str, kind: str) -> str:
    """Change that the headings of one file state up to this line: "add", "delete", or "" if none.

    Raises:
        PatchError: If they change more than the text of the file, or the lines of the file before are missing.
    """
    if line.startswith(_FILE_BEGINS):
        _check_all_named(kind)
        return ""
    if line in _KIND_OF_MODE:
        return _KIND_OF_MODE[line]
    if _OTHER_CHANGES.match(line) and not _INDEX.fullmatch(line):
        raise PatchError(f"the patch changes more than the text of a file: {line[:100]!r}")
    return kind


def _check_all_named(kind: str) -> None:
    """Refuse a heading that creates or deletes a file whose lines do not follow."""
    if kind:
        raise PatchError("the patch creates or deletes a file without giving its lines")


def _last(parts: list[_FilePatch]) -> _FilePatch:
    if not parts:
        raise PatchError("a hunk comes before the name of its file")
    return parts[-1]


def _named_file(before: str, behind: str, kind: str) -> _FilePatch:
    found = "add" if before == _ABSENT else "delete" if behind == _ABSENT else "update"
    if found == "update" and before != behind:
        raise PatchError("the patch renames a file")
    if kind not in ("", found):
        raise PatchError(f"the mode line of {before} contradicts its --- and +++ lines")
    return _FilePatch(before if found == "delete" else behind, found)


def _path_of(line: str) -> str:
    path = line[4:].split("\t")[0].strip()
    return path[2:] if path.startswith(("a/", "b/")) else path


def _add_line(hunk: _Hunk, line: str) -> None:
    if line[:1] not in ("", " ", "+", "-"):
        raise PatchError(f"cannot read the line {line[:100]!r}")
    if line[:1] != "+":
        hunk.old.append(line[1:])
    if line[:1] != "-":
        hunk.new.append(line[1:])


def _apply(part: _FilePatch, text: str | None) -> str | None:
    if part.kind == "add":
        if text is not None:
            raise PatchError(f"{part.path} exists already")
        return "".join(f"{line}\n" for hunk in part.hunks for line in hunk.new)
    if text is None:
        raise PatchError(f"there is no file {part.path}")
    if part.kind == "delete":
        return None
    lines = text.split("\n")
    ends = {line.endswith("\r") for line in lines[:-1]}
    if len(ends) > 1:
        raise PatchError(f"{part.path} mixes two kinds of line ends")
    if True in ends:
        lines = _without_returns(lines)
        part.hunks = [
            replace(hunk, old=_without_returns(hunk.old), new=_without_returns(hunk.new)) for hunk in part.hunks
        ]
    position, shift = 0, 0
    for hunk in part.hunks:
        start = _place(hunk, lines, position, shift)
        lines[start : start + len(hunk.old)] = hunk.new
        position, shift = start + len(hunk.new), shift + len(hunk.new) - len(hunk.old)
    return ("\r\n" if True in ends else "\n").join(lines)


def _without_returns(lines: list[str]) -> list[str]:
    return [line.removesuffix("\r") for line in lines]


def _place(hunk: _Hunk, lines: list[str], position: int, shift: int) -> int:
    """Index of the first line of a hunk in the file: where the patch says, else the only place with its old lines."""
    if hunk.first_line is not None:
        stated = hunk.first_line - 1 + shift + (not hunk.old)
        if stated >= position and lines[stated : stated + len(hunk.old)] == hunk.old and stated <= len(lines):
            return stated
    if hunk.heading:
        position = _only(
            [index + 1 for index in range(position, len(lines)) if lines[index].strip() == hunk.heading], hunk.heading
        )
    if not hunk.old:
        if hunk.first_line is None and not hunk.heading:
            return len(lines) - (lines[-1] == "")
        return position
    first = hunk.old[0]
    starts = (index for index in range(position, len(lines) - len(hunk.old) + 1) if lines[index] == first)
    return _only((index for index in starts if lines[index : index + len(hunk.old)] == hunk.old), first)


def _only(places: Iterable[int], line: str) -> int:
    found = list(places)
    if len(found) != 1:
        raise PatchError(f"the hunk's lines from {line[:100]!r} on occur {len(found)} times in the file")
    return found[0]
