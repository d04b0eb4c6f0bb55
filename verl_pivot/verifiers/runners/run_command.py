"""Runs in the sandbox: runs a command in the folder that a setup makes, and in altered copies of it -> its effects.

plan.json: {"setup", "command", "num_perturbed", "num_runs", "cpu_seconds", "max_output_bytes"}
effects.json: [num_runs][num_perturbed + 1] {"exit_code", "printed", "files", "changes", "complaint"} | {"ended": how}.
"""

import contextlib
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = Path("work")
SCRIPT, PRINTED, ERRORS = "script.sh", "printed", "errors"
EARLIER = 1_704_067_200
"""Timestamp of every file before the command, so that a listing shows the same time in every run."""
SECONDS_BETWEEN_RUNS = 1.1
"""Pause between two runs, after which a command that prints the time prints something else."""
MAX_TEXT_BYTES = 64 * 1024
TEXT_SUFFIXES = {"", ".txt", ".log", ".csv", ".tsv", ".md", ".lst", ".dat", ".out", ".err"}
NUMBER = re.compile(r"(?<![A-Za-z0-9_])[0-9]{1,18}(?![0-9])")
WORD = re.compile(r"[A-Za-z]+")
WORDS_ALONE = re.compile(r"\s*[A-Za-z]+(?: +[A-Za-z]+)+\s*")
LITERALS = {"true", "false", "null"}
"""Words that cannot be replaced by others in a structured text."""
STRUCTURED_SUFFIXES = {".json", ".env", ".yaml", ".yml", ".ini", ".toml", ".cfg", ".conf", ".xml", ".html"}
"""Suffixes of files that are altered only if they have one line; so are hidden files, and names such as VERSION."""
WITH_HEADER = {".csv", ".tsv"}
ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}


def main() -> None:
    with open("plan.json", encoding="utf-8") as file:
        plan = json.load(file)
    runs = []
    for number in range(plan["num_runs"]):
        if number:
            time.sleep(SECONDS_BETWEEN_RUNS)
        runs.append(effects(plan))
    with open("effects.json", "w", encoding="utf-8") as out:
        json.dump(runs, out)


def effects(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Effect of the command in each folder; if it was stopped in one folder, it does not run in the others."""
    found: list[dict[str, Any]] = []
    for variant in range(plan["num_perturbed"] + 1):
        was_ended = bool(found) and "ended" in found[-1]
        found.append(found[-1] if was_ended else effect(plan, variant))
    return found


def effect(plan: dict[str, Any], variant: int) -> dict[str, Any]:
    """Effect of the command in a fresh folder; variant 0 is the folder as the setup makes it."""
    if FOLDER.exists():
        opened()
        shutil.rmtree(FOLDER)
    FOLDER.mkdir()
    if plan["setup"] and bash(plan["setup"]) != 0:
        sys.exit(f"the setup fails: {shown(ERRORS)}")
    for path in sorted(FOLDER.rglob("*")):
        if variant and is_data(path):
            perturb(path, random.Random(f"{path}:{variant}"), variant)
    for path in (*FOLDER.rglob("*"), FOLDER):
        os.utime(path, (EARLIER, EARLIER), follow_symlinks=False)
    before = files()
    cpu_seconds = cpu_of_children()
    exit_code = bash(plan["command"])
    if exit_code < 0:
        return {"ended": end_by(-exit_code, is_late=cpu_of_children() - cpu_seconds > 0.8 * plan["cpu_seconds"])}
    if os.path.getsize(PRINTED) > plan["max_output_bytes"]:
        os.truncate(PRINTED, 0)  # the output may have filled the disk
        return {"ended": "output_limit"}
    after = files()
    return {
        "exit_code": exit_code,
        "printed": Path(PRINTED).read_bytes().decode("utf-8", "surrogateescape"),
        "files": after,
        "changes": after != before,
        "complaint": shown(ERRORS),
    }


def end_by(number: int, *, is_late: bool) -> str:
    """Reason why a signal ended the command.

    A SIGKILL before the time limit also ends this process: the sandbox knows whether the machine ran out of memory.
    """
    if number == signal.SIGKILL and not is_late:
        os.kill(os.getpid(), signal.SIGKILL)
    return "time_limit" if is_late else "runtime_error"


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def bash(script: str) -> int:
    """Exit code of a script in the folder, negative if a signal ended it; processes that it leaves are killed."""
    Path(SCRIPT).write_text(script)
    with open(PRINTED, "wb") as printed, open(ERRORS, "wb") as errors:
        process = subprocess.Popen(
            ["bash", f"../{SCRIPT}"],
            cwd=FOLDER,
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=errors,
            start_new_session=True,
        )
        try:
            return process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def shown(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(2000).decode("utf-8", "replace")


def files() -> list[str]:
    """Kind, mode, name, number of links and content of everything in the folder."""
    modes = opened()
    found = [described(path, modes) for path in sorted(FOLDER.rglob("*"))]
    for path, mode in reversed(modes.items()):
        path.chmod(mode)
    return found


def opened() -> dict[Path, int]:
    """Make all files and folders readable; returns the former modes of those changed, folders before their content."""
    modes: dict[Path, int] = {}
    waiting = [FOLDER] if os.path.lexists(FOLDER) else []  # the command may have removed it
    while waiting:
        path = waiting.pop()
        status = path.lstat()
        needed = stat.S_IRWXU if stat.S_ISDIR(status.st_mode) else stat.S_IRUSR if stat.S_ISREG(status.st_mode) else 0
        if needed & ~status.st_mode:
            modes[path] = stat.S_IMODE(status.st_mode)
            path.chmod(modes[path] | needed)
        if stat.S_ISDIR(status.st_mode):
            waiting += path.iterdir()
    return modes


def described(path: Path, modes: dict[Path, int]) -> str:
    status = path.lstat()
    mode = stat.S_IFMT(status.st_mode) | modes.get(path, stat.S_IMODE(status.st_mode))
    content = ""
    if stat.S_ISLNK(status.st_mode):
        content = os.readlink(path)
    elif stat.S_ISREG(status.st_mode):
        with path.open("rb") as file:
            content = f"{status.st_nlink} {hashlib.file_digest(file, 'sha256').hexdigest()}"
    return f"{stat.filemode(mode)} {path.relative_to(FOLDER)} {content}"


def is_data(path: Path) -> bool:
    """Whether a file is text that may be altered: no program, and of only one line if it is hidden or structured."""
    if (
        path.is_symlink()
        or not path.is_file()
        or not os.access(path, os.R_OK | os.W_OK)
        or any(part.startswith(".") for part in path.parts[:-1])
    ):
        return False
    status = path.stat()
    if status.st_mode & 0o111 or not 0 < status.st_size <= MAX_TEXT_BYTES:
        return False
    if path.suffix in TEXT_SUFFIXES and not path.name[0].isupper() and path.name[0] != ".":
        return True
    return path.suffix in {*TEXT_SUFFIXES, *STRUCTURED_SUFFIXES} and len(path.read_bytes().splitlines()) == 1


def perturb(path: Path, generator: random.Random, variant: int) -> None:
    """Drop a third of a text's lines or write each twice, in another order; a single line is changed in one word."""
    content = path.read_bytes()
    if content.startswith(b"#!") or b"\0" in content:
        return
    lines = content.splitlines(keepends=True)
    header, lines = (lines[:1], lines[1:]) if path.suffix in WITH_HEADER else ([], lines)
    if len(lines) == 1 and not header:
        path.write_bytes(other_line(lines[0]))
        return
    if not lines:
        return
    num_kept = len(lines) - max(1, len(lines) // 3)
    lines = generator.sample(lines, num_kept) if variant % 2 else generator.sample([*lines, *lines], 2 * len(lines))
    whole = [line if line.endswith(b"\n") else line + b"\n" for line in header + lines]
    path.write_bytes(b"".join(whole))


def other_line(line: bytes) -> bytes:
    """The line with its first number changed, or else its last word; a line of words alone gets one more word."""
    text = line.decode("latin-1")  # one character for each byte
    words = [word for word in WORD.finditer(text) if word[0] not in LITERALS]
    if number := NUMBER.search(text):
        start, end, other = number.start(), number.end(), str(int(number[0]) + 1).rjust(len(number[0]), "0")
    elif words:
        start = end = words[-1].end()
        other = f" {words[-1][0]}" if WORDS_ALONE.fullmatch(text) else "s"
    else:
        return line
    return (text[:start] + other + text[end:]).encode("latin-1")


if __name__ == "__main__":
    main()
