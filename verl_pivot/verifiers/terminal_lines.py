"""Screen of a terminal, lines typed into it -> whether bash reads the next line, or another program may."""

import re
from functools import lru_cache

from verl_pivot.verifiers.shell_forms import CommandForm, LineForm, form_of

_PROMPT = re.compile(r"(?<![-=(*^!'\"$])[$#]\s*\Z")
"""End of a screen with bash's prompt; the prompt of psql, which ends in =#, -# and the like, does not match."""
_WORDS = """
ls cd pwd mkdir rmdir touch echo printf export unset true false : which type whoami hostname date sleep chmod chown
clear id uname kill ps df du stat file tree gcc g++ rm cp mv
"""
_NEVER_READ = frozenset(_WORDS.split())
"""Commands that read nothing from the terminal."""
_READ_WITHOUT_FILE = {"cat": 1, "head": 1, "tail": 1, "wc": 1, "sort": 1, "uniq": 1, "grep": 2}
"""{command: number of operands with which it does not read the terminal}; the operands follow the flags."""
_MAY_ASK = frozenset({"rm", "cp", "mv"})
"""Commands that may ask before they overwrite or remove a file, unless a flag forbids it."""
_MAY_READ = re.compile(r"\$\(|`|[<>]\(|\bdev\b(?!/null\b)|\bproc\b|\bstdin\b|\btty")
"""A substitution, whose commands may read the terminal, or a path of the terminal, in a line without its quotes."""
_QUOTES = re.compile(r"[\"'\\]")
_OPERATORS = frozenset({";", "&&", "||", "|", "|&"})


def shows_prompt(screen: str) -> bool:
    """Whether the last non-blank line of a screen ends as bash's prompt does."""
    return _PROMPT.search(screen) is not None


@lru_cache(maxsize=1024)
def returns_to_prompt(line: str) -> bool:
    """Whether bash reads the input after a line, since no command of the line reads the terminal.

    Otherwise an editor, an interpreter or a command that asks something may read the input. Results are cached, since
    all rollouts of a turn share the lines of its expert.
    """
    if _MAY_READ.search(_QUOTES.sub("", line)):
        return False
    form = form_of(line)
    if not isinstance(form, LineForm):
        return False
    before = ("", *form.parts)
    return all(
        part in _OPERATORS if isinstance(part, str) else _leaves_terminal(part, has_pipe=previous in ("|", "|&"))
        for previous, part in zip(before, form.parts, strict=False)
    )


def _leaves_terminal(command: CommandForm, *, has_pipe: bool) -> bool:
    arguments = command.arguments
    if not has_pipe and "-" in (*arguments.operands, *arguments.rest):
        return False
    if command.name == "" or command.name in _NEVER_READ:
        return command.name not in _MAY_ASK or "-f" in arguments.flags
    num_operands = _READ_WITHOUT_FILE.get(command.name)
    if num_operands is None or (arguments.flags and command.name == "tail"):
        return False
    is_known = not any("$" in each for each in arguments.operands)  # a variable may be empty
    return has_pipe or (is_known and len(arguments.operands) >= num_operands)
