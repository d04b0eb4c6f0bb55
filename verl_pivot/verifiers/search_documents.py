"""File of documents -> BM25 index, and a query -> its best documents; lines that hold no document are left out."""

import json
import logging
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from verl_pivot.extras import extra

with extra("search"):
    import bm25s

_MAX_CORPORA = 8
_TEXT_KEYS = ("text", "contents")
logger = logging.getLogger(__name__)


class Corpus(NamedTuple):
    """Documents of a file."""

    searcher: bm25s.BM25 | None
    """None if no document holds a word."""
    problem: str
    """The first line that was left out and how many were; empty if none was."""


def find_documents(path: Path, query: str, num_documents: int) -> set[int]:
    """Numbers of the best documents, without those that share no word with the query."""
    index = open_corpus(path).searcher
    tokens = bm25s.tokenize([query], stopwords="en", show_progress=False)
    if index is None or not any(len(ids) for ids in tokens.ids):
        return set()
    num_documents = min(num_documents, int(index.scores["num_docs"]))
    numbers, scores = index.retrieve(tokens, k=num_documents, show_progress=False)
    return {int(number) for number, score in zip(numbers[0], scores[0], strict=True) if score > 0.0}


@lru_cache(_MAX_CORPORA)
def open_corpus(path: Path) -> Corpus:
    """Index a file of documents, once per process.

    Raises:
        OSError: If the file cannot be read.
    """
    texts: list[str] = []
    left_out: list[int] = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        text = _text_of(line)
        if text is None:
            left_out.append(number)
        else:
            texts.append(text)
    problem = ""
    if left_out:
        problem = f"{path}, line {left_out[0]}, has no document with a text; {len(left_out)} such lines are left out"
        logger.warning(problem)
    tokens = bm25s.tokenize(texts, stopwords="en", show_progress=False) if texts else None
    if tokens is None or not any(len(ids) for ids in tokens.ids):
        return Corpus(None, problem)
    index = bm25s.BM25()
    index.index(tokens, show_progress=False)
    return Corpus(index, problem)


def _text_of(line: bytes) -> str | None:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    found = [document.get(key) for key in _TEXT_KEYS] if isinstance(document, dict) else []
    return next((text for text in found if isinstance(text, str) and text.strip()), None)
