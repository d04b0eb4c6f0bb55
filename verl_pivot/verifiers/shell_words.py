"""A position in a line for bash -> the word that begins there, without the quotes that bash only removes."""

import re
from typing import NamedTuple, TypeAlias

WordForm: TypeAlias = "str | tuple[object, ...]"
"""Characters of a word that bash takes literally; else a tuple with the parts of the word, or its text as written."""
Part: TypeAlias = "str | tuple[str, str, bool]"
"""Characters, or an expansion: its kind, its text, and whether it stands in double quotes."""

_PLAIN = re.compile(r"[^ \t\n|&;()<>'\"\\$`]+")
_PLAIN_IN_QUOTES = re.compile(r"[^\"\\$`]+")
_END_OF_WORD = frozenset(" \t\n|&;()<>")
_BEHIND_WORD = frozenset(("", *" \t\n|&;)"))
"""Characters that may follow a complete word; "" stands for the end of the line."""
_EXPANDED = re.compile(r"[*?\[~{}!]")
"""Characters that bash expands outside of quotes; interactive shells expand `!` (history) in double quotes, too."""
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\}|([?#@*$0-9-]))", re.ASCII)
_OTHER_EXPANSION = re.compile(r"\$\{[^{}'\"`\\$\n!]*\}")
_ANSI_C_STRING = re.compile(r"\$'(?:[^'\\]|\\.)*'", re.DOTALL)
_BACKTICKS = re.compile(r"`(?:[^`\\'\"]|\\[^'\"])*`")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)
_RESERVED_WORDS = """
if then elif else fi for while until do done case esac in function select time coproc { } ! [[ ]]
"""
_RESERVED = frozenset(_RESERVED_WORDS.split())
_PLAIN_IN_SUBSTITUTION = re.compile(r"[^'\"\\$`()#<]+|<(?!<)|\$(?![{'\"])|\$\{\w+\}")
_QUOTED_IN_SUBSTITUTION = re.compile(r"'[^']*'|\"(?:[^\"\\$`]|\\.|\$\{\w+\}|\$(?![({'\"`]))*\"|\\.", re.DOTALL)
_CASE = re.compile(r"\b(?:case|esac)\b")


class OutsideSubsetError(Exception):
    """The line has syntax whose end is not found here; the form of such a line is its text."""


class UnclosedQuoteError(Exception):
    """A quote is never closed, so that bash would not accept the line."""


class Word(NamedTuple):
    text: str
    """The word as it is written in the line."""
    form: WordForm
    end: int
    """Position after the word."""

    @property
    def is_assignment(self) -> bool:
        return isinstance(self.form, tuple) and self.form[0] == "assignment"


def read_word(line: str, start: int) -> Word:
    """The word at a position of a line.

    Raises:
        OutsideSubsetError: If no word stands there, or the word has a part whose end is not found here.
        UnclosedQuoteError: If a quote is never closed.
    """
    plain = _PLAIN.match(line, start)
    if plain is not None and line[plain.end() : plain.end() + 1] in _BEHIND_WORD:  # most words
        is_verbatim = _EXPANDED.search(plain[0]) is not None
        return Word(plain[0], _form(plain[0], [plain[0]], is_verbatim=is_verbatim), plain.end())
    parts: list[Part] = []
    is_verbatim, position = False, start
    if line.startswith(("<(", ">("), start):
        position = _end_of_substitution(line, start + 2)
        parts.append((line[start], line[start:position], False))
    while position < len(line) and line[position] not in _END_OF_WORD:
        end = _read_part(line, position, parts)
        is_verbatim |= _is_expanded(line[position:end])
        position = end
    text = line[start:position]
    if _is_no_word(text, line[position : position + 2]):
        raise OutsideSubsetError
    return Word(text, _form(text, parts, is_verbatim=is_verbatim), position)


def _is_expanded(part: str) -> bool:
    """Whether a part of a word has letters that bash expands, other than those of `$` and backticks."""
    if part[0] == '"':
        return "!" in part
    return part[0] not in "'\\$`" and _EXPANDED.search(part) is not None


def _is_no_word(text: str, behind: str) -> bool:
    """Whether a text is empty, or belongs to the syntax right after it.

    That syntax is a function, an array, a substitution within a word, or a redirection with a number or variable.
    """
    if not text or behind.startswith("(") or behind in ("<(", ">("):
        return True
    return behind.startswith(("<", ">")) and (text.isdigit() or "{" in text)


def _read_part(line: str, position: int, parts: list[Part]) -> int:
    """Add the part of a word at a position; returns the position after the part."""
    match line[position]:
        case "'":
            end = line.find("'", position + 1)
            if end < 0:
                raise UnclosedQuoteError
            _append(parts, line[position + 1 : end])
            return end + 1
        case '"':
            return _read_quoted(line, position + 1, parts)
        case "\\":
            if line[position + 1 : position + 2] in ("", "\n"):
                raise OutsideSubsetError
            _append(parts, line[position + 1])
            return position + 2
        case "$" | "`":
            return _read_expansion(line, position, parts, is_quoted=False)
        case _:
            plain = _PLAIN.match(line, position)
            assert plain is not None, position
            _append(parts, plain[0])
            return plain.end()


def _form(text: str, parts: list[Part], *, is_verbatim: bool) -> WordForm:
    if is_verbatim or text in _RESERVED:
        return ("verbatim", text)
    if assignment := _ASSIGNMENT.match(text):
        return ("assignment", assignment[0], *parts)
    return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else ("parts", *parts)


def _append(parts: list[Part], letters: str) -> None:
    if parts and isinstance(parts[-1], str):
        parts[-1] += letters
    else:
        parts.append(letters)


def _read_quoted(line: str, position: int, parts: list[Part]) -> int:
    """Add the parts of a text in double quotes; returns the position after the closing quote."""
    _append(parts, "")
    while position < len(line):
        letter = line[position]
        if letter == '"':
            return position + 1
        if plain := _PLAIN_IN_QUOTES.match(line, position):
            _append(parts, plain[0])
            position = plain.end()
        elif letter == "\\":
            following = line[position + 1 : position + 2]
            if following == "\n":
                raise OutsideSubsetError
            _append(parts, following if following in ("$", "`", '"', "\\") else letter + following)
            position += 2
        else:
            position = _read_expansion(line, position, parts, is_quoted=True)
    raise UnclosedQuoteError


def _read_expansion(line: str, position: int, parts: list[Part], *, is_quoted: bool) -> int:
    """Add the expansion that begins with `$` or a backtick; returns the position after the expansion."""
    if line[position] == "`":
        if (backticks := _BACKTICKS.match(line, position)) is None:
            raise OutsideSubsetError
        parts.append(("`", backticks[0], is_quoted))
        return backticks.end()
    if variable := _VARIABLE.match(line, position):
        parts.append(("$", variable[1] or variable[2] or variable[3], is_quoted))
        return variable.end()
    if line.startswith("$(", position):
        end = _end_of_substitution(line, position + 2)
        parts.append(("$(", line[position:end], is_quoted))
        return end
    pattern = _OTHER_EXPANSION if line.startswith("${", position) else None if is_quoted else _ANSI_C_STRING
    if pattern is not None and (found := pattern.match(line, position)):
        parts.append((found[0][:2], found[0], is_quoted))
        return found.end()
    if line[position + 1 : position + 2] in ("{", "[", "!") or (
        not is_quoted and line[position + 1 : position + 2] in ("'", '"')
    ):
        raise OutsideSubsetError
    _append(parts, "$")
    return position + 1


def _end_of_substitution(line: str, position: int) -> int:
    """Position after the bracket that closes `$(`, `<(` or `>(`; the text in the brackets begins at `position`."""
    begin, depth = position, 1
    while position < len(line):
        found = _PLAIN_IN_SUBSTITUTION.match(line, position) or _QUOTED_IN_SUBSTITUTION.match(line, position)
        if found:
            position = found.end()
            continue
        if line[position] not in "()":  # nested quotes, a comment, a here-document
            break
        depth += 1 if line[position] == "(" else -1
        position += 1
        if depth == 0:
            if _CASE.search(line, begin, position):
                break
            return position
    raise OutsideSubsetError
