"""Tool `search`: a query -> documents, by BM25 over an index; and the writer of that index, `verl-pivot index`."""

import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from verl_pivot.data.files import read_rows
from verl_pivot.data.json_values import BadRowError, as_object
from verl_pivot.data.tool_schemas import text_schema
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.extras import extra
from verl_pivot.tools.contract import CallPolicy, Observation, ToolError
from verl_pivot.tools.functions import in_thread
from verl_pivot.tools.registry import register_tool
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import JsonObject
from verl_pivot.validation import Options

with extra("search"):
    import bm25s


_STOPWORDS = "en"
_PARAMETERS = "params.index.json"
"""File that every index of bm25s contains."""
_SCHEMA = text_schema("search", "Search documents by words; the best ones come back.", {"query": "Words to look for."})


class SearchToolOptions(Options):
    """Options of `- tool: search`."""

    index: Path
    """Folder that `verl-pivot index` wrote."""
    num_documents: Annotated[int, Field(ge=1, le=100)] = 3
    """Most documents that one call returns."""


@register_tool("search", options=SearchToolOptions)
class SearchTool:
    """Returns the documents that match a query best, best first; none that has no word of the query."""

    schema = _SCHEMA
    policy = CallPolicy()

    def __init__(self, options: SearchToolOptions) -> None:
        """Raises ConfigError if there is no index."""
        self._index = load_index(str(options.index))
        self._num_documents = options.num_documents

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        tokens = bm25s.tokenize([str(arguments["query"])], stopwords=_STOPWORDS, show_progress=False)
        if not any(len(ids) for ids in tokens.ids):
            raise ToolError("the query holds no word to look for")
        number = min(self._num_documents, int(self._index.scores["num_docs"]))
        query = {"query_tokens": tokens, "k": number, "show_progress": False}
        documents, scores = await in_thread(self._index.retrieve, query)  # seconds, over a large index
        found = [document for document, score in zip(documents[0], scores[0], strict=True) if score > 0.0]
        return Observation("\n".join(map(_shown, range(1, len(found) + 1), found)) or "no document has these words")


@cache
def load_index(folder: str) -> Any:
    """Open an index that `write_index` wrote; its documents are read from disk when needed.

    Raises:
        ConfigError: If the folder holds no index.
    """
    try:
        return bm25s.BM25.load(folder, load_corpus=True, mmap=True)
    except (OSError, ValueError, KeyError) as error:
        remedy = f"make it with `verl-pivot index DOCUMENTS --out {folder}`"
        raise ConfigError(f"{folder} holds no search index ({error}); {remedy}") from error


class IndexReport(NamedTuple):
    """Counts of one index."""

    num_documents: int
    num_left_out: int
    """Rows that hold no document."""
    first_left_out: str
    """Place of the first of them, and what is wrong with it; empty if there is none."""


def write_index(documents: Path, folder: Path, on_done: Callable[[int], None]) -> IndexReport:
    """Index a file of documents; rows that hold none are left out and counted.

    Args:
        documents: File of rows with `text` and optionally `title`, or as Search-R1's corpus has them, with `contents`,
            whose first line is the title.
        folder: Folder to write; an older index in it is replaced only when the new one is complete.
        on_done: Called with the number of documents read since the call before.

    Raises:
        DataError: If no row holds a document with a word.
        ConfigError: If the folder exists and is no index.
    """
    if folder.exists() and not (folder / _PARAMETERS).is_file():
        raise ConfigError(f"{folder} exists and holds no search index: give another --out")
    left_out: list[str] = []
    corpus = list(_read(documents, on_done, left_out))
    texts = [f"{document['title']} {document['text']}" for document in corpus]
    index = bm25s.BM25()
    tokens = bm25s.tokenize(texts, stopwords=_STOPWORDS, show_progress=False) if texts else None
    if tokens is None or not any(len(ids) for ids in tokens.ids):
        raise DataError(f"{documents} holds no document with a word. {next(iter(left_out), '')}".strip())
    index.index(tokens, show_progress=False)
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    index.save(str(unfinished), corpus=corpus)
    if folder.exists():
        shutil.rmtree(folder)
    unfinished.rename(folder)
    return IndexReport(len(corpus), len(left_out), next(iter(left_out), ""))


def _read(path: Path, on_done: Callable[[int], None], left_out: list[str]) -> Iterator[dict[str, str]]:
    """Every document of a file; of a row that holds none, place and problem go to `left_out`."""
    for row in read_rows(path):
        on_done(1)
        try:
            yield _document(as_object(row.decoded(), "a document"))
        except BadRowError as error:
            left_out.append(f"{row.place}: {error}")


def _document(row: JsonObject) -> dict[str, str]:
    title, text = row.get("title"), row.get("text")
    if text is None and title is None and isinstance(contents := row.get("contents"), str):
        title, _, text = contents.partition("\n") if "\n" in contents else ("", "", contents)
    text = row.get("contents") if text is None else text
    if not isinstance(text, str) or not text.strip():
        raise BadRowError("no_text", 'a document needs "text" (or "contents")')
    return {"title": str(title or ""), "text": text}


def _shown(number: int, document: Any) -> str:
    """A document as Search-R1 (`search_r1/llm_agent/generation.py`) shows it; one without a title as "Doc 1: text"."""
    if not document["title"]:
        return f"Doc {number}: {document['text']}"
    return f"Doc {number}(Title: {document['title']}) {document['text']}"
