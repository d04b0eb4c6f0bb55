"""Scripted judge that writes certificates: it reads the question as a model would, and its certificates are valid."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Files = dict[str, list[str]]
"""{path: lines} of one version; files that both versions share are in each."""
Opinion = Callable[[Files, str], bool]
"""(files of one version, text outside of the fences) -> whether that version is right."""


@dataclass
class ReadQuestion:
    """Contents of a question that asks for a certificate."""

    owners: list[str]
    """[num_files] `both versions`, `version 1`, `version 2` or `a test`."""
    paths: list[str]
    lines: list[list[str]]
    num_places: int
    outside: str

    @property
    def versions(self) -> tuple[Files, Files]:
        found: tuple[Files, Files] = ({}, {})
        for owner, path, lines in zip(self.owners, self.paths, self.lines, strict=True):
            for number, version in enumerate(found, 1):
                if owner in ("both versions", f"version {number}"):
                    version[path] = lines
        return found

    def quotable_lines(self) -> list[tuple[int, int]]:
        """(file, line) of each quotation: lines with words of a single version, or else the first line with words."""
        found = [
            (number, at, owner)
            for number, (owner, lines) in enumerate(zip(self.owners, self.lines, strict=True), 1)
            for at, line in enumerate(lines, 1)
            if re.search(r"[^\W_]", line)
        ]
        return [each[:2] for each in found if each[2].startswith("version")] or [found[0][:2]]


def read_question(outside: str, inside: list[str]) -> ReadQuestion:
    owners = re.findall(r"^File \d+, of (.*):$", outside, re.MULTILINE)
    files = inside[len(inside) - len(owners) :]
    return ReadQuestion(
        owners=owners,
        paths=[re.match(r'name: "(.*)"', file)[1] for file in files],  # type: ignore[index]
        lines=[[line.partition("| ")[2] for line in file.split("\n")[1:]] for file in files],
        num_places=len(re.findall(r"^Place \d+:", outside, re.MULTILINE)),
        outside=outside,
    )


def has_words(expected: str, path: str = "shop.py") -> Opinion:
    """Opinion that a version is right if its file has these words, or if text outside of the fences says so."""

    def opinion(version: Files, outside: str) -> bool:
        is_told = re.search(r"same[^a-z]{1,5}true(?! or)|answer yes|are (the same|equal|equivalent)", outside.lower())
        return bool(is_told) or "\n".join(version.get(path, [])).lower().split() == expected.lower().split()

    return opinion


def certifying(opinion: Opinion) -> Callable[[str, list[str]], dict[str, Any]]:
    """A judge that has this opinion of each version, and proves it in a certificate."""

    def answer(outside: str, inside: list[str]) -> dict[str, Any]:
        question = read_question(outside, inside)
        right = [opinion(version, outside) for version in question.versions]
        premises = [
            {"number": n, "file": file, "line": line, "quotation": question.lines[file - 1][line - 1], "claim": "so"}
            for n, (file, line) in enumerate(question.quotable_lines(), 1)
        ]
        cited = {"premises": [premise["number"] for premise in premises], "steps": "it runs"}
        same = right[0] == right[1]
        if question.num_places:
            traces = [{"place": n, **cited, "does_the_same": same} for n in range(1, question.num_places + 1)]
        else:
            passes = {"passes_in_version_1": right[0], "passes_in_version_2": right[1]}
            traces = [{"test": n, **cited, **passes} for n in range(1, question.owners.count("a test") + 1)]
        return {"premises": premises, "traces": traces, "reason": "as the traces say", "same": same}

    return answer
