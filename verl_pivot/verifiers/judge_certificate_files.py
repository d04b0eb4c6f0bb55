"""Two actions and a row's files -> CodeComparison: numbered files that a certificate quotes, and their differences."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal, NamedTuple, Self, TypeAlias

from pydantic import Field, model_validator

from verl_pivot.data.forged_turns import without_chat_tokens
from verl_pivot.data.json_values import is_too_deep
from verl_pivot.types import Message, Verdict
from verl_pivot.validation import Options, ToolArgument
from verl_pivot.verifiers.edit_commands import WritingCommand, apply_edit, parse_edit, plain_path
from verl_pivot.verifiers.extraction import OUTPUT_LANGUAGES, extract_program
from verl_pivot.verifiers.verdicts import Reason, refuse

Texts: TypeAlias = dict[str, str | None]
"""{path: text of the file}; None for a file that is deleted."""
Owner: TypeAlias = Literal["both versions", "version 1", "version 2", "a test"]
LETTER = re.compile(r"[^\W_]")
"""A letter or digit; a line without one has nothing to quote."""
_MAX_LINES_COMPARED = 200
"""Most lines of a changed region that are aligned one by one; a longer region is one place."""
_MAX_PLACES_OF_FILE = 20
"""Most places of one file that are traced one by one; if there are more, the whole changed region is one place."""
_MAX_TESTS = 50


class CertificateOptions(Options):
    """Code that a judge compares by a certificate, without running it."""

    row: Literal["edit", "code"]
    """
    edit: both actions are calls of an editor, applied to `files` as the verifier `edit` applies them.
    code: both actions hold a program, in Python or another language, as the verifier `code` reads it.
    """
    files: dict[str, str] = Field(default_factory=dict)
    """{path: text before the edit} of the edited files, and of other files that the judge has to read."""
    tests: dict[str, str] = Field(default_factory=dict)
    """
    {name: text of the test}; the expert's action passes all of them. The judge traces each test; without tests, it
    traces each place at which the two versions differ.
    """
    argument: ToolArgument | None = None
    """Argument that holds the program, as "tool.argument"; None for the last code block of the text."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.row == "code" and (self.files or not self.tests):
            raise ValueError("row 'code' needs tests, and takes no files")
        if self.row == "edit" and self.argument is not None:
            raise ValueError("row 'edit' takes no argument: the only call of the action is the edit")
        if len(self.tests) > _MAX_TESTS or not all(text.strip() for text in self.tests.values()):
            raise ValueError(f"at most {_MAX_TESTS} tests are allowed, none of them empty; got {len(self.tests)}")
        return self


class QuotableFile(NamedTuple):
    """One file that a judge is shown; its number is its position among all files, from 1."""

    owner: Owner
    path: str
    lines: list[str]
    """Lines as the judge reads them, without markers of chat templates; a final line end begins no further line."""


class Span(NamedTuple):
    """Lines of one file."""

    file: int
    """Number of the file, from 1."""
    first: int
    """Number of the first line, from 1."""
    behind: int
    """Number of the line after the last one; equal to `first` if a version lacks the lines of the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeComparison:
    """Files of two versions, the places at which they differ, and the tests."""

    files: tuple[QuotableFile, ...]
    places: tuple[tuple[Span, ...], ...]
    """[num_places] Lines of version 1 and of version 2 that differ; only one span if a version lacks the file."""
    num_tests: int
    passing_version: Literal[1, 2]
    """The version of the expert, which passes every test."""

    def own_lines(self, version: Owner) -> set[tuple[int, int]]:
        """(file number, line number) of each line of one version that the file of the same path in the other lacks."""
        other: Owner = "version 2" if version == "version 1" else "version 1"
        others = {file.path: {line.strip() for line in file.lines} for file in self.files if file.owner == other}
        return {
            (number, at)
            for number, file in enumerate(self.files, 1)
            if file.owner == version
            for at, line in enumerate(file.lines, 1)
            if LETTER.search(line) and line.strip() not in others.get(file.path, ())
        }


def texts_after(action: Message, options: CertificateOptions) -> Texts | Verdict:
    """Every file of the row as an action leaves it, or the verdict that the action leaves nothing to compare."""
    if options.row == "code":
        program = extract_program(action, options.argument, ignored=OUTPUT_LANGUAGES)
        return program if isinstance(program, Verdict) else {"program": program}
    if len(action.tool_calls) != 1:
        reason = Reason.WRONG_NUMBER_OF_CALLS if action.tool_calls else Reason.MESSAGE_INSTEAD_OF_CALL
        return refuse(reason, f"{len(action.tool_calls)} calls")
    arguments = action.tool_calls[0].arguments
    if is_too_deep(arguments):
        return refuse(Reason.TOO_DEEP, action.tool_calls[0].name)
    edit = parse_edit(arguments)
    if not isinstance(edit, WritingCommand):
        return refuse(Reason.WRONG_TYPE if edit is None else Reason.WRONG_VALUE, "the call edits no file")
    before = {plain_path(path): text for path, text in options.files.items()}
    texts, problem = apply_edit(edit, before)
    return refuse(Reason.RUNTIME_ERROR, problem or "") if texts is None else {**before, **texts}


def compared(
    first: Texts, second: Texts, tests: Mapping[str, str], *, passing_version: Literal[1, 2]
) -> CodeComparison:
    """The two versions side by side. A file that is the same in both is shown once."""
    files: list[QuotableFile] = []
    places: list[tuple[Span, ...]] = []
    for path in sorted({*first, *second}):
        one, two = first.get(path), second.get(path)
        if one == two:
            files += [] if one is None else [_quotable("both versions", path, one)]
            continue
        sides: list[tuple[Owner, str | None]] = [("version 1", one), ("version 2", two)]
        numbers = []
        for owner, text in sides:
            if text is not None:
                files.append(_quotable(owner, path, text))
                numbers.append(len(files))
        places += _places([files[number - 1].lines for number in numbers], numbers)
    files += [_quotable("a test", name, text) for name, text in tests.items()]
    return CodeComparison(
        files=tuple(files), places=tuple(places), num_tests=len(tests), passing_version=passing_version
    )


def _quotable(owner: Owner, path: str, text: str) -> QuotableFile:
    lines = without_chat_tokens(text).split("\n")
    return QuotableFile(owner, path, lines[:-1] if lines[-1] == "" else lines)


def _places(versions: Sequence[list[str]], numbers: Sequence[int]) -> list[tuple[Span, ...]]:
    """Places at which the versions of one file differ; the whole file if there is only one version."""
    if len(versions) == 1:
        return [(Span(numbers[0], 1, len(versions[0]) + 1),)]
    one, two = versions
    begin = 0
    while begin < min(len(one), len(two)) and one[begin] == two[begin]:
        begin += 1
    end = 0
    while end < min(len(one), len(two)) - begin and one[-1 - end] == two[-1 - end]:
        end += 1
    inner = one[begin : len(one) - end], two[begin : len(two) - end]
    blocks = _changed_blocks(*inner)
    shift = begin + 1
    return [
        (Span(numbers[0], a + shift, b + shift), Span(numbers[1], c + shift, d + shift)) for a, b, c, d in blocks
    ] or [(Span(numbers[0], len(one), len(one) + 1), Span(numbers[1], len(two), len(two) + 1))]


def _changed_blocks(one: list[str], two: list[str]) -> list[tuple[int, int, int, int]]:
    """[num_blocks] Lines of two regions that differ, as first line and line after the last of each, from 0."""
    if one == two:
        return []
    whole = [(0, len(one), 0, len(two))]
    if max(len(one), len(two)) > _MAX_LINES_COMPARED:
        return whole
    opcodes = SequenceMatcher(None, one, two, autojunk=False).get_opcodes()
    blocks = [block[1:] for block in opcodes if block[0] != "equal"]
    return blocks if len(blocks) <= _MAX_PLACES_OF_FILE else whole
