"""`verl-pivot process`: dumps of rollouts become labelled turns, which measure and train judges."""

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from click.testing import Result
from typer.main import get_command
from typer.testing import CliRunner

from tests.support.fake_judge import grading, judging, turn_shown
from tests.support.rollout_records import make_record
from tests.support.scripted_engine import call
from verl_pivot.cli import app
from verl_pivot.commands.asked_judge import EndpointOptions, QuestionOptions
from verl_pivot.data.prompts import prompt_id
from verl_pivot.data.rollout_dumps import DumpedOutcome, DumpedTurn, encode_line, encode_transcript
from verl_pivot.data.rollout_records import StopReason
from verl_pivot.types import JsonObject

PROMPT: list[JsonObject] = [{"role": "user", "content": "Who painted it?"}]


def dumped(uid: str, score: float | None, *texts: str, prompt: list[JsonObject] = PROMPT, **changes: Any) -> bytes:
    """Line of a dump with a turn for each text; every turn but the last has an observation."""
    turns = [
        DumpedTurn(text=text, num_tokens=5, ended=True, observations=("found",) if text != texts[-1] else ())
        for text in texts
    ]
    record = make_record(**{"prompt_id": prompt_id(prompt), "turn_tokens": (5,) * len(texts), **changes})
    outcome = DumpedOutcome(uid=uid, step=3, score=score, is_kept=True)
    return encode_line(outcome, encode_transcript({}, record, turns))


def written(folder: Path, *lines: bytes) -> list[Path]:
    """Write a dump of these lines and the row of their prompt; returns the command's arguments for them."""
    (folder / "3.jsonl").write_bytes(b"".join(lines))
    (folder / "qa.jsonl").write_text(json.dumps({"prompt": PROMPT}) + "\n")
    return [folder / "3.jsonl", Path("--rows"), folder / "qa.jsonl", Path("--out"), folder / "turns.parquet"]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(folder / "turns.parquet").to_pylist()
    return rows


def cli(*arguments: str | Path) -> Result:
    """Run a command in this process, which is faster."""
    return CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "200"})


async def asked(*arguments: str | Path) -> str:
    """Run a command that asks a judge and must succeed; returns what the command prints."""
    done = await asyncio.to_thread(cli, *arguments)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def label(folder: Path, url: str, *arguments: str) -> list[str | Path]:
    given = written(folder, dumped("a_0_0", 1.0, "grade 8", "grade 2", "Ann."), dumped("a_1_0", 0.0, "grade 5", "Eve."))
    return ["process", "label", *given, "--base-url", url, "--model", "strong", *arguments]


async def test_each_judged_turn_has_a_row_with_the_median_of_the_valid_answers(tmp_path: Path) -> None:
    """Two of five answers about a turn are invalid; the others give grade 8, for example, 8, 8 and 10 of 10."""

    def changing(outside: str, inside: list[str]) -> Any:
        seed = server.requests[-1]["seed"]
        answer: Mapping[str, Any] = grading(outside, inside)
        if seed == 12:
            answer["principles"][0]["score"] = 99
        if seed == 14:
            return "no"
        if seed == 13:
            for each in answer["principles"]:
                each["score"] = 10
        return answer

    async with judging(changing) as server:
        shown = await asked(*label(tmp_path, server.url, "--seed", "10", "--concurrency", "1"))

    rows = rows_of(tmp_path)
    assert [(row["id"], row["text"], row["label"]) for row in rows] == [
        ("3:a_0_0:0", "grade 8", 0.8),
        ("3:a_0_0:1", "grade 2", 0.2),
        ("3:a_1_0:0", "grade 5", 0.5),
    ]
    assert [(row["num_samples"], row["num_valid"]) for row in rows] == [(5, 3)] * 3
    assert [round(row["spread"], 6) for row in rows] == [0.094281, 0.377124, 0.235702]
    assert [row["earlier"] for row in rows] == [[], [{"text": "grade 8", "observation": "found"}], []]
    assert {row["task"] for row in rows} == {"Who painted it?"}
    assert sorted({request["seed"] for request in server.requests}) == [10, 11, 12, 13, 14]
    assert {request["temperature"] for request in server.requests} == {0.7}
    assert re.search(r"invalid +│ +6 ", shown)


async def test_the_same_command_again_asks_nothing_again(tmp_path: Path) -> None:
    async with judging(grading) as server:
        command = label(tmp_path, server.url, "--samples", "2")
        await asked(*command)
        first = rows_of(tmp_path)
        shown = await asked(*command)

    assert len(server.requests) == 6
    assert rows_of(tmp_path) == first
    assert "0 prompt + 0 answer tokens, 6 cached answers" in shown


async def test_a_judge_that_is_down_is_an_error_that_names_the_way_on_and_writes_nothing(tmp_path: Path) -> None:
    async with judging(grading) as server:
        server.failures = [503] * 100
        done = await asyncio.to_thread(cli, *label(tmp_path, server.url, "--max-retries", "0"))

    assert done.exit_code == 1
    assert "error: judge strong: " in done.stderr
    assert "run the same command again to continue with the answers in" in done.stderr
    assert not (tmp_path / "turns.parquet").exists()


async def test_a_judge_that_refuses_all_is_told_in_the_words_of_the_options(tmp_path: Path) -> None:
    async with judging(grading) as server:
        server.failures = [400] * 100
        done = await asyncio.to_thread(cli, *label(tmp_path, server.url))

    assert done.exit_code == 1
    assert "the judge refuses every question" in done.stderr
    assert "check that --base-url and --model name the judge" in done.stderr


def test_outcomes_label_a_turn_by_all_rollouts_that_hold_it(tmp_path: Path) -> None:
    given = written(
        tmp_path,
        dumped("a_0_0", 1.0, "look it up", "Ann."),
        dumped("a_1_0", 0.0, "look it up", "Eve."),
        dumped("a_2_0", 0.0, "guess", "Eve."),
    )

    done = cli("process", "label", *given, "--by", "outcomes")

    assert done.exit_code == 0, done.stderr
    rows = rows_of(tmp_path)
    assert [(row["label"], row["spread"], row["num_samples"]) for row in rows] == [
        (0.5, 0.5, 2),
        (0.5, 0.5, 2),
        (0.0, 0.0, 1),
    ]


def test_what_cannot_be_labelled_is_counted_by_its_reason(tmp_path: Path) -> None:
    other: list[JsonObject] = [{"role": "user", "content": "Another?"}]
    given = written(
        tmp_path,
        dumped("a_0_0", 1.0, "look it up", "Ann."),
        dumped("a_1_0", None, "look it up", "Ann."),
        dumped("a_2_0", 2.0, "look it up", "Ann."),
        dumped("a_3_0", 1.0, "Ann."),
        dumped("a_4_0", 1.0, "look it up", "Ann.", prompt=other),
        dumped("a_5_0", 1.0, " ", "Ann."),
        dumped("a_6_0", 0.0, "look it up", "Ann.", stop_reason=StopReason.TOOL_FAILURE),
    )
    (tmp_path / "copy.jsonl").write_bytes((tmp_path / "3.jsonl").read_bytes())

    done = cli("process", "label", tmp_path / "copy.jsonl", *given, "--by", "outcomes")

    assert done.exit_code == 0, done.stderr
    for reason in (
        "undecided outcome",
        "outcome outside of [0, 1]",
        "rollout of one turn, since the last turn is not judged",
        "prompt that is not in --rows",
        "turn without text, which scores 0 without a question",
        "masked: the system failed",
        "rollout that was read before, such as from a copy of a dump",
    ):
        assert reason in done.stdout
    assert len(rows_of(tmp_path)) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--base-url is missing"),
        (("--base-url", "http://localhost:1"), "--model is missing"),
        (("--by", "outcomes", "--model", "x"), "--by outcomes asks no judge: leave --model out"),
        (("--by", "outcomes", "--samples", "5", "--seed", "1"), "asks no judge: leave --samples, --seed out"),
        (("--base-url", "http://localhost:1", "--model", "x", "--api-key-variable", "NO_KEY"), "no such variable"),
        (("--by", "outcomes", "--principles", "nowhere.yaml"), "--principles: nowhere.yaml cannot be read"),
    ],
)
def test_a_wrong_option_is_one_sentence(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = cli("process", "label", *written(tmp_path, dumped("a_0_0", 1.0, "look", "Ann.")), *arguments)

    assert done.exit_code == 1
    assert message in done.stderr


async def test_a_question_that_may_be_too_long_needs_a_tokenizer(tmp_path: Path) -> None:
    given = written(tmp_path, dumped("a_0_0", 1.0, "x" * 300, "Ann."))
    arguments = ("--base-url", "http://localhost:1", "--model", "x", "--max-question-tokens", "256")

    done = await asyncio.to_thread(cli, "process", "label", *given, *arguments)

    assert done.exit_code == 1
    assert "name the judge's tokenizer with --tokenizer" in done.stderr


async def test_a_bench_says_how_a_judge_agrees_with_labels_and_what_it_costs(tmp_path: Path) -> None:
    """The other judge gives grade 8 four of ten points, grade 2 six of ten, and grade 5 no valid answer."""

    def other(outside: str, inside: list[str]) -> Any:
        turn = turn_shown(outside, inside)
        if "grade 5" in turn:
            return "no"
        answer = grading(outside, inside)
        for each in answer["principles"]:
            each["score"] = 4 if "grade 8" in turn else 6
        return answer

    async with judging(grading) as server:
        await asked(*label(tmp_path, server.url, "--samples", "1"))
    async with judging(other) as server:
        bench = ("process", "bench", tmp_path / "turns.parquet", "--base-url", server.url, "--model", "mine")
        report = json.loads(await asked(*bench, "--json"))
        shown = await asked(*bench)

    assert len(server.requests) == 6
    assert (report["num_turns"], report["num_valid"], round(report["valid_rate"], 3)) == (3, 2, 0.667)
    assert report["pairs"] == {"num_pairs": 1, "num_right": 0, "num_tied": 0, "accuracy": 0.0}
    assert report["rank_correlation"] == pytest.approx(-1.0)
    assert report["mean_absolute_error"] == pytest.approx(0.4)
    assert report["calibration_error"] == pytest.approx(0.4)
    assert [each["num_turns"] for each in report["calibration"]] == [1, 1]
    assert report["completion_tokens_per_turn"] == 10.0
    assert report["prompt_tokens_per_turn"] == 100.0
    assert list(report["invalid"].values()) == [1]
    assert 0.0 < report["seconds_per_turn"] < 5.0
    assert "valid answers" in shown
    assert "Calibration" in shown


async def test_a_row_without_a_label_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text(
        '{"task": "Who?", "text": "look", "label": 1}\n{"task": "Who?", "text": "x"}\n'
    )

    done = await asyncio.to_thread(
        cli, "process", "bench", tmp_path / "mine.jsonl", "--base-url", "http://localhost:1", "--model", "x"
    )

    assert done.exit_code == 1
    assert "mine.jsonl, line 2 is not a labelled turn" in done.stderr
    assert "`label`" in done.stderr


@pytest.mark.parametrize("by", ["judge", "outcomes"])
async def test_labelled_turns_are_imported_as_rows_for_training_a_judge(by: str, tmp_path: Path) -> None:
    """The judge quotes the turn's call, whose tag must not turn the judge's answer into a call."""
    given = written(tmp_path, dumped("a_0_0", 1.0, f"{call('add', a=2)} grade 8", f"{call('add')} grade 7", "Ann."))
    async with judging(grading) as server:
        judge = ("--base-url", server.url, "--model", "strong") if by == "judge" else ()
        await asked("process", "label", *given, "--by", by, *judge)
    imported = tmp_path / "trajectories.jsonl"

    shown = await asked("import", tmp_path / "turns.parquet", "--allow-no-tools", "--check", "--out", imported)

    rows = [json.loads(line) for line in imported.read_text().splitlines()]
    assert [row["verifier"] for row in rows] == ["process_score"] * 2, shown
    assert [row["verifier_options"]["label"] for row in rows] == ([0.8, 0.7] if by == "judge" else [1.0, 1.0])
    assert re.search(r"accepted +│ +2 ", shown)


def test_both_commands_take_the_same_options_of_a_judge_with_the_same_defaults() -> None:
    group = get_command(app).commands["process"]  # type: ignore[attr-defined]
    shared = {each.name for kind in (EndpointOptions, QuestionOptions) for each in fields(kind)}

    (labelling, benching) = (
        {each.name: (each.opts, each.default, each.help) for each in group.commands[name].params if each.name in shared}
        for name in ("label", "bench")
    )

    assert labelling == benching
    assert labelling.keys() == shared


async def test_pairs_of_turns_are_imported_beside_the_turns_and_stay_in_one_part_of_the_data(tmp_path: Path) -> None:
    """Turns of grades 8, 2 and 5 of one task make three pairs, each in both orders."""
    async with judging(grading) as server:
        shown = await asked(*label(tmp_path, server.url, "--pairs", "9", "--samples", "1"))
    files = (tmp_path / "turns.parquet", tmp_path / "turns.pairs.parquet")

    await asked("import", *files, "--allow-no-tools", "--check", "--out", tmp_path / "all.jsonl")

    assert "3 pairs, each in both orders" in shown
    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert len(rows) == 3 + 6
    assert len({row["metadata"]["verl_pivot"]["split_by"] for row in rows}) == 1


def first_but_for_grade_8(outside: str, inside: list[str]) -> JsonObject:
    """Prefer grade 8, else the turn that stands first; give no valid answer where grade 5 stands first."""
    turns = [text for text in inside if text.startswith("grade")]
    first, second = turns
    scores = (1, 0) if second != "grade 8" else (0, 1)
    names = re.findall(r"^- (\w+):", outside, re.MULTILINE)

    def graded(text: str, score: int) -> JsonObject:
        quotation = "nowhere" if first == "grade 5" else text
        return {"principles": [{"name": n, "quotation": quotation, "score": score, "maximum": 1} for n in names]}

    return {"first": graded(first, scores[0]), "second": graded(second, scores[1])}


async def test_a_bench_of_pairs_asks_in_both_orders_and_says_what_the_place_of_a_turn_decides(tmp_path: Path) -> None:
    """Three rollouts have a turn each of grade 8, 2 or 5. The judge is right on 8 and 2 in both orders. Where 5 stands
    first its answer is invalid; else it is right on 8 and 5, and wrong on 2 and 5, where it prefers the first, 2."""
    rollouts = [dumped(f"a_{number}_0", 1.0, f"grade {grade}", "Ann.") for number, grade in enumerate((8, 2, 5))]
    given = written(tmp_path, *rollouts)
    async with judging(grading) as server:
        judge = ("--base-url", server.url, "--model", "strong", "--samples", "1", "--pairs", "9")
        await asked("process", "label", *given, *judge)
    bench = ("process", "bench", tmp_path / "turns.pairs.parquet", "--pairs", "--model", "mine", "--base-url")
    async with judging(first_but_for_grade_8) as server:
        report = json.loads(await asked(*bench, server.url, "--json"))
        shown = await asked(*bench, server.url, "--limit", "1")

    assert len(server.requests) == 6 + 2
    schema = server.requests[0]["response_format"]["json_schema"]["schema"]
    assert sorted(schema["properties"]) == ["first", "second"]
    assert (report["num_pairs"], report["num_valid"], list(report["invalid"].values())) == (3, 4, [2])
    assert (report["num_right"], report["num_tied"], report["num_first"]) == (3, 0, 3)
    assert (report["num_both_valid"], report["num_both_right"]) == (1, 1)
    assert (report["accuracy"], report["accuracy_in_both_orders"], report["share_first"]) == (0.75, 1.0, 0.75)
    assert "on 1 pairs of turns, each in both orders" in shown


@pytest.mark.parametrize(
    ("file", "arguments", "message"),
    [
        ("turns.pairs.parquet", ("--pairs", "--form", "released"), "--form does nothing with --pairs"),
        ("turns.parquet", ("--pairs",), "turns.parquet, row 1 is not a pair of turns"),
        ("turns.pairs.parquet", (), "pairs of turns need --pairs"),
        ("half.parquet", ("--pairs",), "must be in two rows, once in each order"),
    ],
)
def test_a_file_that_a_bench_cannot_ask_about_is_named(
    file: str, arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    given = written(tmp_path, dumped("a_0_0", 1.0, "look it up", "Ann."), dumped("a_1_0", 0.0, "guess", "Eve."))
    assert cli("process", "label", *given, "--by", "outcomes", "--pairs", "2").exit_code == 0
    pairs = pyarrow.parquet.read_table(tmp_path / "turns.pairs.parquet")
    pyarrow.parquet.write_table(pairs.slice(0, 1), tmp_path / "half.parquet")

    done = cli("process", "bench", tmp_path / file, *arguments, "--base-url", "http://localhost:1", "--model", "x")

    assert done.exit_code == 1
    assert message in done.stderr


def test_pairs_need_labels_that_differ_by_more_than_the_tolerance(tmp_path: Path) -> None:
    given = written(tmp_path, dumped("a_0_0", 1.0, "look it up", "Ann."), dumped("a_1_0", 0.0, "guess", "Eve."))

    done = cli("process", "label", *given, "--by", "outcomes", "--pairs", "2", "--seed", "1")
    none = written(tmp_path, dumped("a_0_0", 1.0, "look it up", "Ann."), dumped("a_1_0", 1.0, "guess", "Eve."))
    refused = cli("process", "label", *none, "--by", "outcomes", "--pairs", "2")

    assert done.exit_code == 0, done.stderr
    assert refused.exit_code == 1
    assert "no two turns of a task have labels that differ by more than --tolerance 0.1" in refused.stderr


async def test_half_characters_of_a_policy_are_written_as_a_judge_is_shown_them(tmp_path: Path) -> None:
    given = written(tmp_path, dumped("a_0_0", 1.0, "half \ud83d grade 8", "Ann."))

    done = cli("process", "label", *given, "--by", "outcomes")

    assert done.exit_code == 0, done.stderr
    assert [row["text"] for row in rows_of(tmp_path)] == ["half ? grade 8"]
