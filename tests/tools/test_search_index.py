"""Search indices: rankings against independent computations, folders that cannot be used, and what encoders read."""

import json
import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from verl_pivot.errors import ConfigError, DataError
from verl_pivot.local.environment import activate_shims
from verl_pivot.tools.search_files import Prefixes, SearchKind, encoder_facts
from verl_pivot.tools.search_index import SearchIndex
from verl_pivot.tools.search_ranking import Ranked, best, fused
from verl_pivot.tools.search_writing import IndexReport, write_index

KINDS = tuple(SearchKind)


def index_of(
    folder: Path, rows: Sequence[object], kind: SearchKind = SearchKind.HYBRID, **options: object
) -> IndexReport:
    """Write an index of these rows into `folder/index`."""
    (folder / "documents.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return write_index(folder / "documents.jsonl", folder / "index", lambda _: None, kind=kind, **options)  # type: ignore[arg-type]


def found(index: SearchIndex, query: str, number: int = 100) -> list[tuple[str, float]]:
    """Ids and scores of the documents that a query finds."""
    (documents,) = index.search([query], number)
    return [(each.document.id, each.score) for each in documents]


def generated(num_documents: int, num_words: int, seed: int = 0) -> list[list[str]]:
    """Words of documents, some of them frequent."""
    rng = random.Random(seed)
    words = [f"word{number}" for number in range(num_words)]
    weights = [1.0 / (rank + 1) for rank in range(num_words)]
    return [rng.choices(words, weights, k=rng.randint(3, 30)) for _ in range(num_documents)]


def bm25(corpus: Sequence[Sequence[str]], query: Sequence[str]) -> list[float]:
    """Scores by the formula of Lucene: k1 = 1.5, b = 0.75."""
    average = sum(map(len, corpus)) / len(corpus)
    scores = [0.0] * len(corpus)
    for word in query:
        having = sum(word in document for document in corpus)
        idf = math.log(1 + (len(corpus) - having + 0.5) / (having + 0.5))
        for number, document in enumerate(corpus):
            times = document.count(word)
            scores[number] += idf * times / (times + 1.5 * (1 - 0.75 + 0.75 * len(document) / average))
    return scores


def latent(corpus: Sequence[Sequence[str]], queries: Sequence[Sequence[str]], size: int) -> NDArray[np.float64]:
    """[num_queries, num_documents] cosines by a full singular value decomposition."""
    words = sorted({word for document in corpus for word in document})
    idf = {word: 1 + math.log((1 + len(corpus)) / (1 + sum(word in each for each in corpus))) for word in words}

    def rows(texts: Sequence[Sequence[str]]) -> NDArray[np.float64]:
        counts = [Counter(text) for text in texts]
        matrix = np.array([[(1 + math.log(c[w])) * idf[w] if c[w] else 0.0 for w in words] for c in counts])
        return matrix / np.linalg.norm(matrix, axis=1, keepdims=True)

    _, _, right = np.linalg.svd(rows(corpus), full_matrices=False)
    documents, asked = rows(corpus) @ right[:size].T, rows(queries) @ right[:size].T
    norm = np.linalg.norm
    cosines: NDArray[np.float64] = (asked / norm(asked, axis=1, keepdims=True)) @ (
        documents / norm(documents, axis=1, keepdims=True)
    ).T
    return cosines


def test_bm25_scores_are_those_of_the_formula(tmp_path: Path) -> None:
    corpus = generated(60, 40)
    index_of(tmp_path, [{"id": str(number), "text": " ".join(words)} for number, words in enumerate(corpus)])
    index = SearchIndex(tmp_path / "index", SearchKind.BM25)

    for query in ("word0", "word3 word17 word39", "word1 word1 nowhere"):
        expected = {str(number): score for number, score in enumerate(bm25(corpus, query.split())) if score > 0}
        got = found(index, query)
        assert dict(got) == pytest.approx(expected, rel=1e-5)
        assert [score for _, score in got] == sorted((score for _, score in got), reverse=True)
        assert found(index, query, 5) == got[:5]


@pytest.mark.parametrize(("num_documents", "num_words"), [(30, 50), (140, 135)])
def test_dense_scores_are_those_of_a_whole_decomposition(tmp_path: Path, num_documents: int, num_words: int) -> None:
    corpus = generated(num_documents, num_words)
    index_of(tmp_path, [{"id": str(number), "text": " ".join(words)} for number, words in enumerate(corpus)])
    queries = ["word0 word2", "word5 word5 word9", " ".join(corpus[7])]

    index = SearchIndex(tmp_path / "index", SearchKind.DENSE)

    cosines = latent(corpus, [query.split() for query in queries], 128)
    for query, row in zip(queries, cosines, strict=True):
        expected = {str(number): score for number, score in enumerate(row) if score > 1e-4}
        got = {number: score for number, score in found(index, query, num_documents) if score > 1e-4}
        assert got == pytest.approx(expected, abs=1e-4)
    assert found(index, queries[2], 1)[0][0] == "7"


def test_hybrid_is_the_fusion_of_both_rankings_and_its_index_serves_all_kinds(tmp_path: Path) -> None:
    corpus = generated(50, 60)
    index_of(tmp_path, [{"text": " ".join(words)} for words in corpus])
    by_words, by_vectors, both = (SearchIndex(tmp_path / "index", kind) for kind in KINDS)

    query = "word2 word11 word30"

    sums: Counter[str] = Counter()
    for index in (by_words, by_vectors):
        for rank, (number, _) in enumerate(found(index, query), start=1):
            sums[number] += 1 / (60 + rank)  # type: ignore[assignment]  # a Counter of fractions
    assert dict(found(both, query)) == pytest.approx(dict(sums))
    assert SearchIndex(tmp_path / "index").kind is SearchKind.HYBRID


def test_rankings_are_fused_by_hand() -> None:
    left, right = [Ranked(4, 9.0), Ranked(1, 8.0)], [Ranked(1, 0.5), Ranked(7, 0.4), Ranked(4, 0.3)]

    assert fused([left, right], 2) == [(1, 1 / 62 + 1 / 61), (4, 1 / 61 + 1 / 63)]


def test_the_best_are_those_of_a_whole_sort_and_equal_ones_come_in_their_order() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 3, 50):
        for _ in range(50):
            scores = rng.integers(-2, 4, size).astype(np.float32)
            expected = sorted((-score, number) for number, score in enumerate(scores) if score > 0)
            got = best(scores, 5)
            assert got == [(number, -score) for score, number in expected[:5]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_query_finds_the_same_alone_and_among_others_and_nothing_where_nothing_matches(
    tmp_path: Path, kind: SearchKind
) -> None:
    index_of(
        tmp_path,
        [
            {"title": "Paris", "text": "The capital of France."},
            {"text": "the of and"},
            {"id": 3, "contents": '"Berlin"\nIt lies on the Spree.\nIt is large.'},
        ],
    )
    index = SearchIndex(tmp_path / "index", kind)

    queries = ["capital France", "volcano", "", "the", "Spree"]
    alone = [index.search([query], 2)[0] for query in queries]

    assert index.search(queries, 2) == alone
    assert [[each.document.contents for each in documents] for documents in alone] == [
        ["Paris\nThe capital of France."],
        [],
        [],
        [],
        ['"Berlin"\nIt lies on the Spree.\nIt is large.'],
    ]
    assert alone[4][0].document.id == "3"
    assert [index.is_empty(query) for query in queries] == [False, False, True, True, False]
    assert index.search([], 2) == []


def test_one_document_is_an_index_of_every_kind(tmp_path: Path) -> None:
    index_of(tmp_path, [{"text": "Rivers flow."}])

    assert [[number for number, _ in found(SearchIndex(tmp_path / "index", kind), "rivers")] for kind in KINDS] == [
        ["1"],
        ["1"],
        ["1"],
    ]


def test_rows_without_text_are_left_out_and_named(tmp_path: Path) -> None:
    rows: list[object] = [
        {"text": "one two"},
        {"title": "no text"},
        {"text": "  "},
        [],
        {"text": 7},
        {"text": "\ud800"},
    ]

    report = index_of(tmp_path, rows)

    assert report[:2] == (1, 5)
    assert re.search(r'documents\.jsonl, line 2: a document needs "text" \(or "contents"\)', report.first_left_out)
    with pytest.raises(DataError, match="holds no document with a word"):
        index_of(tmp_path, [{"text": "the of"}])


@pytest.mark.parametrize(
    ("made_for", "asked", "message"),
    [
        (SearchKind.BM25, SearchKind.DENSE, "made with --kind bm25 and holds no vectors, which kind dense needs"),
        (
            SearchKind.BM25,
            SearchKind.HYBRID,
            "holds no vectors, which kind hybrid needs: make it again with `verl-pivot",
        ),
        (SearchKind.DENSE, SearchKind.BM25, "made with --kind dense and holds no words, which kind bm25 needs"),
    ],
)
def test_an_index_that_lacks_a_part_is_named_with_the_remedy(
    tmp_path: Path, made_for: SearchKind, asked: SearchKind, message: str
) -> None:
    index_of(tmp_path, [{"text": "one two"}, {"text": "two three"}], made_for)

    assert found(SearchIndex(tmp_path / "index"), "one")[0][0] == "1"
    with pytest.raises(ConfigError, match=message):
        SearchIndex(tmp_path / "index", asked)


def test_an_index_of_another_version_or_with_damage_is_named_with_the_remedy(tmp_path: Path) -> None:
    index_of(tmp_path, [{"text": "one two"}, {"text": "two three"}])
    folder = tmp_path / "index"
    facts = (folder / "index.json").read_text()
    old = tmp_path / "old"
    old.mkdir()
    (old / "params.index.json").write_text("{}")

    with pytest.raises(
        ConfigError, match="nowhere holds no search index; make it with `verl-pivot index DOCUMENTS --out"
    ):
        SearchIndex(Path("nowhere"))
    with pytest.raises(
        ConfigError, match="of version 1, but this verl-pivot reads version 2: make it again with `verl-"
    ):
        SearchIndex(old)
    (folder / "index.json").write_text(facts.replace('"version":2', '"version":3'))
    with pytest.raises(ConfigError, match="of version 3, but this verl-pivot reads version 2"):
        SearchIndex(folder)
    for broken in ("{", "[]", '{"version": 2}', facts.replace("hybrid", "magic"), facts.replace("hybrid", "caf\xe9")):
        (folder / "index.json").write_bytes(broken.encode("latin-1"))
        with pytest.raises(ConfigError, match=r"is damaged .*; make it with"):
            SearchIndex(folder)
    (folder / "index.json").write_text(facts)
    for name in ("documents.jsonl", "document_ends.npy", "vectors.npy", "words.json", "bm25/params.index.json"):
        kept = (folder / name).read_bytes()
        (folder / name).write_bytes(b"")
        with pytest.raises(ConfigError, match="is damaged"):
            SearchIndex(folder)
        (folder / name).write_bytes(kept)
    np.save(folder / "vectors.npy", np.ones((3, 2), dtype=np.float32))
    with pytest.raises(ConfigError, match=r"is damaged \(its parts are for 2 and 3 documents\)"):
        SearchIndex(folder)
    assert found(SearchIndex(folder, SearchKind.BM25), "one")[0][0] == "1"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an untrained encoder of 16 dimensions, which reads up to 12 tokens."""
    activate_shims()  # before transformers, which imports torchvision
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, set_seed

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "query", "passage", ":", *(f"w{number}" for number in range(20))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(vocabulary)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    folder = tmp_path_factory.mktemp("models") / "tiny-e5"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    set_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=12,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    return folder


def test_an_encoders_vectors_are_the_mean_over_tokens_with_the_prefix_of_its_family(
    tmp_path: Path, encoder: Path
) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(encoder), AutoModel.from_pretrained(encoder).eval()

    def vector(text: str) -> NDArray[np.float32]:
        with torch.inference_mode():
            states = model(**tokenizer(text, return_tensors="pt", truncation=True, max_length=12)).last_hidden_state
        mean: NDArray[np.float32] = states[0].mean(dim=0).numpy()
        return mean / np.linalg.norm(mean)

    texts = ["w1 w2", "w3", "w4 w5 w6 w7 w8 w9 w10 w11 w12 w13 w14"]
    report = index_of(
        tmp_path, [{"text": text} for text in texts], SearchKind.DENSE, encoder=encoder_facts(encoder, None)
    )
    got = dict(found(SearchIndex(tmp_path / "index"), "w2 w1"))

    cosines = {
        str(number): float(vector("query: w2 w1") @ vector(f"passage: {text}")) for number, text in enumerate(texts, 1)
    }
    assert got == pytest.approx({number: score for number, score in cosines.items() if score > 0}, abs=1e-5)
    assert report.num_cut == 1
    index = SearchIndex(tmp_path / "index")
    assert [index.is_empty(query) for query in (" ", "the")] == [True, False]
    assert index.search([" "], 2) == [[]]


def test_prefixes_come_from_the_folders_name_unless_they_are_given() -> None:
    named = [encoder_facts(Path(name), None).prefixes for name in ("models/e5-base-v2", "bge-small-en", "minilm")]

    assert named == [Prefixes.E5, Prefixes.BGE, Prefixes.NONE]
    assert encoder_facts(Path("models/e5-base-v2"), Prefixes.NONE).prefixes is Prefixes.NONE


def test_an_encoder_that_is_none_is_gone_or_has_other_dimensions_is_named(tmp_path: Path, encoder: Path) -> None:
    rows = [{"text": "w1"}, {"text": "w2"}]
    (tmp_path / "empty").mkdir()

    with pytest.raises(ConfigError, match="empty is not the folder of a Hugging Face encoder"):
        index_of(tmp_path, rows, encoder=encoder_facts(tmp_path / "empty", None))
    index_of(tmp_path, rows, encoder=encoder_facts(encoder, None))
    facts, vectors = tmp_path / "index" / "index.json", tmp_path / "index" / "vectors.npy"
    np.save(vectors, np.ones((2, 8), dtype=np.float32))
    with pytest.raises(ConfigError, match=r"vectors of 16 dimensions, but those of .* have 8: make the index again"):
        SearchIndex(tmp_path / "index")
    facts.write_text(facts.read_text().replace("tiny-e5", "gone"))
    with pytest.raises(ConfigError, match="gone is not the folder of a Hugging Face encoder"):
        SearchIndex(tmp_path / "index")


def test_an_approximate_index_finds_nearly_all_that_a_comparison_with_every_vector_finds(tmp_path: Path) -> None:
    corpus = [{"id": str(number), "text": " ".join(words)} for number, words in enumerate(generated(4000, 300))]
    queries = [" ".join(words[:4]) for words in generated(50, 300, seed=1)]
    rankings: dict[bool, list[set[str]]] = {}
    for approximate in (False, True):
        (tmp_path / str(approximate)).mkdir()
        index_of(tmp_path / str(approximate), corpus, SearchKind.DENSE, approximate=approximate)
        index = SearchIndex(tmp_path / str(approximate) / "index")
        rankings[approximate] = [{name for name, _ in found(index, query, 10)} for query in queries]

    shared = [len(near & every) / len(every) for near, every in zip(rankings[True], rankings[False], strict=True)]
    assert sum(shared) / len(shared) > 0.8


def test_an_approximate_index_of_a_few_documents_has_one_cell_and_gives_the_same_cosines(tmp_path: Path) -> None:
    rows = [{"id": "a", "text": "red fox"}, {"id": "b", "text": "red hen"}, {"id": "c", "text": "blue sky"}]
    for approximate in (False, True):
        (tmp_path / str(approximate)).mkdir()
        index_of(tmp_path / str(approximate), rows, approximate=approximate)
    every, near = (SearchIndex(tmp_path / str(each) / "index", SearchKind.DENSE) for each in (False, True))

    assert dict(found(near, "red fox")) == pytest.approx(dict(found(every, "red fox")))
    assert [name for name, _ in found(near, "red fox")] == ["a", "b"]
    assert found(near, "green") == []


def test_an_approximate_index_without_its_vectors_is_damaged(tmp_path: Path) -> None:
    index_of(tmp_path, [{"text": "red fox"}], approximate=True)
    (tmp_path / "index" / "vectors.faiss").unlink()

    with pytest.raises(ConfigError, match="is damaged"):
        SearchIndex(tmp_path / "index")


def made(documents: Path, folder: Path) -> str:
    """The message with which an index is refused."""
    with pytest.raises(ConfigError) as refused:
        write_index(documents, folder, lambda _: None)
    return str(refused.value)


@pytest.mark.parametrize(("kind", "approximate"), [*((each, False) for each in KINDS), (SearchKind.HYBRID, True)])
def test_an_index_of_any_kind_is_replaced_where_a_link_leads(
    tmp_path: Path, kind: SearchKind, approximate: bool
) -> None:
    index_of(tmp_path, [{"text": "red fox"}, {"text": "blue owl"}], kind, approximate=approximate)
    (tmp_path / "link").symlink_to("index")
    (tmp_path / "index.unfinished").mkdir()
    (tmp_path / "index.unfinished" / "documents.jsonl").touch()

    write_index(tmp_path / "documents.jsonl", tmp_path / "link", lambda _: None)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["documents.jsonl", "index", "link"]
    assert (tmp_path / "link").is_symlink()
    assert found(SearchIndex(tmp_path / "link"), "owl")[0][0] == "2"


def test_an_index_deletes_neither_its_documents_nor_a_file_of_the_user(tmp_path: Path) -> None:
    index_of(tmp_path, [{"text": "red fox"}])
    folder, unfinished = tmp_path / "index", tmp_path / "index.unfinished"
    mine = folder / "bm25" / "notes.txt"
    mine.touch()
    unfinished.mkdir()

    assert made(tmp_path / "documents.jsonl", folder) == (
        f"{folder} would be deleted for the new index, but holds bm25/notes.txt, which is no part of an index: move it "
        "to another folder, or give another --out"
    )
    mine.unlink()
    for its in (folder, unfinished):
        (its / "documents.jsonl").write_text('{"text": "red fox"}\n')
        assert made(its / "documents.jsonl", folder) == (
            f"{its / 'documents.jsonl'} lies in {its}, which is deleted for the new index: give another --out"
        )
    (unfinished / "thesis.tex").touch()
    assert "holds thesis.tex, which is no part of an index" in made(tmp_path / "documents.jsonl", folder)
    assert (unfinished / "thesis.tex").exists()
