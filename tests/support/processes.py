"""Descendants of processes, by their command lines or by id."""

from pathlib import Path

import psutil


def descendants(words: str) -> list[psutil.Process]:
    """Descendants of this process whose command line has these words; ended processes have no command line."""
    found = []
    for each in psutil.Process().children(recursive=True):
        try:
            if words in " ".join(each.cmdline()):
                found.append(each)
        except psutil.NoSuchProcess:  # psutil raises it for a zombie too
            continue
    return found


def below(root: int) -> list[int]:
    """Ids of all descendants of a process."""
    found = [root]
    for each in found:
        found += [int(pid) for pid in Path(f"/proc/{each}/task/{each}/children").read_text().split()]
    return found[1:]
