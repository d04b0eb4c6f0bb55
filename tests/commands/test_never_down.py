"""Broken rows, options and documents: each command goes on without them, counts them, and names the first."""

import json
import random
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from click.testing import Result
from typer.testing import CliRunner

from tests.support.factories import make_turn
from verl_pivot.cli import app
from verl_pivot.data.files import read_rows
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.launch_checks.training_files import SplitSize, check_verifiers
from verl_pivot.tools.search_writing import write_index
from verl_pivot.types import JsonObject, Message, Role
from verl_pivot.verifiers.registry import get_verifier
from verl_pivot.verifiers.scoring import score_message

QUESTION: JsonObject = {"role": "user", "content": "Who?"}
WAVERING = """
import itertools
from verl_pivot.types import Verdict
from verl_pivot.verifiers.registry import register

numbers = itertools.count()

@register("wavering_in_never_down")
async def wavering(action, turn):
    return Verdict.accept() if next(numbers) % 2 else Verdict.refuse("odd")
"""


def row(number: int, answer: str = "Ann", **columns: object) -> JsonObject:
    return {"id": f"t{number}", "messages": [QUESTION, {"role": "assistant", "content": answer}], **columns}  # type: ignore[dict-item]


def write(path: Path, *rows: JsonObject) -> Path:
    path.write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    return path


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "250"})


def test_select_goes_on_without_a_row_whose_verifier_does_not_take_its_options(tmp_path: Path) -> None:
    trajectories = tmp_path / "t.jsonl"
    assert run("import", write(tmp_path / "in.jsonl", row(1), row(2)), "--out", trajectories).exit_code == 0
    lines = [json.loads(line) for line in trajectories.read_text().splitlines()]
    lines[0]["verifier_options"] = {"mode": "exact"}
    write(trajectories, *lines)

    result = run(
        "select",
        trajectories,
        "--keep",
        "all",
        "--max-prompt-tokens",
        0,
        "--out",
        tmp_path / "p.parquet",
        "--validation-share",
        0,
        "--workers",
        1,
    )

    assert result.exit_code == 0, result.output
    assert "expert: bad_options" in result.output
    assert "turn t1:0: verifier tool_call.mode: Input should be" in result.output
    assert pyarrow.parquet.read_table(tmp_path / "p.parquet")["trajectory_id"].to_pylist() == ["t2"]


async def test_options_that_a_verifier_does_not_take_are_undecided_and_an_unknown_verifier_is_an_error() -> None:
    action = Message(role=Role.ASSISTANT, content="Ann")
    bad = [
        ("qa", {"metric": 5}),
        ("code", {"asserts": ["assert compare(f(1), 4)"]}),
        ("sql", {}),
        ("first_decided", {"verifiers": [{"name": "qa", "options": {"what": 1}}]}),
    ]

    for name, options in bad:
        verdict = await score_message(action, make_turn(expert=action, verifier=name, verifier_options=options))
        assert (verdict.score, verdict.reason) == (None, "bad_options")
        assert verdict.detail.startswith("turn ")
    with pytest.raises(ConfigError, match="unknown verifier"):
        await score_message(action, make_turn(expert=action, verifier="nobody"))


def test_a_launch_begins_unless_no_row_has_options_that_its_verifier_takes() -> None:
    good, bad = ("qa", "{}"), ("qa", '{"metric": 5}')
    some, all_bad = (
        SplitSize(
            num_rows=2,
            num_pivots=2,
            columns=frozenset(),
            longest_prompt=None,
            verifiers=frozenset(each),
            has_variances=False,
            samplings=frozenset(),
            agent_names=frozenset(),
        )
        for each in ({good, bad}, {bad})
    )

    check_verifiers(some, "data.train_files", "p.parquet")
    with pytest.raises(ConfigError, match=r"rows of p.parquet name the verifier 'qa': verifier qa.metric"):
        check_verifiers(all_bad, "data.train_files", "p.parquet")


def parquet(path: Path, *, row_group_size: int = 4) -> Path:
    rows = [json.dumps(row(number)["messages"]) for number in range(12)]
    table = pyarrow.table({"id": [f"t{number}" for number in range(12)], "messages": rows})
    pyarrow.parquet.write_table(table, path, row_group_size=row_group_size, compression="none", use_dictionary=False)
    return path


def test_a_text_that_is_no_utf_8_costs_its_row_of_a_parquet_file_alone(tmp_path: Path) -> None:
    path = parquet(tmp_path / "in.parquet")
    path.write_bytes(path.read_bytes().replace(b"t5", b"\xff5"))

    result = run("import", path, "--out", tmp_path / "t.jsonl", "--workers", 1)

    assert result.exit_code == 0, result.output
    assert "rejected: unreadable_row" in result.output
    assert "in.parquet, row 6" in result.output
    assert len((tmp_path / "t.jsonl").read_text().splitlines()) == 11


def test_a_damaged_part_of_a_parquet_file_costs_its_rows_alone(tmp_path: Path) -> None:
    path = parquet(tmp_path / "in.parquet")
    group = pyarrow.parquet.ParquetFile(path).metadata.row_group(1)
    start = group.column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + 20] = b"\xff" * 20
    path.write_bytes(content)

    rows = list(read_rows(path))

    assert [each.place.number for each in rows] == list(range(1, 13))
    assert [each.place.number for each in rows if each.problem] == [5, 6, 7, 8]


@pytest.mark.parametrize("seed", range(20))
def test_a_parquet_file_with_other_bytes_ends_in_rows_or_in_one_sentence(tmp_path: Path, seed: int) -> None:
    path, generator = parquet(tmp_path / "in.parquet"), random.Random(seed)
    content = bytearray(path.read_bytes())
    for _ in range(generator.randint(1, 8)):
        content[generator.randrange(4, len(content))] = generator.randrange(256)
    path.write_bytes(content)

    result = run("import", path, "--out", tmp_path / "t.jsonl", "--workers", 1)

    assert result.exit_code in (0, 1)
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert "Traceback" not in result.output


DOCUMENTS = [
    json.dumps({"text": "The Eiffel Tower stands in Paris"}),
    "",
    "   ",
    "{broken",
    json.dumps({"title": "no text"}),
    json.dumps(["The Louvre"]),
    json.dumps({"text": 5}),
    json.dumps({"contents": "Rome\nThe Colosseum stands in Rome"}),
    '{"text": "A line\u2028of the Danube in Vienna"}',
    json.dumps({"text": "the of and"}),
    "[" * 5000,
    '{"text": "half a pair \\ud800"}',
]


def documents(folder: Path, lines: list[str]) -> Path:
    path = folder / "documents.jsonl"
    path.write_bytes("\n".join(lines).encode() + b"\n\xff\xfe\n")
    return path


@pytest.mark.parametrize(("query", "score"), [("Danube Vienna", 1.0), ("Colosseum Rome", 0.0), ("the of", 0.0)])
async def test_lines_that_hold_no_document_are_left_out_of_a_corpus(tmp_path: Path, query: str, score: float) -> None:
    def search(words: str) -> Message:
        return Message(role=Role.ASSISTANT, content=f"<search>{words}</search>")

    corpus = str(documents(tmp_path, DOCUMENTS))
    verifier = get_verifier("search_query", {"mode": "documents", "corpus": corpus, "num_documents": 1})

    verdict = await verifier(search(query), make_turn(expert=search("where does the Danube flow")))

    assert verdict.score == score, verdict


@pytest.mark.parametrize("lines", [[], [""], ["{broken"], [json.dumps({"text": "the of and"})]])
async def test_a_corpus_without_a_document_makes_its_rows_undecided(tmp_path: Path, lines: list[str]) -> None:
    action = Message(role=Role.ASSISTANT, content="<search>Danube</search>")
    corpus = documents(tmp_path, lines)
    verifier = get_verifier("search_query", {"mode": "documents", "corpus": str(corpus)})

    assert (await verifier(action, make_turn(expert=action))).reason == "broken_gold"
    corpus.unlink()
    assert (await verifier(action, make_turn(expert=action))).score is None


def test_index_leaves_rows_out_that_hold_no_document_and_names_the_first(tmp_path: Path) -> None:
    result = run("index", documents(tmp_path, DOCUMENTS[:-1]), "--out", tmp_path / "index")

    assert result.exit_code == 0, result.output
    assert ": 4 documents." in result.output
    assert "documents.jsonl, line 4" in result.output
    with pytest.raises(DataError, match="holds no document with a word"):
        write_index(documents(tmp_path, ["{broken"]), tmp_path / "other", lambda _: None)


def test_import_check_says_which_experts_their_verifiers_cannot_judge(tmp_path: Path) -> None:
    (tmp_path / "wavering.py").write_text(WAVERING)
    rows = [
        row(1, "<answer>Ann</answer>", verifier="qa", verifier_options={"answers": ["Ann"]}),
        row(2, "<answer>Bob</answer>", verifier="qa", verifier_options={"answers": ["Ann"]}),
        row(3, "Bob", verifier="qa"),
        row(4, "Ann", verifier="wavering_in_never_down"),
    ]

    result = run(
        "import",
        write(tmp_path / "in.jsonl", *rows),
        "--out",
        tmp_path / "t.jsonl",
        "--check",
        "--workers",
        1,
        "--verifier-module",
        tmp_path / "wavering.py",
    )

    assert result.exit_code == 0, result.output
    assert "4 expert actions, each judged twice by its verifier" in result.output
    assert "refused: wrong_value" in result.output
    assert "turn t2:0" in result.output
    assert "undecided: broken_gold" in result.output
    assert "undecided: gold_wavers" in result.output
    assert "turn t4:0: 0 (odd), then 1" in result.output
