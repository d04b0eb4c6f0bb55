"""A scripted judge that knows the results of execution, and often answers without looking at them.

Start it with `python -m examples.certificates.judge FILE`.
The file holds {"outcomes": {program: [num_tests]}, "sloppy": share, "hidden": share, "seed": number}.
"""

import asyncio
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from examples.scripted_judge import Answered, Messages, fenced_texts, serve
from verl_pivot.types import JsonObject
from verl_pivot.verifiers.code_blocks import code_blocks

_FILE = re.compile(r"File (\d+), of (.*):")
Outcomes = Mapping[str, Sequence[bool]]
"""{program: [num_tests] whether it passes each test}"""


class Habits(NamedTuple):
    """How often, and how, a judge errs."""

    sloppy: float
    """Share of the answers in which the judge calls two programs the same without looking at them."""
    hidden: float
    """Share of the sloppy answers whose certificate has no defect that a program could find."""
    seed: int


class ShownFile(NamedTuple):
    number: int
    owner: str
    lines: list[str]


def answering(outcomes: Outcomes, habits: Habits) -> Answered:
    """Function that answers questions with and without the certificate form; it may answer a repetition differently."""
    asked: Counter[str] = Counter()

    def answer(messages: Messages) -> str:
        shown = fenced_texts(messages).texts
        question = sha256(json.dumps(shown).encode()).hexdigest()
        asked[question] += 1
        draw = random.Random(f"{habits.seed} {question} {asked[question]}")
        is_sloppy = draw.random() < habits.sloppy
        if any(_FILE.fullmatch(title) for title, _ in shown):
            return json.dumps(_certificate(_files(shown), outcomes, habits, draw, is_sloppy=is_sloppy))
        one, two = (
            code_blocks(text)[-1].text.removesuffix("\n") for title, text in shown if title.startswith("Action")
        )
        return json.dumps({"reason": "so it seems", "same": is_sloppy or outcomes[one] == outcomes[two]})

    return answer


def _files(shown: Sequence[tuple[str, str]]) -> list[ShownFile]:
    found = [(_FILE.fullmatch(title), text) for title, text in shown]
    return [
        ShownFile(int(title[1]), title[2], [line.partition("| ")[2] for line in text.split("\n")[1:]])
        for title, text in found
        if title is not None
    ]


def _certificate(
    files: list[ShownFile], outcomes: Outcomes, habits: Habits, draw: random.Random, *, is_sloppy: bool
) -> JsonObject:
    versions = [file for file in files if file.owner.startswith("version")]
    tests = [file for file in files if file.owner == "a test"]
    one, two = (outcomes["\n".join(file.lines)] for file in versions)
    if is_sloppy:
        one = two = [True] * len(tests)
    lines = [(file.number, at, line) for file in versions for at, line in enumerate(file.lines, 1) if line.strip()]
    premises: list[Any] = [
        {"number": number, "file": file, "line": at, "quotation": line, "claim": "it runs"}
        for number, (file, at, line) in enumerate(lines, 1)
    ]
    cited = [premise["number"] for premise in premises]
    traces: list[Any] = [
        {"test": n, "premises": cited, "steps": "it runs", "passes_in_version_1": a, "passes_in_version_2": b}
        for n, (a, b) in enumerate(zip(one, two, strict=True), 1)
    ]
    if is_sloppy and draw.random() >= habits.hidden:
        _spoil(premises, traces, draw)
    return {"premises": premises, "traces": traces, "reason": "so it seems", "same": list(one) == list(two)}


def _spoil(premises: list[Any], traces: list[Any], draw: random.Random) -> None:
    """Give a certificate one of three defects that careless answers have."""
    defect = draw.randrange(3)
    if defect == 0:
        premises[0]["quotation"] = "return the same value"
    elif defect == 1:
        traces.pop()
    else:
        del premises[2:]
        for trace in traces:
            trace["premises"] = [1]


if __name__ == "__main__":
    settings = json.loads(Path(sys.argv[1]).read_text())
    of_judge = Habits(settings["sloppy"], settings["hidden"], settings["seed"])
    asyncio.run(serve(answering(settings["outcomes"], of_judge)))
