"""Shell script with a launch of verl -> the overrides of the launch, and the same launch with other values."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from verl_pivot.errors import ConfigError
from verl_pivot.smoke.trial_launch import MODULE

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL | re.ASCII)
_ARRAY = re.compile(r"^[ \t]*(?:declare -a )?([A-Za-z_]\w*)(\+?)=\(((?:[^()'\"]|'[^']*'|\"[^\"]*\")*)\)", re.MULTILINE)
_VARIABLE = re.compile(r"\$(?:(\w+|[@*])|\{(\w+)(?:\[[@*]\])?(?::?-([^{}]*))?\})", re.ASCII)
_UNKNOWN = re.compile(r"\$\(|`|\$\{[!#]|\$\{\w+(?::?[?+=]|:\d+:-?\d|[%#/^,@])", re.ASCII)
"""Commands and expansions that only a shell computes; Hydra's `${now:%Y}` and `${data.seed}` are none of them."""
_QUOTED_OR_COMMENT = re.compile(r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"|(?<![^\s;])#[^\n]*", re.DOTALL)
_BLOCK = re.compile(r"(?:^|[;\n])[ \t]*(?:(if|case|for|while|until)|fi|esac|done)\b")
_OPERATORS = ";&|<>"
"""Characters of shell operators, which end a command or redirect its output."""
_ARRAY_WORD = re.compile(r"\$\{(\w+)\[[@*]\]\}|\$[@*]|\$\{[@*]\}", re.ASCII)


class Replacement(NamedTuple):
    """One override that a smoke changes."""

    key: str
    before: str | None
    """Value in the script; None if the script does not set the key."""
    after: str

    def __str__(self) -> str:
        return f"{self.key}: {'-' if self.before is None else self.before} -> {self.after}"


class ReplacedLaunch(NamedTuple):
    """The launch of a script, with other values for some keys."""

    overrides: tuple[str, ...]
    replacements: tuple[Replacement, ...]


def launch_of(script: Path, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The overrides of the launch of verl in a script, which is read and not run.

    Variables have the values that the script gives them by plain assignments, or else those of the environment. Values
    that only a shell can tell, such as $(hostname) or a variable that is assigned within an `if`, stay as written.

    Args:
        script: A shell script, or a file with the command alone.
        environment: Environment variables.

    Raises:
        ConfigError: If the script holds no launch of verl, or several, or a quote without its end, or a variable
            that may hold several overrides.
    """
    text = _without_comments(script.read_text(errors="replace").replace("\\\n", " "))
    arrays: dict[str, list[str]] = {}
    for found in _ARRAY.finditer(text):
        name, added, body = found.groups()
        words = _split(script, body) if _depth(text[: found.start()]) == 0 else [f"${{{name}[@]}}"]
        arrays[name] = [*(arrays.get(name, []) if added else []), *words]
    variables, launches, depth = dict(environment), [], 0
    for line in _ARRAY.sub("", text).splitlines():
        words = _split(script, line)
        if MODULE in words:
            place = words.index(MODULE)
            _assign(words[:place], variables, is_certain=True)
            launches.append(_launch(words[place + 1 :], arrays, variables))
        else:
            _assign(words, variables, is_certain=depth == 0)
        depth += _depth(line)
    if len(launches) != 1:
        raise ConfigError(
            f"{script} holds {len(launches) or 'no'} launches of {MODULE}: give a script or a file with exactly one"
        )
    return launches[0]


def _without_comments(text: str) -> str:
    return _QUOTED_OR_COMMENT.sub(lambda found: "" if found[0].startswith("#") else found[0], text)


def _depth(text: str) -> int:
    """Number of blocks that a text begins, minus the number of blocks that it ends."""
    return sum(1 if begun else -1 for begun in _BLOCK.findall(text))


def _assign(words: Sequence[str], variables: dict[str, str], *, is_certain: bool) -> None:
    """Record the assignments of a command; a variable that the script may leave unassigned gets no value."""
    is_leading = is_certain
    for word in words:
        found = _ASSIGNMENT.fullmatch(word)
        if found is None:
            is_leading &= word in ("export", "local", "declare", "readonly")
        elif is_leading:
            before = variables.get(found[1], "") if found[2] else ""
            variables[found[1]] = before + _filled(found[3], variables)
        else:
            variables[found[1]] = f"${found[1]}"


def _split(script: Path, text: str) -> list[str]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return list(lexer)
    except ValueError as error:
        raise ConfigError(f"{script} cannot be read as a shell script: {error} in {text.strip()[:80]!r}") from error


def _launch(words: Sequence[str], arrays: Mapping[str, Sequence[str]], variables: Mapping[str, str]) -> tuple[str, ...]:
    found: list[str] = []
    for word in words:
        if word and set(word) <= set(_OPERATORS):
            break
        if array := _ARRAY_WORD.fullmatch(word):
            found.extend(_filled(each, variables) for each in arrays.get(array[1] or "", ()))
        elif not word.isdecimal():  # the number before a redirection, as in 2>&1
            found.append(_filled_override(word, variables))
    return tuple(override for override in found if override)


def _filled_override(word: str, variables: Mapping[str, str]) -> str:
    override = _filled(word, variables)
    if _VARIABLE.fullmatch(word) and len(override.split()) > 1:
        raise ConfigError(
            f"the launch has {word}, whose value {override!r} may be one override or several: write the overrides into "
            "the file"
        )
    return override


def _filled(text: str, variables: Mapping[str, str]) -> str:
    """A text in which variables are replaced by their values; those without a value stay as written."""

    def value(found: re.Match[str]) -> str:
        name, default = found[1] or found[2], found[3]
        return variables.get(name, found[0] if default is None else _filled(default, variables))

    return _VARIABLE.sub(value, text)


def replaced(launch: Sequence[str], values: Mapping[str, str]) -> ReplacedLaunch:
    """A launch with other values for some keys.

    Args:
        launch: Overrides.
        values: {key: value}, with "+" before a key that verl does not have.

    Raises:
        ConfigError: If an override that is not replaced has a value that only a shell can tell.
    """
    given = {word.lstrip("+~").partition("=")[0]: word.partition("=")[2] for word in launch}
    names = {key.lstrip("+") for key in values}
    kept = [word for word in launch if word.lstrip("+~").partition("=")[0] not in names]
    for word in kept:
        if _UNKNOWN.search(word) or _VARIABLE.search(word):
            raise ConfigError(
                f"the launch has {word!r}, whose value only a shell can compute: write the value into the file"
            )
    differences = [
        Replacement(key, given.get(key.lstrip("+")), value)
        for key, value in values.items()
        if given.get(key.lstrip("+")) != value
    ]
    return ReplacedLaunch((*kept, *(f"{key}={value}" for key, value in values.items())), tuple(differences))
