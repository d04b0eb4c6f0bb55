"""File of documents -> a search index in a folder, with a count of the rows that hold no document."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from verl_pivot.data.files import read_rows
from verl_pivot.data.json_values import BadRowError, as_object, encode_json
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.tools.search_files import (
    VERSION,
    Document,
    EncoderFacts,
    IndexFacts,
    SearchKind,
    check_replaceable,
    is_index,
    write_documents,
    write_facts,
)
from verl_pivot.tools.search_neighbours import write_neighbours
from verl_pivot.tools.search_vectors import VECTORS, write_latent_vectors
from verl_pivot.tools.search_words import words_of, write_words
from verl_pivot.types import JsonObject


class IndexReport(NamedTuple):
    """Counts of one index."""

    num_documents: int
    num_left_out: int
    """Rows that hold no document."""
    first_left_out: str
    """Place of the first such row, and its problem; empty if there is none."""
    num_cut: int
    """Documents of which the encoder read only the beginning."""


def write_index(
    documents: Path,
    folder: Path,
    on_done: Callable[[int], None],
    *,
    kind: SearchKind = SearchKind.BM25,
    encoder: EncoderFacts | None = None,
    approximate: bool = False,
) -> IndexReport:
    """Index a file of documents; rows that hold no document are left out and counted.

    Args:
        documents: File of rows with `text` and optionally `title` and `id`, or as Search-R1's corpus has them, with
            `contents`, whose first line is the title.
        folder: Folder to write; an older index in it is replaced only when the new one is complete.
        on_done: Called with the number of rows read since the previous call.
        kind: Kind of search that the index is for; hybrid serves all kinds.
        encoder: Encoder of the vectors; None makes the vectors from the documents' words.
        approximate: Whether queries are compared only with documents near them, by FAISS.

    Raises:
        DataError: If no row holds a document with a word.
        ConfigError: If the folder exists and is no index, the folder or the one where the index is made holds other
            files or the documents, the encoder cannot be used, or FAISS is not installed.
    """
    folder = folder.resolve()  # a link to a folder stays
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    _check_folders(folder, unfinished, documents)
    left_out: list[str] = []
    corpus = list(_read(documents, on_done, left_out))
    words = words_of([each.contents for each in corpus])
    if not any(words):
        raise DataError(f"{documents} holds no document with a word. {next(iter(left_out), '')}".strip())
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    write_documents(unfinished, corpus)
    if kind.needs_words:
        write_words(unfinished, words)
    num_cut = _write_vectors(unfinished, corpus, words, encoder) if kind.needs_vectors else 0
    if approximate:
        write_neighbours(unfinished, np.load(unfinished / VECTORS))
        (unfinished / VECTORS).unlink()
    facts = IndexFacts(version=VERSION, kind=kind, num_documents=len(corpus), encoder=encoder, approximate=approximate)
    write_facts(unfinished, facts)
    if folder.exists():
        shutil.rmtree(folder)
    unfinished.rename(folder)
    return IndexReport(len(corpus), len(left_out), next(iter(left_out), ""), num_cut)


def _check_folders(folder: Path, unfinished: Path, documents: Path) -> None:
    """Refuse folders that hold anything but an index, since they are deleted."""
    if folder.exists() and not is_index(folder):
        raise ConfigError(f"{folder} exists but holds no search index: give another --out")
    for each in (folder, unfinished):
        if documents.resolve().is_relative_to(each):
            raise ConfigError(f"{documents} lies in {each}, which is deleted for the new index: give another --out")
        check_replaceable(each)


def _write_vectors(
    folder: Path, corpus: Sequence[Document], words: Sequence[Sequence[str]], encoder: EncoderFacts | None
) -> int:
    """Write the vectors of the documents, and return how many documents an encoder read only in part."""
    if encoder is None:
        write_latent_vectors(folder, words)
        return 0
    from verl_pivot.tools.search_encoder import TextEncoder, TextRole  # imports torch

    encoded = TextEncoder(encoder).encode([each.contents.strip() for each in corpus], TextRole.DOCUMENT)
    np.save(folder / VECTORS, encoded.vectors)
    return encoded.num_cut


def _read(path: Path, on_done: Callable[[int], None], left_out: list[str]) -> Iterator[Document]:
    """Every document of a file; the place and problem of each row without a document go to `left_out`."""
    for row in read_rows(path):
        on_done(1)
        try:
            yield _document(as_object(row.decoded(), "a document"), row.place.number)
        except BadRowError as error:
            left_out.append(f"{row.place}: {error}")


def _document(row: JsonObject, number: int) -> Document:
    title, text = row.get("title"), row.get("text")
    if text is None and title is None and isinstance(contents := row.get("contents"), str):
        title, _, text = contents.partition("\n") if "\n" in contents else ("", "", contents)
    text = row.get("contents") if text is None else text
    if not isinstance(text, str) or not text.strip():
        raise BadRowError("no_text", 'a document needs "text" (or "contents")')
    document = Document(id=str(row.get("id", number)), title=str(title or ""), text=text)
    encode_json([document.id, document.title, document.text])  # refuses a lone surrogate
    return document
