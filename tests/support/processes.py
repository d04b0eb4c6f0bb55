"""Processes that this one has started, by what their command lines say."""

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
