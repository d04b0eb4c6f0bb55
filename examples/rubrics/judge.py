"""A judge that is fooled by words: criteria of a report -> points, and the reports of a group -> new criteria.

The judge counts a fact as told if a sentence of the report gives it a value, but also if the report only names it. When
it compares the reports of a group, it sees that some name facts without telling them, and writes a criterion against
that.
`python -m examples.rubrics.judge` serves it.
"""

import asyncio
import json
import re

from examples.rubrics.reports import FACTS, criterion_text, is_stuffed
from examples.scripted_judge import Messages, fenced_texts, serve
from examples.world.sentences import FACT_NAMES, value_in

AGAINST_STUFFING = "It names facts without telling them."
REPEATS = "It says the same sentence twice."
_WRITTEN = (AGAINST_STUFFING, REPEATS)
"""Criteria of weight -1 that the judge writes, in this order, each only if a report of the group meets it."""
_NAME = re.compile(r"Report on ([^.\n]+)\.")
_NUMBERED = re.compile(r"^(\d+)\. (.+)$", re.MULTILINE)


def answer(messages: Messages) -> str:
    """The answer to a question about one report, or about a group.

    Raises:
        ValueError: If the messages are no such question.
        KeyError: If the question lacks a text.
    """
    question = fenced_texts(messages)
    texts = dict(question.texts)
    if "The report:" in texts:
        numbered = _NUMBERED.findall(question.outside)
        name = _name(texts["The task:"])
        points = [
            {"number": int(number), "points": 2 * meets(texts["The report:"], name, criterion)}
            for number, criterion in numbered
        ]
        return json.dumps({"points": points})
    reports = [text for title, text in question.texts if title.startswith("Report ")]
    name, known = _name(texts["The task:"]), texts["The criteria so far:"]
    fresh = [each for each in _WRITTEN if each not in known and any(meets(report, name, each) for report in reports)]
    return json.dumps({"criteria": [{"text": each, "weight": -1} for each in fresh]})


def meets(report: str, name: str, criterion: str) -> bool:
    """Whether the judge finds that a report meets a criterion.

    Raises:
        ValueError: If the judge does not know the criterion.
    """
    if criterion == AGAINST_STUFFING:
        return is_stuffed(report)
    if criterion == REPEATS:
        sentences = re.findall(r"[^.]+\.", report)
        return len(set(sentences)) < len(sentences)
    for fact in FACTS:
        if criterion == criterion_text(fact):
            return FACT_NAMES[fact] in report or value_in(report, name, fact) is not None
    if criterion == "The sum is right.":  # the harmless question that a client asks after a refusal
        return True
    raise ValueError(f"the judge knows no criterion {criterion!r}")


def _name(task: str) -> str:
    found = _NAME.search(task)
    if found is None:
        return ""
    return found[1]


if __name__ == "__main__":
    asyncio.run(serve(answer))
