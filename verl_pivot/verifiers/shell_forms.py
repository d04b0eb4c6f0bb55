"""A line for bash -> its form: the line without parts that have no effect, such as blanks, quotes and order of flags.

Two lines with the same form do the same, if bash accepts both; about two lines with different forms, nothing is known.
Every character of a line is part of its form, except for comments, blanks between words, quotes that bash only removes,
and the choice between `;` and a line end. If a line has syntax that is not read here (here-documents, functions,
arrays, `[[`, ...), its form is its text.

Source: "Token Recognition" and "Shell Grammar" in POSIX.1-2017, XCU 2.3 and 2.10, with bash's additions.
"""

import re
from typing import NamedTuple, TypeAlias

from verl_pivot.verifiers.shell_arguments import Arguments, ordered_arguments
from verl_pivot.verifiers.shell_words import OutsideSubsetError, UnclosedQuoteError, Word, WordForm, read_word

Redirection: TypeAlias = tuple[str, WordForm]
"""Operator and target."""


class CommandForm(NamedTuple):
    """One simple command; without a name, it has only assignments or redirections."""

    assignments: tuple[WordForm, ...]
    name: str
    """First word as it is written, which bash may take for an alias or a reserved word."""
    arguments: Arguments
    redirections: tuple[Redirection, ...]


class LineForm(NamedTuple):
    parts: tuple[str | CommandForm, ...]
    """Operators, reserved words and commands in their order."""


class TextForm(NamedTuple):
    text: str
    """Text of a line that has no other form."""


Form: TypeAlias = LineForm | TextForm
MAX_CHARS = 20_000
"""Most characters of a line that is read; the form of a longer line is its text."""
_OPERATOR = re.compile(r";;&|;;|;&|&&|\|\||\|&|&(?!>)|[|;()\n]")
_REDIRECTION = re.compile(r"\d{0,9}(?:<<<|<>|<&|>>|>&|>\||<|>)|&>>|&>", re.ASCII)
_BLANKS = re.compile(r"[ \t]*")
_COMMENT = re.compile(r"#[^\n]*")
_BEGINS_OTHER_THAN_WORD = frozenset("\n#\\<>&|;()0123456789")
"""Characters that may begin something other than a word."""
_OPENING_WORDS = frozenset({"if", "then", "elif", "else", "while", "until", "do", "{"})
_WORDS_BEFORE_WORDS = frozenset({"for", "case"})
"""Reserved words that are followed by words instead of a command."""
_NOT_READ = frozenset({"select", "function", "time", "coproc", "[[", "alias", "unalias", "shopt", "enable"})
"""Reserved words and commands that change how bash reads what follows."""
_TAKES_NEW_LINE = frozenset({"|", "|&", "&&", "||", "&", "(", ";;", ";&", ";;&", *_OPENING_WORDS})
"""Operators and reserved words after which a line end has no effect."""


def form_of(line: str) -> Form | None:
    """The form of a line; None if a quote is never closed, or the line has characters that no bash script can hold."""
    if "\0" in line or not _is_unicode(line):
        return None
    # POSIXLY_CORRECT changes the order of arguments; `!?` and `^` search the history, and their text may hold blanks.
    if len(line) > MAX_CHARS or "POSIXLY_CORRECT" in line or "!?" in line or line.startswith("^"):
        return _text_form(line)
    try:
        return _Reader(line).form()
    except OutsideSubsetError:
        return _text_form(line)
    except UnclosedQuoteError:
        return None


def _is_unicode(line: str) -> bool:
    try:
        line.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text_form(line: str) -> TextForm:
    without_end = line.rstrip("\n")
    return TextForm(line if without_end.endswith("\\") else without_end)


class _Reader:
    """Reads one line from left to right."""

    def __init__(self, line: str) -> None:
        self._line = line
        self._position = 0
        self._read: list[str | CommandForm] = []
        """Form of the part of the line that is read so far."""
        self._words: list[Word] = []
        """Words of the command that is being read."""
        self._redirections: list[Redirection] = []

    def form(self) -> Form:
        self._skip_blanks()
        while self._position < len(self._line):
            self._step()
            self._skip_blanks()
        self._end_command()
        self._drop_last_separator()
        return LineForm(tuple(self._read))

    def _step(self) -> None:
        line, position = self._line, self._position
        if line[position] not in _BEGINS_OTHER_THAN_WORD:
            self._add_word()
        elif comment := _COMMENT.match(line, position):
            self._position = comment.end()
        elif line.startswith("\\\n", position):
            self._skip_continuation()
        elif line.startswith(("<(", ">("), position):
            self._add_word()
        elif redirection := _REDIRECTION.match(line, position):
            self._add_redirection(redirection[0])
        elif operator := _OPERATOR.match(line, position):
            self._position = operator.end()
            self._add_operator(operator[0])
        else:
            self._add_word()

    def _skip_blanks(self) -> None:
        blanks = _BLANKS.match(self._line, self._position)
        assert blanks is not None
        self._position = blanks.end()

    def _skip_continuation(self) -> None:
        """Skip a backslash and a line end, which bash removes, if a blank before or after them separates two words.

        Without a blank, they join two words; at the end of the text, bash would wait for another line.
        """
        before = self._line[self._position - 1] if self._position else "\n"
        behind = self._line[self._position + 2 : self._position + 3]
        if behind == "" or (before not in " \t\n" and behind not in " \t"):
            raise OutsideSubsetError
        self._position += 2

    def _add_redirection(self, operator: str) -> None:
        if self._line.startswith("<<", self._position + len(operator) - 1):  # a here-document
            raise OutsideSubsetError
        self._position += len(operator)
        self._skip_blanks()
        word = read_word(self._line, self._position)
        self._redirections.append((operator, word.form))
        self._position = word.end

    def _add_operator(self, operator: str) -> None:
        if operator == "\n":
            self._end_command()
            if self._read and self._read[-1] != ";" and self._read[-1] not in _TAKES_NEW_LINE:
                self._read.append(";")
            return
        is_empty = not self._words and not self._redirections
        if operator == "(":
            if not is_empty or self._line.startswith("(", self._position):  # a function, or arithmetic
                raise OutsideSubsetError
        elif is_empty and not self._may_follow_no_command(operator):
            raise OutsideSubsetError
        self._end_command()
        if operator.startswith((")", ";;", ";&")):
            self._drop_last_separator()
        self._read.append(operator)

    def _may_follow_no_command(self, operator: str) -> bool:
        """Whether an operator may stand here without a command before it; if not, bash would refuse it."""
        last = self._read[-1] if self._read else "("
        return last == ")" or operator.startswith(";;") or (operator == ")" and last != "(")

    def _add_word(self) -> None:
        word = read_word(self._line, self._position)
        self._position = word.end
        is_first = not self._redirections and not self._words
        if is_first and word.text in _NOT_READ:
            raise OutsideSubsetError
        if is_first and (word.text in _OPENING_WORDS or word.text == "!"):
            self._read.append(word.text)
        else:
            self._words.append(word)

    def _end_command(self) -> None:
        if self._words or self._redirections:
            self._read.append(_command(self._words, self._redirections))
        self._words, self._redirections = [], []

    def _drop_last_separator(self) -> None:
        if self._read and self._read[-1] == ";":
            self._read.pop()


def _command(words: list[Word], redirections: list[Redirection]) -> CommandForm:
    number = next((number for number, word in enumerate(words) if not word.is_assignment), len(words))
    assignments, named = tuple(word.form for word in words[:number]), words[number:]
    name = named[0].text if named else ""
    arguments = [word.form for word in named[1:]]
    if name in _NOT_READ:
        raise OutsideSubsetError
    if name in _WORDS_BEFORE_WORDS:
        arguments = [("verbatim", word.text) for word in named[1:]]
    # With an assignment before it, a command may order its arguments in another way.
    ordered = ordered_arguments("" if assignments else name, arguments)
    return CommandForm(assignments, name, ordered, tuple(redirections))
