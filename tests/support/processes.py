"""Processes that this one has started, by what their command lines say."""

from pathlib import Path

import psutil


def descendants(words: str) -> list[psutil.Process]:
    """Those whose command line holds these words; one that has ended, whoever waits for it, has none."""
    found = []
    for each in psutil.Process().children(recursive=True):
        try:
            if words in " ".join(each.cmdline()):
                found.append(each)
        except psutil.NoSuchProcess:  # a zombie too
            continue
    return found


def below(root: int) -> list[int]:
    """A process's children, and theirs."""
    found = [root]
    for each in found:
        found += [int(pid) for pid in Path(f"/proc/{each}/task/{each}/children").read_text().split()]
    return found[1:]
