"""Tool `search`: BM25 over a local index of documents, and the index: `verl-pivot index`."""

import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bm25s

from verl_pivot.data.storage import as_object, read_rows
from verl_pivot.data.tools import text_schema
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.tools.contract import Observation, ToolError
from verl_pivot.tools.functions import in_thread
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import JsonObject

if TYPE_CHECKING:
    from verl_pivot.tools.toolset import SearchEntry

_STOPWORDS = "en"
_PARAMETERS = "params.index.json"
"""Every index that bm25s saves has this file."""
_SCHEMA = text_schema("search", "Search documents by words; the best ones come back.", {"query": "Words to look for."})


class SearchTool:
    """The best documents for a query, best first; those without any of its words never."""

    schema = _SCHEMA
    retries = 0
    timeout_seconds = 60.0
    tells_timeouts = False

    def __init__(self, folder: Path, num_documents: int) -> None:
        self._index = load_index(str(folder))
        self._num_documents = num_documents

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        tokens = bm25s.tokenize([str(arguments["query"])], stopwords=_STOPWORDS, show_progress=False)
        if not any(len(ids) for ids in tokens.ids):
            raise ToolError("the query holds no word to look for")
        number = min(self._num_documents, int(self._index.scores["num_docs"]))
        query = {"query_tokens": tokens, "k": number, "show_progress": False}
        documents, scores = await in_thread(self._index.retrieve, query)  # a large index takes its time
        found = [document for document, score in zip(documents[0], scores[0], strict=True) if score > 0.0]
        return Observation("\n".join(map(_shown, range(1, len(found) + 1), found)) or "no document has these words")


def make_tool(entry: "SearchEntry") -> SearchTool:
    return SearchTool(entry.index, entry.num_documents)


@cache
def load_index(folder: str) -> Any:
    """What `write_index` wrote; its documents stay on disk.

    Raises:
        ConfigError: If there is none.
    """
    try:
        return bm25s.BM25.load(folder, load_corpus=True, mmap=True)
    except (OSError, ValueError, KeyError) as error:
        remedy = f"make it with `verl-pivot index DOCUMENTS --out {folder}`"
        raise ConfigError(f"{folder} holds no search index ({error}); {remedy}") from error


def write_index(documents: Path, folder: Path, on_done: Callable[[int], None]) -> int:
    """Index a file of documents; how many there are.

    Args:
        documents: Rows with `text` (or `contents`, as Search-R1 calls it), and `title` where they have one.
        folder: Made, with its parents; what is there stays until the new index is whole.
        on_done: Called with the number of documents read since the last call.

    Raises:
        DataError: If a row is no document.
        ConfigError: If the folder holds something else than an index.
    """
    if folder.exists() and not (folder / _PARAMETERS).is_file():
        raise ConfigError(f"{folder} is there and holds no search index: give another --out")
    corpus = list(_read(documents, on_done))
    texts = [f"{document['title']} {document['text']}" for document in corpus]
    index = bm25s.BM25()
    index.index(bm25s.tokenize(texts, stopwords=_STOPWORDS, show_progress=False), show_progress=False)
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    index.save(str(unfinished), corpus=corpus)
    if folder.exists():
        shutil.rmtree(folder)
    unfinished.rename(folder)
    return len(corpus)


def _read(path: Path, on_done: Callable[[int], None]) -> Iterator[dict[str, str]]:
    for row in read_rows(path):
        document = as_object(row.decoded(), "a document")
        text = document.get("text", document.get("contents"))
        if not isinstance(text, str) or not text.strip():
            raise DataError(f'{row.place}: a document needs "text" (or "contents")')
        yield {"title": str(document.get("title") or ""), "text": text}
        on_done(1)


def _shown(number: int, document: Any) -> str:
    title = f" (title: {document['title']})" if document["title"] else ""
    return f"Doc {number}{title}: {document['text']}"
