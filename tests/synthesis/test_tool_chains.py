"""ASTRA's chains over the tool graph: legal, at most as long as drawn, and put into words by each of three writers."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from typer.testing import CliRunner

from tests.synthesis.test_magnet_recipe import CLERK, lines, recordings
from tests.synthesis.test_tool_paths import CHAIN, FIND, LIST, refund
from verl_pivot.cli import app
from verl_pivot.synthesis.tool_chains import ToolChainOptions
from verl_pivot.synthesis.tool_graph import ToolGraph
from verl_pivot.synthesis.tool_paths import PathTurn, ToolPath, draw_chain, path_problem

SILENT = "tests.support.synthesis_steps:number"


def test_a_chain_is_one_request_and_each_call_takes_a_value_from_the_one_before() -> None:
    chains = [draw_chain(CHAIN, Random(seed), 5) for seed in range(20)]

    assert ToolPath(turns=(PathTurn(calls=(FIND, LIST, refund())),)) in chains
    assert draw_chain(ToolGraph([], []), Random(0), 5) is None


@given(seed=st.integers(0, 2**31), length=st.integers(2, 5))
def test_every_chain_is_legal_and_not_longer_than_drawn(seed: int, length: int) -> None:
    chain = draw_chain(CHAIN, Random(seed), length)

    assert chain is not None
    assert path_problem(chain, CHAIN) is None
    assert 2 <= len(chain.calls) <= length
    assert [call.links[0].call for call in chain.calls[1:]] == [*range(len(chain.calls) - 1)]
    assert len({call.tool for call in chain.calls}) == len(chain.calls)


def run(folder: Path, *options: str) -> Any:
    (folder / "writers.yaml").write_text(f"writer: {{program: '{CLERK}'}}\nwriter_3: {{program: '{SILENT}'}}\n")
    given = ["--trajectories", str(recordings(folder)), "--writers", str(folder / "writers.yaml")]
    return CliRunner().invoke(app, ["synthesize", "chains", *given, "--out", str(folder / "out"), *options])


def test_three_writers_translate_each_chain_and_one_that_writes_nothing_is_rejected_alone(tmp_path: Path) -> None:
    result = run(tmp_path, "--set", "numbers.num=6", "--set", "magnet.attempts=1")

    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (
        report["num_drafts"]
        == 18
        == report["num_kept"] + sum(sum(each.values()) for each in report["rejected"].values())
    )
    silent = [row for row in lines(tmp_path / "out" / "rejected.jsonl") if row["id"].endswith("/2")]
    assert [(row["step"], row["reason"]) for row in silent] == [("magnet", "answer_of_other_form")] * 6
    values = [
        row["metadata"]["verl_pivot"]["synthesis"]["values"] for row in lines(tmp_path / "out" / "trajectories.jsonl")
    ]
    assert {each["user_role"] for each in values} <= {"writer_1", "writer_2"}
    assert all(len(each["path"]["turns"]) == 1 for each in values)
    assert len(values) == report["num_kept"] > 0


def test_a_chain_shorter_than_asked_for_is_rejected(tmp_path: Path) -> None:
    result = run(tmp_path, "--set", "numbers.num=4", "--set", "tool_chain.min_length=4")

    assert result.exit_code == 1
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["rejected"] == {"tool_chain": {"chain_too_short": 4}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_length": 6}, "min_length must not exceed max_length=5, got 6"),
        ({"writers": ("a", "a")}, "writers must differ"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ToolChainOptions(**options)
