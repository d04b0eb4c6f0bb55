"""Two texts of a Python file -> whether they are equal programs, with equal comments where the expert edits nothing."""

import bisect
import io
import re
import tokenize
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

from verl_pivot.verifiers.edit_python_statements import Statement, split_lines, statements_of, tree_key

_COOKIE = re.compile(r"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)", re.ASCII)
_LINE_END = re.compile(r"\r\n|\r|\n")
_INDENT = re.compile(r"^[ \t\f]+", re.MULTILINE)
_OTHER_LETTER = re.compile(r"[^ -~\t\r\n]")
_NO_PROGRAM = frozenset(
    {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT}
)
_LOOSE_SIGNS = frozenset("(),")
"""Signs that may be added or left out without a change of the program."""
_MAX_GROWTH, _MAX_EXTRA_CHARS = 4, 400
"""Changed statements have at most _MAX_GROWTH times the characters of the expert's, plus _MAX_EXTRA_CHARS."""
_MAX_COMMENT_CHARS = 200
"""Most characters of comments in the edited lines, in addition to those of the expert's comments."""
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError)


class _LineRange(NamedTuple):
    """Lines from `start` to before `end`, counted from 0."""

    start: int
    end: int


class _Block(NamedTuple):
    starts: list[int]
    """Lines, counted from 0, at which the statements of the block begin."""
    end: int
    """Line, counted from 0, at which the statement after the block begins."""
    indent: str


class _Comment(NamedTuple):
    text: str
    row: int
    """Line of the comment, counted from 0."""
    num_before: int
    """Number of tokens of the program before the comment."""


class _Tokens(NamedTuple):
    comments: tuple[_Comment, ...]
    token_rows: tuple[int, ...]
    """[num_tokens] line of each token of the program, without _LOOSE_SIGNS."""


class _Chunk(NamedTuple):
    """Whole statements of a text, and the expert's statements in the same place."""

    text: str
    expert: str
    indent: str
    start: int
    """Line, counted from 0, at which both begin."""

    def has_other_tree(self) -> bool:
        tree = _tree_of_expert(self.expert, self.indent)
        return tree is None or tree != _tree(self.text, self.indent)

    def has_expert_comments(self, edited: _LineRange) -> bool:
        """Whether the text has the expert's comments, except for those in the lines that the expert edits."""
        if "#" not in self.text + self.expert:
            return True
        opening = "if 1:\n" if self.indent else ""
        num_lines = len(opening.splitlines())
        moved = _LineRange(edited.start + num_lines, edited.end + num_lines)
        lines = _LineRange(num_lines, num_lines + len(split_lines(self.expert)))
        return _has_comments(_tokens(opening + self.text), _tokens_of_expert(opening + self.expert), moved, lines)


class PythonEdit:
    """The expert's edit of one Python file, with which the samples of a row are compared.

    Raises:
        SyntaxError: If the file that the expert leaves is not Python; or another error of _UNREADABLE.
    """

    def __init__(self, before: str, after: str) -> None:
        self._lines = split_lines(after)
        program = statements_of(after)
        self._blocks = [_Block(_starts(program), len(self._lines), "")]
        for statement in program:
            if body := statement.class_body():  # the body of a class is a block of its own
                starts = _starts(body)
                self._blocks.append(_Block(starts, statement.end_row, _indent(self._lines[starts[0]])))
        self._edited = _difference(self._lines, split_lines(before))
        self._habits = _habits(before or after)
        tree_key(after, "")
        self.changes_program = self._chunk_of(before).has_other_tree()
        """Whether the expert changes the syntax tree, and not only things that it leaves out, such as comments."""

    def is_made_by(self, text: str) -> bool:
        """Whether a text is the program that the expert leaves.

        Only the statements that differ from the expert's are parsed: those between equal lines of the top level, or of
        the body of a class, can be parsed alone. They must have the line ends, kind of indentation, characters beyond
        ASCII, encoding and comments of the file.
        """
        chunk = self._chunk_of(text)
        if len(chunk.text) > _MAX_GROWTH * len(chunk.expert) + _MAX_EXTRA_CHARS or not self._has_head_of(text):
            return False
        if not _habits(chunk.text) <= self._habits | _habits(chunk.expert):
            return False
        edited = _LineRange(self._edited.start - chunk.start, self._edited.end - chunk.start)
        return not chunk.has_other_tree() and chunk.has_expert_comments(edited)

    def _has_head_of(self, text: str) -> bool:
        return _head(split_lines(text)) == _head(self._lines)

    def _chunk_of(self, text: str) -> _Chunk:
        """The whole statements in which a text differs from the expert's."""
        lines = split_lines(text)
        (start, end), indent = self._whole_statements(_difference(self._lines, lines))
        changed = lines[start : len(lines) - (len(self._lines) - end)]
        return _Chunk("".join(changed), "".join(self._lines[start:end]), indent, start)

    def _whole_statements(self, lines: _LineRange) -> tuple[_LineRange, str]:
        """The smallest range of whole statements of one block that contains the lines, with the statement before it.

        Returns the range and the indentation of the block.
        """
        for block in self._blocks[1:]:
            before = bisect.bisect_right(block.starts, lines.start) - 2
            if before >= 0 and lines.end <= block.end:
                behind = bisect.bisect_left(block.starts, lines.end)
                end = block.starts[behind] if behind < len(block.starts) else block.end
                return _LineRange(block.starts[before], end), block.indent
        starts = self._blocks[0].starts
        before = bisect.bisect_right(starts, lines.start) - 2
        behind = bisect.bisect_left(starts, lines.end)
        end = starts[behind] if behind < len(starts) else len(self._lines)
        return _LineRange(starts[before] if before >= 0 else 0, end), ""


@lru_cache(maxsize=256)
def python_edit(before: str, after: str) -> PythonEdit | None:
    """The expert's edit; None if the file that the expert leaves is not Python."""
    try:
        return PythonEdit(before, after)
    except _UNREADABLE:
        return None


def _difference(lines: list[str], others: list[str]) -> _LineRange:
    """Lines that differ from `others`: all but the equal lines at the start and at the end of both."""
    start = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(lines, others, strict=False)))
    most = min(len(lines), len(others)) - start
    pairs = zip(reversed(lines), reversed(others), strict=False)
    num_behind = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return _LineRange(start, len(lines) - min(num_behind, most))


def _starts(statements: tuple[Statement, ...]) -> list[int]:
    return [statement.row for statement in statements]


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t\f"))]


def _habits(text: str) -> set[str]:
    """Line ends, indentation characters, and characters beyond printable ASCII that a text has."""
    indents = {f"indentation by {letter!r}" for letter in set("".join(_INDENT.findall(text)))}
    return {*_LINE_END.findall(text), *indents, *_OTHER_LETTER.findall(text)}


@lru_cache(maxsize=4096)
def _tree_of_expert(text: str, indent: str) -> bytes | None:
    return _tree(text, indent)


def _tree(text: str, indent: str) -> bytes | None:
    """Key of a block's syntax tree; None if the text is not a block with this indentation."""
    try:
        return tree_key(text, indent)
    except _UNREADABLE:
        return None


@lru_cache(maxsize=64)
def _tokens_of_expert(text: str) -> _Tokens:
    return _tokens(text)


def _tokens(text: str) -> _Tokens:
    comments: list[_Comment] = []
    token_rows: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO(text, newline="").readline):
        if token.type == tokenize.COMMENT:
            comments.append(_Comment(token.string.rstrip(), token.start[0] - 1, len(token_rows)))
        elif token.type not in _NO_PROGRAM and token.string not in _LOOSE_SIGNS:
            token_rows.append(token.start[0] - 1)
    return _Tokens(tuple(comments), tuple(token_rows))


def _has_comments(given: _Tokens, expert: _Tokens, edited: _LineRange, lines: _LineRange) -> bool:
    """Whether statements have the expert's comments in the same places, except for those in edited lines.

    Args:
        given: Tokens of the policy's statements.
        expert: Tokens of the expert's statements.
        edited: Lines that the expert edits; they may lie before the statements, or after them.
        lines: Lines of the expert's statements.
    """
    num_tokens, num_expert_tokens = len(given.token_rows), len(expert.token_rows)
    first = [(each.text, each.num_before) for each in expert.comments if each.row < edited.start]
    last = [(each.text, num_expert_tokens - each.num_before) for each in expert.comments if each.row >= edited.end]
    num_fixed_before = sum(row < edited.start for row in expert.token_rows)
    num_fixed_behind = sum(row >= edited.end for row in expert.token_rows)
    if len(given.comments) < len(first) + len(last):
        return False
    middle_end = len(given.comments) - len(last)
    middle = given.comments[len(first) : middle_end]
    if middle and (edited.start >= lines.end or edited.end <= lines.start):
        return False  # these statements lie before the edited lines, or after them
    if sum(len(each.text) for each in middle) > _MAX_COMMENT_CHARS + sum(len(each.text) for each in expert.comments):
        return False
    if any(
        each.num_before == num_fixed_before > 0 and each.row == given.token_rows[each.num_before - 1] for each in middle
    ):
        return False  # the comment follows code in a line before the edited lines
    return (
        [(each.text, each.num_before) for each in given.comments[: len(first)]] == first
        and [(each.text, num_tokens - each.num_before) for each in given.comments[middle_end:]] == last
        and all(num_fixed_before <= each.num_before <= num_tokens - num_fixed_behind for each in middle)
    )


def _head(lines: list[str]) -> tuple[str, tuple[str, ...]]:
    """Line with `#!` that names an interpreter, and encodings that the first two lines name."""
    found = [_COOKIE.match(line) for line in lines[:2]]
    interpreter = lines[0] if lines and lines[0].startswith("#!") else ""
    return interpreter, tuple(each[1] for each in found if each)
