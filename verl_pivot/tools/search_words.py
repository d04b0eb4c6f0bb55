"""Words of documents -> a BM25 index in a folder, and words of a query -> the score of each document."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from verl_pivot.extras import extra

with extra("search"):
    import bm25s

_FOLDER = "bm25"


def words_of(texts: Sequence[str]) -> list[list[str]]:
    """The words of each text in lower case, of two letters or more, without English stop words."""
    words: list[list[str]] = bm25s.tokenize(list(texts), stopwords="en", return_ids=False, show_progress=False)
    return words


def write_words(folder: Path, words: Sequence[Sequence[str]]) -> None:
    """Write the BM25 index of documents, whose words are given, into the folder of an index."""
    index = bm25s.BM25()
    index.index([list(each) for each in words], show_progress=False)
    index.save(str(folder / _FOLDER))


class WordScores:
    """BM25 scores of the documents of an index (k1 = 1.5, b = 0.75, with Lucene's idf)."""

    def __init__(self, folder: Path) -> None:
        """Open the index; raises OSError, ValueError or KeyError if it cannot be read."""
        self._index = bm25s.BM25.load(str(folder / _FOLDER), mmap=True)

    def scores(self, words: Sequence[str]) -> NDArray[Any]:
        """[num_documents] scores; 0 for a document that has none of the words."""
        scores: NDArray[Any] = self._index.get_scores_from_ids(self._index.get_tokens_ids(list(words)))
        return scores
