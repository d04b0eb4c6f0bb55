"""Pages: the documents of a world as the tool `search` shows them, from an index in a folder."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from examples.world.entities import Document
from verl_pivot.data.files import replacing
from verl_pivot.tools.search import SearchTool, SearchToolOptions
from verl_pivot.tools.search_files import SearchKind
from verl_pivot.tools.search_writing import write_index
from verl_pivot.tools.workspace import Workspace


class Pages:
    """A corpus as the tool `search` shows it, one page for each search."""

    def __init__(self, index: Path) -> None:
        self.tool = SearchTool(SearchToolOptions(index=index, num_documents=1))
        self._found: dict[str, str] = {}

    @classmethod
    def of(cls, documents: Sequence[Document], folder: Path, kind: SearchKind = SearchKind.BM25) -> "Pages":
        """Index documents into a folder; each corpus needs its own folder, since a process opens an index only once."""
        corpus = folder / "documents.jsonl"
        with replacing(corpus) as unfinished:
            unfinished.write_text("".join(json.dumps(each._asdict()) + "\n" for each in documents))
        write_index(corpus, folder / "index", lambda _: None, kind=kind)
        return cls(folder / "index")

    def search(self, query: str) -> str:
        if query not in self._found:
            observation = asyncio.run(self.tool.call({"query": query}, Workspace({})))
            self._found[query] = observation.text
        return self._found[query]


def write_tools(folder: Path) -> Path:
    """Write a tools file for the index that `Pages.of` wrote into a folder; the folder's path must be absolute."""
    path = folder / "tools.yaml"
    path.write_text(f"# One page for each search.\n- tool: search\n  index: {folder / 'index'}\n  num_documents: 1\n")
    return path
