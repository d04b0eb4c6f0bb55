"""Lines for bash -> what bash does with each line; instead of external commands, their words are recorded."""

import getopt
import re

from verl_pivot.sandbox.execution import Limits, Program, Status
from verl_pivot.verifiers.sandboxed import execute

# A command records its words and its input from a pipe in the log; its output goes where the line sends it. The
# loop shows for each line the exit code, the log, the output and the files that the line left, each between marks.
_HARNESS = r"""
start=$PWD; log=/tmp/log; PATH=/nowhere; shopt -s nullglob dotglob; HOME=/home/me; b="x y"
enable -n kill suspend umask enable
command_not_found_handle() {
    local line entry read=
    if [[ -p /dev/stdin ]]; then while IFS= read -t 20 -r line; do read+="$line;"; done; fi
    printf -v entry '\1%s' "$@"; printf '%s\2%s\n' "$entry" "$read" >> $log
    printf '<%s>\n' "$1"
    [[ $1 != false* ]]
}
/bin/mkdir -p /tmp/w; cd /tmp/w; OLDPWD=/tmp/w
while IFS= read -r -d '' line <&9; do
    /bin/rm -rf /tmp/w/* $log; : > $log; : > a.py; : > b.py
    ( ulimit -t 1; set +m; trap wait EXIT; eval -- "$line" ) < /dev/null > /tmp/out 2> /tmp/err
    printf '\3%s\4' $?
    [[ $(< /tmp/err) == *"syntax error"* || $(< /tmp/err) == *"unexpected EOF"* ]] && printf 'syntax error'
    printf '\4'; printf '%s' "$(< $log)"; printf '\4'; printf '%s' "$(< /tmp/out)"; printf '\4'
    for file in *; do [[ -f $file ]] && printf '%s=%s\5' "$file" "$(< "$file")"; done
    PATH=/nowhere; cd /tmp/w; OLDPWD=/tmp/w
done 9< "$start/lines"
"""
_KILLED = 128
"""Smallest exit code of a line that a signal ended, such as a line that computes for more than a second."""
_LINE = re.compile(r"(?<=line )\d+")
_SHORT = {
    "ls": "alhRrdsiFt1SACI:T:w:", "rm": "rRfdviI", "grep": "inrlcvwxoqsHhEFGPLA:B:C:D:d:e:f:m:",
    "head": "c:n:qvz", "tail": "c:n:s:fFqvz", "cp": "rRpvuafinS:t:T", "mkdir": "pvm:", "sort": "rnufbszhVgMk:o:S:t:T:",
    "wc": "lwcmL", "cat": "nsETvbAetu",
}  # fmt: skip
_LONG = {
    "rm": {"recursive": "r", "force": "f"},
    "ls": {"all": "a"},
    "grep": {"ignore-case": "i", "line-number": "n", "recursive": "r", "regexp=": "e"},
    "head": {"lines=": "n"},
    "sort": {"ignore-case": "f"},
}
_LETTERS = {
    (name, f"--{long.rstrip('=')}"): f"-{short}" for name, known in _LONG.items() for long, short in known.items()
}


async def have_one_effect(lines: list[str], effect: dict[str, str | None], num_runs: int = 5) -> bool:
    """Whether all lines that bash accepts may have the same effect.

    Commands in the background may end in any order, so that files and the input of other commands differ from run to
    run. So lines whose effects differ run again, each alone, until all have had one effect in common.

    Args:
        lines: Lines of one form.
        effect: Effect of each line in one run.
        num_runs: Maximum number of further runs of each line.
    """
    seen = {line: {effect[line]} for line in lines if effect[line] is not None}
    for _ in range(num_runs):
        if not seen or set.intersection(*seen.values()):
            return True
        for line in seen:
            seen[line] |= set(await effects([line]))
    return bool(set.intersection(*seen.values()))


async def effects(lines: list[str]) -> list[str | None]:
    """Effect of each line: exit code, commands, output and files; None if bash rejects it or it does not end."""
    packed = b"".join(line.encode() + b"\0" for line in lines)
    limits = Limits(wall_seconds=30.0, cpu_seconds=100, output_bytes=8 * 1024**2, num_processes=512)
    program = Program(code=_HARNESS, language="bash", files={"lines": packed}, limits=limits)
    (result,) = await execute([program])
    shown = result.stdout.split("\3")[1:]
    if result.status is Status.OK:
        assert len(shown) == len(lines), (len(shown), len(lines), result.stderr[-300:])
        return [_effect(each) for each in shown]
    assert result.status is Status.TIMEOUT, (result.status, result.stderr[-300:])
    if len(lines) == 1:
        return [None]
    half = len(lines) // 2  # some line does not end: each half of the lines runs alone
    return [*await effects(lines[:half]), *await effects(lines[half:])]


def _effect(shown: str) -> str | None:
    status, error, log, output, files = shown.split("\4")
    if error or int(status) >= _KILLED:
        return None
    commands = sorted(_words_in_one_order(entry) for entry in log.split("\n"))
    return repr((status, commands, sorted(_LINE.sub("", output).split("\n")), _LINE.sub("", files)))


def _plain_path(path: str) -> str:
    """A path without empty and dot parts; `-` alone is no path."""
    if path in ("-", ""):
        return f"no path: {path}"
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return "/" * path.startswith("/") + "/".join(parts) + "/" * path.endswith("/")


def _words_in_one_order(entry: str) -> str:
    """The words of one command, with its flags sorted if `_SHORT` lists them."""
    words, _, read = entry.removeprefix("\1").partition("\2")
    name, *arguments = words.split("\1")
    if name in _SHORT:
        if name in ("head", "tail") and arguments and arguments[0][:1] == "-" and arguments[0][1:].isdigit():
            arguments = ["-n", arguments[0][1:], *arguments[1:]]
        long = _LONG.get(name, {})
        try:
            flags, operands = getopt.gnu_getopt(arguments, _SHORT[name], list(long))
        except getopt.GetoptError:
            return repr((name, arguments, read))
        named = [(_LETTERS.get((name, flag), flag), value) for flag, value in flags]
        if name not in ("grep", "sort"):
            operands = [_plain_path(operand) for operand in operands]
        return repr((name, sorted(named), operands, read))
    if name == "cd":
        arguments = [_plain_path(argument) for argument in arguments]
    return repr((name, arguments, read))
