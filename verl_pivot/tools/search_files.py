"""Folder of a search index: its version, its contents, and its documents, which are read from disk one by one."""

import mmap
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import msgspec
import numpy as np

from verl_pivot.errors import ConfigError

VERSION = 2
"""Version of the folder's layout; 1 was an index of bm25s alone."""
_FACTS = "index.json"
_OF_VERSION_1 = "params.index.json"
_DOCUMENTS, _ENDS = "documents.jsonl", "document_ends.npy"
_OWN = frozenset(
    {
        *(_FACTS, _DOCUMENTS, _ENDS, "bm25", "vectors.npy", "vectors.faiss"),
        *("words.json", "word_weights.npy", "word_directions.npy", "corpus.jsonl", "corpus.mmindex.json"),
    }
)
"""Names in the folder of an index of any version, beside those that end in one of `_OF_WORDS`."""
_OF_WORDS = (".index.json", ".index.npy")


class SearchKind(StrEnum):
    """Way in which documents are found."""

    BM25 = "bm25"
    """By the words of the query."""
    DENSE = "dense"
    """By the angle between vectors."""
    HYBRID = "hybrid"
    """By both; the two rankings are fused."""

    @property
    def needs_words(self) -> bool:
        return self is not SearchKind.DENSE

    @property
    def needs_vectors(self) -> bool:
        return self is not SearchKind.BM25


class Prefixes(StrEnum):
    """Text that an encoder was trained to read before a query and before a document."""

    NONE = "none"
    E5 = "e5"
    BGE = "bge"


class EncoderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Encoder that made the vectors of an index, and makes those of its queries."""

    folder: str
    """Absolute path of the Hugging Face model."""
    prefixes: Prefixes


def encoder_facts(folder: Path, prefixes: Prefixes | None) -> EncoderFacts:
    """The encoder of a new index; if `prefixes` is None, the folder's name decides on them."""
    name = folder.resolve().name.lower()
    told = Prefixes.E5 if "e5" in name else Prefixes.BGE if "bge" in name else Prefixes.NONE
    return EncoderFacts(folder=str(folder.resolve()), prefixes=told if prefixes is None else prefixes)


class IndexFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of an index, as its `index.json` lists them.

    Example:
        IndexFacts(version=2, kind=SearchKind.HYBRID, num_documents=100_000)
    """

    version: int
    kind: SearchKind
    """Kind of search that the index was made for; hybrid serves all three."""
    num_documents: int
    encoder: EncoderFacts | None = None
    """None if there are no vectors, or if they are made from the words of the documents."""
    approximate: bool = False
    """Whether a query is compared only with documents near it (FAISS), and not with every document."""

    def serves(self, kind: SearchKind) -> bool:
        """Whether the index has the parts that a kind of search needs."""
        return self.kind in (kind, SearchKind.HYBRID)


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """One document of an index.

    Example:
        Document(id="17", title="Paris", text="The capital of France.")
    """

    id: str
    title: str
    """Empty if it has none."""
    text: str

    @property
    def contents(self) -> str:
        """The title as the first line, empty if there is none, then the text, as in Search-R1's corpus."""
        return f"{self.title}\n{self.text}"


class _Version(msgspec.Struct):
    version: int


def is_index(folder: Path) -> bool:
    """Whether the folder holds a search index of any version."""
    return (folder / _FACTS).is_file() or (folder / _OF_VERSION_1).is_file()


def check_replaceable(folder: Path) -> None:
    """Refuse a folder with something that no index has, since an index in it is replaced with all its files.

    Raises:
        ConfigError: If there is such a file or folder; the message names it.
    """
    for path in sorted(folder.rglob("*")):
        if path.name not in _OWN and not path.name.endswith(_OF_WORDS):
            raise ConfigError(
                f"{folder} would be deleted for the new index, but holds {path.relative_to(folder)}, which is no part "
                "of an index: move it to another folder, or give another --out"
            )


def write_facts(folder: Path, facts: IndexFacts) -> None:
    (folder / _FACTS).write_bytes(msgspec.json.encode(facts))


def read_facts(folder: Path) -> IndexFacts:
    """Read the contents of an index from its `index.json`.

    Raises:
        ConfigError: If the folder holds no index, or one of another version.
    """
    if not is_index(folder):
        raise ConfigError(f"{folder} holds no search index; {_remedy(folder)}")
    try:
        text = (folder / _FACTS).read_bytes() if (folder / _FACTS).is_file() else b'{"version": 1}'
        version = msgspec.json.decode(text, type=_Version).version
        if version != VERSION:
            raise ConfigError(
                f"{folder} holds a search index of version {version}, but this verl-pivot reads version {VERSION}: "
                f"make it again with `verl-pivot index DOCUMENTS --out {folder}`"
            )
        return msgspec.json.decode(text, type=IndexFacts)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damaged(folder, str(error)) from error


def damaged(folder: Path, problem: str) -> ConfigError:
    """The error for an index whose files cannot be read."""
    return ConfigError(f"the search index {folder} is damaged ({problem}); {_remedy(folder)}")


def _remedy(folder: Path) -> str:
    return f"make it with `verl-pivot index DOCUMENTS --out {folder}`"


def write_documents(folder: Path, documents: Sequence[Document]) -> None:
    """Write the documents, and where each of them ends."""
    ends = np.zeros(len(documents), dtype=np.int64)
    with (folder / _DOCUMENTS).open("wb") as file:
        for number, document in enumerate(documents):
            file.write(msgspec.json.encode(document) + b"\n")
            ends[number] = file.tell()
    np.save(folder / _ENDS, ends)


class StoredDocuments:
    """The documents of an index, by their numbers from 0; any number of threads may read them."""

    def __init__(self, folder: Path) -> None:
        """Open them; raises OSError or ValueError if they cannot be read."""
        with (folder / _DOCUMENTS).open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._ends = np.load(folder / _ENDS, mmap_mode="r")

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> Document:
        begin = int(self._ends[number - 1]) if number else 0
        return msgspec.json.decode(self._bytes[begin : int(self._ends[number])], type=Document)
