"""Documents that a query found -> the text that the policy reads, in the form of a published method."""

from collections.abc import Sequence
from enum import StrEnum


class DocumentForm(StrEnum):
    """Form in which found documents are shown."""

    SEARCH_R1 = "search_r1"
    """One line per document: "Doc 1(Title: Paris) The capital of France.", or without a title "Doc 1: text"."""
    RESEARCH = "research"
    """Title and text as they are, with an empty line between documents."""


def observation_text(contents: Sequence[str], form: DocumentForm) -> str:
    """Text of the documents; empty if there are none.

    Sources: Search-R1's `search_r1/llm_agent/generation.py`, and `batch_search` of ReSearch's `vllm_rollout.py`.

    Args:
        contents: [num_documents] the title as the first line, then the text.
        form: Form of a published method.
    """
    if form is DocumentForm.RESEARCH:
        return "\n\n".join(contents).strip()
    return "\n".join(_line(number, *_parts(each)) for number, each in enumerate(contents, start=1))


def _parts(contents: str) -> tuple[str, str]:
    title, _, text = contents.partition("\n")
    return title, text


def _line(number: int, title: str, text: str) -> str:
    return f"Doc {number}(Title: {title}) {text}" if title else f"Doc {number}: {text}"
