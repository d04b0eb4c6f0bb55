"""Python text -> its statements, and a key that two texts share only if their syntax trees are the same.

`ast.parse` holds the interpreter lock, and so blocks the event loop, until it returns: up to 8 ms for a kilobyte. So a
text is first split into statements, by a tokenizer that lets other threads run. The statements are then parsed in parts
of at most `MAX_PARSED` characters.
"""

import ast
import hashlib
import io
import re
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

MAX_PARSED = 3 * 1024
"""Most characters, without blanks and comments, that are parsed at once. A longer statement is compared in parts: its
own lines by their tokens, and each block in it like a whole text."""
_NO_TOKEN = frozenset({tokenize.NL, tokenize.COMMENT, tokenize.ENDMARKER})
_DEPTHS = {tokenize.INDENT: 1, tokenize.DEDENT: -1}
_LONG_NUMBER = re.compile(r"[0-9_]{4400}")
"""A number so long that the pattern of the `tokenize` module would try to match it in many ways."""
_CONTINUING = frozenset({"else", "elif", "except", "finally"})
"""First words of lines that belong to the statement before them."""


class _LogicalLine(NamedTuple):
    """A logical line: the tokens up to a line end that is outside of brackets and texts."""

    row: int
    """Row of its first token, counted from 0."""
    depth: int
    """Number of blocks around the line."""
    first: str
    """First token of the line."""
    tokens: str
    """All tokens of the line, each after a null character, which no program contains."""


class Statement(NamedTuple):
    """Logical lines of one statement, with its decorators and the blocks in it."""

    lines: tuple[_LogicalLine, ...]
    end_row: int
    """Row at which the next statement begins, or the row after the end of the text."""

    @property
    def row(self) -> int:
        """Row at which the statement begins, counted from 0."""
        return self.lines[0].row

    @property
    def num_chars(self) -> int:
        """Number of characters of all tokens."""
        return sum(len(line.tokens) - line.tokens.count("\0") for line in self.lines)

    def class_body(self) -> tuple["Statement", ...]:
        """The statements in the body of a class; empty for any other statement, and for a class on one line."""
        head = next((number for number, line in enumerate(self.lines) if line.first != "@"), 0)
        body = self.lines[head + 1 :]
        return _grouped(body, self.end_row) if self.lines[head].first == "class" and body else ()


def split_lines(text: str) -> list[str]:
    """Lines as Python counts them, with their ends."""
    return io.StringIO(text, newline="").readlines()


def statements_of(text: str) -> tuple[Statement, ...]:
    """Statements of the outermost block, in their order.

    Raises:
        SyntaxError: If the text cannot be split into statements.
        ValueError: If the text has a null character, or a number of too many digits.
        tokenize.TokenError: If a bracket or a string in the text is not closed.
    """
    return _grouped(tuple(_logical_lines(text)), len(split_lines(text)))


def tree_key(text: str, indent: str) -> bytes:
    """Key of the syntax tree of a block whose statements all have the indentation `indent`.

    Raises:
        SyntaxError: If the text is no such block; or ValueError, RecursionError, MemoryError or tokenize.TokenError.
    """
    rows = split_lines(text)
    if len(text) <= MAX_PARSED:
        keys = _parsed(text, indent)
    else:
        statements = statements_of(text)
        first_lines = [statement.lines[0] for statement in statements]
        if any(line.depth != bool(indent) or _indent(rows[line.row]) != indent for line in first_lines):
            raise SyntaxError("not one block")
        keys = _keys(statements, rows)
    digest = hashlib.sha256()
    for key in keys:
        digest.update(f"{len(key)} {key}".encode(errors="surrogatepass"))
    return digest.digest()


def _logical_lines(text: str) -> Iterator[_LogicalLine]:
    if "\0" in text or _LONG_NUMBER.search(text):
        raise ValueError("the text has a null character, or a number of too many digits")
    depth, tokens = 0, list[tokenize.TokenInfo]()
    for token in tokenize.generate_tokens(io.StringIO(text, newline=None).readline):
        if token.type in _DEPTHS:
            depth += _DEPTHS[token.type]
        elif token.type == tokenize.NEWLINE:
            yield _line(depth, tokens)
            tokens = []
        elif token.type not in _NO_TOKEN:
            tokens.append(token)


def _line(depth: int, tokens: list[tokenize.TokenInfo]) -> _LogicalLine:
    if not tokens or any(token.type == tokenize.ERRORTOKEN for token in tokens):
        raise SyntaxError("a line has no token, or an invalid one")
    return _LogicalLine(
        tokens[0].start[0] - 1, depth, tokens[0].string, "".join(f"\0{token.string}" for token in tokens)
    )


def _grouped(lines: tuple[_LogicalLine, ...], end_row: int) -> tuple[Statement, ...]:
    """The statements of one block; the first of the lines must belong to the block itself, not to an inner one."""
    starts: list[int] = []
    is_decorated = False
    for number, line in enumerate(lines):
        if line.depth <= lines[0].depth:
            if not is_decorated and line.first not in _CONTINUING:
                starts.append(number)
            is_decorated = line.first == "@"
    if lines and starts[:1] != [0]:
        raise SyntaxError(f"{lines[0].first!r} does not continue a statement")
    ends = [*starts, len(lines)][1:]
    end_rows = [*(lines[start].row for start in starts), end_row][1:]
    return tuple(Statement(lines[start:end], row) for start, end, row in zip(starts, ends, end_rows, strict=True))


def _keys(statements: tuple[Statement, ...], rows: list[str]) -> Iterator[str]:
    """Dumps of the statements' syntax trees; for statements that are too long to be parsed, keys of their lines."""
    waiting: list[str] = []
    num_waiting = 0
    indent = _indent(rows[statements[0].row]) if statements else ""
    for statement in statements:
        text = "".join(rows[statement.row : statement.end_row])
        num_chars = statement.num_chars
        if waiting and num_waiting + num_chars > MAX_PARSED:
            yield from _parsed("".join(waiting), indent)
            waiting, num_waiting = [], 0
        if num_chars > MAX_PARSED:
            yield from _keys_of_lines(statement, rows)
        else:
            waiting.append(text)
            num_waiting += num_chars
    if waiting:
        yield from _parsed("".join(waiting), indent)


def _keys_of_lines(statement: Statement, rows: list[str]) -> Iterator[str]:
    """The tokens of a statement's own lines, and the keys of the blocks after them."""
    lines, depth = statement.lines, statement.lines[0].depth
    own = [number for number, line in enumerate(lines) if line.depth <= depth]
    for number, end in zip(own, [*own[1:], len(lines)], strict=True):
        yield lines[number].tokens
        block = lines[number + 1 : end]
        if block:
            end_row = lines[end].row if end < len(lines) else statement.end_row
            inner = _grouped(block, end_row)
            yield "{"
            if lines[number].first == "match":
                for case in inner:  # a case cannot be parsed alone
                    yield from _keys_of_lines(case, rows)
            else:
                yield from _keys(inner, rows)
            yield "}"


def _parsed(text: str, indent: str) -> Iterator[str]:
    """Dumps of the syntax trees of a short text's statements, whose first lines all have the indentation `indent`."""
    text = f"if 1:\n{text}" if indent else text
    program = ast.parse(text)
    body = program.body
    if indent:
        block, rows, last_row = body[0], split_lines(text), 0
        assert isinstance(block, ast.If), text[:80]
        body = block.body
        if len(program.body) != 1 or block.orelse:
            raise SyntaxError("not one block")
        for statement in body:
            decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
            row = min([statement.lineno, *(each.lineno for each in decorators)])
            if row > last_row and _indent(rows[row - 1]) != indent:  # any other statement follows a semicolon
                raise SyntaxError("not one block")
            last_row = statement.end_lineno or row
    return map(ast.dump, body)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t\f"))]
