"""`verl-pivot synthesize magnet`: rows from recordings by a program that plays all roles, and refused options."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.linked_tools import refund_of
from tests.support.paths import ROOT, SHARED_DATA
from verl_pivot.cli import app
from verl_pivot.data.json_values import encode_json
from verl_pivot.data.tool_schemas import name_of
from verl_pivot.data.trajectories import parse_trajectory, trajectory_as_dict
from verl_pivot.data.turns import turns
from verl_pivot.synthesis.argument_sources import unsourced_values
from verl_pivot.synthesis.data_flow import mined_edges
from verl_pivot.types import Trajectory
from verl_pivot.verifiers.scoring import score_message

CLERK = f"{ROOT / 'tests' / 'support' / 'path_clerk.py'}:answer"
AIRLINE = SHARED_DATA / "tau_airline"


def recordings(folder: Path) -> Path:
    path = folder / "recorded.jsonl"
    rows = [refund_of(f"cus_{number}", f"ord_{number}", id=f"shop-{number}") for number in range(20, 23)]
    path.write_text("".join(encode_json(trajectory_as_dict(row)) + "\n" for row in rows))
    return path


def run(out: Path, *options: str) -> Any:
    return CliRunner().invoke(app, ["synthesize", "magnet", "--out", str(out), *options])


def magnet(trajectories: Path, out: Path, num: int, *options: str) -> dict[str, Any]:
    """The report of a run whose drafts are rejected at the first mistake."""
    given = ["--trajectories", str(trajectories), "--program", CLERK, "--set", f"numbers.num={num}"]
    result = run(out, *given, "--set", "magnet.attempts=1", *options)
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return report


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def check_rows(out: Path, edges: set[tuple[str, str, str, str]]) -> Counter[str]:
    """Check every row that was kept against the verifier and the mined edges; return how much was checked."""
    checked: Counter[str] = Counter()
    for row in map(parse_trajectory, lines(out / "trajectories.jsonl")):
        for turn in turns(row):
            assert (await score_message(turn.expert, turn)).score == 1.0
            for call in turn.expert.tool_calls:
                checked["calls"] += 1
                tool = next(tool for tool in row.tools if name_of(tool) == call.name)
                assert unsourced_values(call, turn.state, tool) == []
        checked["links"] += check_path(row, edges)
    for pair in lines(out / "pairs.jsonl"):
        chosen, rejected = parse_trajectory(pair["chosen"]), parse_trajectory(pair["rejected"])
        (turn,) = turns(chosen)
        assert (await score_message(rejected.messages[-1], turn)).score == 0.0
        checked["pairs"] += 1
    return checked


def check_path(row: Trajectory, edges: set[tuple[str, str, str, str]]) -> int:
    """Check that a conversation makes its path's calls and that mined edges link them; return the number of links."""
    provenance: Any = row.metadata["verl_pivot"]
    path = provenance["synthesis"]["values"]["path"]
    planned = [call for turn in path["turns"] for call in turn["calls"]]
    links = [
        (planned[link["call"]]["tool"], link["result"], call["tool"], link["argument"])
        for call in planned
        for link in call["links"]
    ]
    assert set(links) <= edges
    made = [call.name for message in row.messages for call in message.tool_calls]
    assert made == [call["tool"] for call in planned][: len(made)]
    assert row.expert_turns == "last" or len(made) == len(planned)
    return len(links)


def test_recordings_become_conversations_and_pairs_and_every_mistake_has_a_reason(tmp_path: Path) -> None:
    source = recordings(tmp_path)
    report = magnet(source, tmp_path / "out", 40)
    kept, rejected = lines(tmp_path / "out" / "trajectories.jsonl"), lines(tmp_path / "out" / "rejected.jsonl")
    edges = {edge[:4] for edge in mined_edges([refund_of(f"c_{n}", f"o_{n}") for n in range(100, 102)])}

    checked = asyncio.run(check_rows(tmp_path / "out", edges))

    assert len(kept) + len(rejected) == report["num_drafts"]
    whole = [row for row in kept if row["expert_turns"] == "all"]
    assert len(whole) + sum(row["step"] == "magnet" for row in rejected) == 40
    assert checked["pairs"] == report["num_pairs"] == len(kept) - len(whole)
    assert min(checked["calls"], checked["links"], checked["pairs"], len(rejected)) > 0
    assert all(row["reason"] and row["detail"] for row in rejected)


def test_the_same_answers_give_the_same_bytes_at_any_concurrency(tmp_path: Path) -> None:
    source = recordings(tmp_path)
    for number, name in ((1, "one"), (8, "eight")):
        magnet(source, tmp_path / name, 12, "--concurrency", str(number))

    for name in ("trajectories.jsonl", "pairs.jsonl", "rejected.jsonl"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "eight" / name).read_bytes()


@pytest.mark.skipif(not AIRLINE.is_dir(), reason="tau-bench's trajectories are not at ../shared/data/tau_airline")
def test_nothing_is_kept_of_the_airline_that_its_recordings_do_not_link_or_tool_call_refuses(tmp_path: Path) -> None:
    source = tmp_path / "airline.jsonl"
    given = ["import", str(AIRLINE / "gpt-4o-airline.jsonl"), "--tools", str(AIRLINE / "airline_tools.json")]
    imported = CliRunner().invoke(app, [*given, "--outcome", "all", "--out", str(source)])
    assert imported.exit_code == 0, imported.output
    edges = {edge[:4] for edge in mined_edges(map(parse_trajectory, lines(source)))}

    report = magnet(source, tmp_path / "out", 60)
    checked = asyncio.run(check_rows(tmp_path / "out", edges))

    assert report["rejected"]["magnet"]["other_tool"] > 0
    assert min(checked["calls"], checked["links"], checked["pairs"]) > 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "step tool_path needs tools: give --trajectories FILE"),
        (["--set", "tool_path.lenght=3"], "unknown key; known: insert, length, max_neighbours, merge, min_calls"),
        (["--set", "magnet.results=tools"], "give --tools, or write results: writer"),
        (["--set", "tool_path.min_calls=4"], "finds no value that passes between two of 3 tools"),
    ],
)
def test_a_careless_users_mistake_is_one_sentence(tmp_path: Path, options: list[str], message: str) -> None:
    given = ["--trajectories", str(recordings(tmp_path))] if options else []

    result = run(tmp_path / "out", *given, "--program", CLERK, *options)

    assert result.exit_code == 1
    assert message in " ".join(result.output.split())
