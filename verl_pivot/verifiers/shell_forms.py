"""A line for bash -> its form: the line without what has no effect, such as spaces, quoting and the order of flags.

Two lines of one form do the same; of two lines with different forms nothing is known. Order of flags and spelling of
paths are left out only for the commands in _COMMANDS; the arguments of other commands stay as they are.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple, TypeAlias

from verl_pivot.extras import extra

with extra("shell"):
    import tree_sitter_bash
    from tree_sitter import Language, Node, Parser

Form: TypeAlias = "str | tuple[Form, ...]"
"""A word without its quotes, or the kind of a syntax node with the forms of its parts."""
MAX_CHARS = 20_000
"""Characters of the longest line that has a form."""
_MAX_DEPTH = 200
"""Levels of the deepest syntax tree that has a form."""
_IGNORED = ("comment", "\n")
_IGNORED_AT_TOP = (*_IGNORED, ";")
_EXPANDED = "\0"
"""Prefix of a word that the shell expands, which differs from the same letters in quotes."""
_WORDS = {"word", "number", "raw_string", "string", "concatenation"}
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED_IN_QUOTES = re.compile(r'\\([$`"\\])')
_DOTS = re.compile(r"(?<=/)(?:\./)+|(?<=/)/+")


class _FlagRules(NamedTuple):
    """Short flags and operands of a command."""

    unordered: str = ""
    """Flags whose order has no effect as long as a call has no other flags; none of them excludes another."""
    valued: str = ""
    """Flags that take a value."""
    unordered_valued: str = ""
    """Flags with a value whose position has no effect, if each is given once per call."""
    has_paths: bool = True
    """Whether every operand is a path."""


_COMMANDS = {
    "cat": _FlagRules("nsETv"),
    "cd": _FlagRules(),
    "cp": _FlagRules("rRpvuaf", valued="St", unordered_valued="t"),
    "df": _FlagRules("hTi", valued="Bt"),
    "du": _FlagRules("hscax", valued="Bdt", unordered_valued="d"),
    "grep": _FlagRules("inrlcvwxoqsHE", valued="ABCDdefm", unordered_valued="ABCem", has_paths=False),
    "head": _FlagRules("z", valued="cn", unordered_valued="n"),
    "ls": _FlagRules("lahRrdsiFt", valued="ITw"),
    "mkdir": _FlagRules("pv", valued="m", unordered_valued="m"),
    "mv": _FlagRules("vuf", valued="St", unordered_valued="t"),
    "rm": _FlagRules("rRdvf"),
    "rmdir": _FlagRules("pv"),
    "sort": _FlagRules("rnufbsz", valued="koStT", unordered_valued="ktoS", has_paths=False),
    "tail": _FlagRules("fz", valued="cns", unordered_valued="ns"),
    "touch": _FlagRules("acm", valued="drt", unordered_valued="drt"),
    "uniq": _FlagRules("cdiu", valued="fsw", unordered_valued="fsw", has_paths=False),
    "wc": _FlagRules("lwcmL"),
}


def form_of(line: str) -> "Form | None":
    """The form of a line; None if bash would not take the line, or if it is too long or nested too deeply."""
    if len(line) > MAX_CHARS:
        return None
    root = _parser().parse(line.encode("utf-8", "surrogatepass")).root_node
    return None if root.has_error or _depth(root) > _MAX_DEPTH else _form(root)


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


def _depth(root: Node) -> int:
    """Levels of a syntax tree."""
    deepest, unvisited = 0, [(root, 1)]
    while unvisited:
        node, depth = unvisited.pop()
        deepest = max(deepest, depth)
        unvisited += [(child, depth + 1) for child in node.children]
    return deepest


def _form(node: Node) -> Form:
    if node.type == "command":
        return _command_form(node)
    if node.type in _WORDS:
        return _word_form(node)
    ignored = _IGNORED_AT_TOP if node.type == "program" else _IGNORED
    children = tuple(_form(child) for child in node.children if child.type not in ignored)
    if node.children:
        return (node.type, *children)
    # A named node keeps its type, so that it cannot be taken for a word.
    return (node.type, _text(node)) if node.is_named else _text(node)


def _command_form(node: Node) -> Form:
    parts = [child for child in node.children if child.type != "comment"]
    name = next((_text(child) for child in parts if child.type == "command_name"), "")
    assignments = tuple(_form(child) for child in parts if child.type == "variable_assignment")
    arguments = [_form(child) for child in parts if child.type not in ("command_name", "variable_assignment")]
    rules = _COMMANDS.get(name)
    if rules is None or not all(isinstance(each, str) for each in arguments):
        return ("command", *assignments, name, *arguments)
    flags, operands = _split_arguments([str(each) for each in arguments], rules)
    flags = sorted(flags) if _is_order_without_effect(flags, rules) else flags
    return ("command", *assignments, name, ("flags", *flags), *operands)


def _is_order_without_effect(flags: list[str], rules: _FlagRules) -> bool:
    """Whether the order of the flags has no effect.

    It has one where two flags exclude each other, of which the last one counts, and where a flag is given twice.
    """
    valued = [flag[1] for flag in flags if flag[1] in rules.unordered_valued]
    others = [flag[1:] for flag in flags if flag[1] not in rules.unordered_valued]
    return len(set(valued)) == len(valued) and all(letter in rules.unordered for letter in others)


class _Arguments(NamedTuple):
    flags: list[str]
    """Flags of one letter each, with their values: "-n 5"."""
    operands: list[str]


def _split_arguments(arguments: list[str], rules: _FlagRules) -> _Arguments:
    flags: list[str] = []
    operands: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            operands += rest
        elif argument.startswith("--"):
            flags.append(argument)
        elif argument.startswith("-") and len(argument) > 1:
            flags += _short_flags(argument[1:], rest, rules)
        else:
            operands.append(argument)
    return _Arguments(flags, [_plain_path(each) for each in operands] if rules.has_paths else operands)


def _short_flags(letters: str, rest: Iterator[str], rules: _FlagRules) -> list[str]:
    """Flags of one argument such as "-la"; the last one may take its value from the rest of the arguments."""
    flags: list[str] = []
    for index, letter in enumerate(letters):
        if letter in rules.valued:
            value = letters[index + 1 :] or next(rest, "")
            return [*flags, f"-{letter} {value}"]
        flags.append(f"-{letter}")
    return flags


def _plain_path(text: str) -> str:
    """A path without ./ and doubled slashes. `..` stays, since a link may stand before it; so does a last slash."""
    text = _DOTS.sub("", text)
    return text[2:] if text.startswith("./") and len(text) > 2 else text


def _word_form(node: Node) -> Form:
    """Text of a word without its quotes where bash only removes them; else its parts."""
    if node.type == "raw_string":
        return _text(node)[1:-1]
    if node.type in ("word", "number"):
        text = _text(node)
        return _EXPANDED + text if any(letter in text for letter in "*?[~{") else _ESCAPED.sub(r"\1", text)
    if node.type == "string":
        inside = node.children[1:-1]
        if all(child.type == "string_content" for child in inside):
            return _ESCAPED_IN_QUOTES.sub(r"\1", _text(node)[1:-1])
        return ("string", _text(node))
    parts = tuple(_word_form(child) if child.type in _WORDS else (child.type, _text(child)) for child in node.children)
    return "".join(str(part) for part in parts) if all(isinstance(part, str) for part in parts) else ("word", *parts)


def _text(node: Node) -> str:
    assert node.text is not None
    return node.text.decode("utf-8", "surrogatepass")
