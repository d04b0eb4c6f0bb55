"""Arguments of a common command -> the same in one order: flags, operands, and all from the first that bash expands."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from verl_pivot.verifiers.shell_words import WordForm

_DOTS = re.compile(r"(?<=/)(?:\./)+|(?<=/)/+")
_NUMBER_OF_LINES = re.compile(r"-\d+", re.ASCII)


class _FlagRules(NamedTuple):
    """Flags and operands of a GNU command; a call with any other flag keeps its arguments unchanged."""

    unordered: str = ""
    """Flags whose order has no effect as long as a call has no other flags; none of them excludes another."""
    ordered: str = ""
    """Other flags without a value, whose order counts."""
    valued: str = ""
    """Flags that take a value."""
    unordered_valued: str = ""
    """Flags with a value whose position has no effect, if each is given once per call."""
    has_paths: bool = True
    """Whether every operand is a path."""
    long: str = ""
    """Long names of flags without a value, as "letter=name"."""
    valued_long: str = ""
    """Long names of flags that are written with `=` and their value, as "letter=name"."""
    has_number_of_lines: bool = False
    """Whether a first argument such as -5 is the number of lines."""

    def letter_of(self, name: str, *, is_valued: bool) -> str | None:
        """Letter of the flag with this long name; None if the name is not known."""
        pairs = (pair.partition("=") for pair in (self.valued_long if is_valued else self.long).split())
        return next((letter for letter, _, known in pairs if known == name), None)


_COMMANDS = {
    "cat": _FlagRules(
        "nsETv", ordered="Abetu", long="n=number s=squeeze-blank E=show-ends T=show-tabs v=show-nonprinting"
    ),
    "cd": _FlagRules(ordered="LPe"),
    "cp": _FlagRules(
        "rRpvuaf", ordered="indHLPTlsx", valued="St", unordered_valued="t", 
        long="r=recursive a=archive f=force v=verbose", valued_long="t=target-directory",
    ),
    "df": _FlagRules("hTi", ordered="aklPH", valued="Bt", long="h=human-readable T=print-type i=inodes"),
    "du": _FlagRules(
        "hscax", ordered="bkmlLPSDH0", valued="Bdt", unordered_valued="d",
        long="h=human-readable s=summarize c=total a=all", valued_long="d=max-depth",
    ),
    "grep": _FlagRules(
        "inrlcvwxoqsHE", ordered="hLFGPabIzZTU", valued="ABCDdefm", unordered_valued="ABCem", has_paths=False,
        long="i=ignore-case n=line-number r=recursive l=files-with-matches c=count v=invert-match w=word-regexp "
        "x=line-regexp o=only-matching q=quiet s=no-messages H=with-filename E=extended-regexp",
        valued_long="A=after-context B=before-context C=context e=regexp m=max-count",
    ),
    "head": _FlagRules(
        "z", ordered="qv", valued="cn", unordered_valued="n", long="z=zero-terminated", valued_long="n=lines c=bytes",
        has_number_of_lines=True,
    ),
    "ls": _FlagRules(
        "lahRrdsiFt", ordered="1ASCXUmogpnfGNQcuvkLHBb", valued="ITw",
        long="a=all h=human-readable R=recursive r=reverse d=directory s=size i=inode", valued_long="I=ignore",
    ),
    "mkdir": _FlagRules("pv", valued="m", unordered_valued="m", long="p=parents v=verbose", valued_long="m=mode"),
    "mv": _FlagRules(
        "vuf", ordered="inTb", valued="St", unordered_valued="t", long="v=verbose f=force",
        valued_long="t=target-directory",
    ),
    "rm": _FlagRules("rRdvf", ordered="iI", long="r=recursive f=force d=dir v=verbose"),
    "rmdir": _FlagRules("pv", long="p=parents v=verbose"),
    "sort": _FlagRules(
        "rnufbsz", ordered="hVgMRdimcC", valued="koStT", unordered_valued="ktoS", has_paths=False,
        long="r=reverse n=numeric-sort u=unique f=ignore-case b=ignore-leading-blanks s=stable z=zero-terminated",
        valued_long="k=key o=output t=field-separator",
    ),
    "tail": _FlagRules(
        "fz", ordered="Fqv", valued="cns", unordered_valued="ns",
        long="f=follow z=zero-terminated", valued_long="n=lines c=bytes", has_number_of_lines=True,
    ),
    "touch": _FlagRules("acm", ordered="fh", valued="drt", unordered_valued="drt", long="c=no-create"),
    "uniq": _FlagRules(
        "cdiu", ordered="Dz", valued="fsw", unordered_valued="fsw", has_paths=False,
        long="c=count d=repeated i=ignore-case u=unique",
    ),
    "wc": _FlagRules("lwcmL", long="l=lines w=words c=bytes m=chars L=max-line-length"),
}  # fmt: skip


class _UnknownOptionError(Exception):
    """An option is not known; it may take the next argument as its value, or end the options."""


class Arguments(NamedTuple):
    """Arguments of one command; equal arguments have the same effect."""

    flags: tuple[str, ...]
    """Flags of one letter each, with their values: "-n 5"."""
    operands: tuple[str, ...]
    rest: tuple[WordForm, ...]
    """Unchanged arguments, from the first that bash expands; all arguments if a flag is not known."""


class _PlainArguments(NamedTuple):
    flags: list[str]
    operands: list[str]
    has_ended: bool
    """Whether `--` ended the flags."""


def ordered_arguments(name: str, arguments: Sequence[WordForm]) -> Arguments:
    """The arguments of a command, in one order and spelling if the command is common and all its flags are known.

    From the first argument that bash expands, the arguments stay unchanged, since expanded words may be flags.
    """
    rules = _COMMANDS.get(name)
    if rules is None:
        return Arguments((), (), tuple(arguments))
    plain: list[str] = []
    for argument in arguments:
        if not isinstance(argument, str):
            break
        plain.append(argument)
    rest = arguments[len(plain) :]
    try:
        flags, operands, has_ended = _split(plain, rules)
    except _UnknownOptionError:
        return Arguments((), (), tuple(arguments))
    flags = sorted(flags) if _is_order_without_effect(flags, rules) else flags
    ended = ("--",) if has_ended and rest else ()
    return Arguments(tuple(flags), tuple(operands), (*ended, *rest))


def _is_order_without_effect(flags: list[str], rules: _FlagRules) -> bool:
    """Whether the order of the flags has no effect.

    The order counts if two flags exclude each other, so that the last one decides, or a flag with a value is repeated.
    """
    valued = [flag[1] for flag in flags if flag[1] in rules.unordered_valued]
    others = [flag[1:] for flag in flags if flag[1] not in rules.unordered_valued]
    return len(set(valued)) == len(valued) and all(letter in rules.unordered for letter in others)


def _split(arguments: list[str], rules: _FlagRules) -> _PlainArguments:
    flags: list[str] = []
    operands: list[str] = []
    if rules.has_number_of_lines and arguments and _NUMBER_OF_LINES.fullmatch(arguments[0]):
        arguments = ["-n", arguments[0][1:], *arguments[1:]]
    has_ended, rest = False, iter(arguments)
    for argument in rest:
        if argument == "--":
            operands += rest
            has_ended = True
        elif argument.startswith("--"):
            flags.append(_long_flag(argument, rules))
        elif argument.startswith("-") and len(argument) > 1:
            flags += _short_flags(argument[1:], rest, rules)
        else:
            operands.append(argument)
    return _PlainArguments(flags, [_plain_path(each) for each in operands] if rules.has_paths else operands, has_ended)


def _long_flag(argument: str, rules: _FlagRules) -> str:
    name, equals, value = argument[2:].partition("=")
    letter = rules.letter_of(name, is_valued=bool(equals))
    if letter is not None:
        return f"-{letter} {value}" if equals else f"-{letter}"
    if equals:
        return argument
    raise _UnknownOptionError


def _short_flags(letters: str, rest: Iterator[str], rules: _FlagRules) -> list[str]:
    """Flags of one argument such as "-la"; the last one may take its value from the rest of the arguments."""
    flags: list[str] = []
    for index, letter in enumerate(letters):
        if letter in rules.valued:
            value = letters[index + 1 :] or next(rest, None)
            if value is None:
                raise _UnknownOptionError
            return [*flags, f"-{letter} {value}"]
        if letter not in rules.unordered + rules.ordered:
            raise _UnknownOptionError
        flags.append(f"-{letter}")
    return flags


def _plain_path(text: str) -> str:
    """A path without ./ and doubled slashes; `..` after a possible symbolic link stays, and so does a last slash."""
    text = _DOTS.sub("", text)
    plain = text.removeprefix("./")
    return text if plain == "" or plain.startswith("-") else plain
