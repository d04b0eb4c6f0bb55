"""`synthesize closed_loop` and its rounds: repaired labels, the printed training command, and where a loop goes on."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.commands.test_between_stages import make_run
from tests.support.paths import ROOT
from tests.synthesis.test_closed_loop import RIGHT, WRONG, labelled
from verl_pivot.cli import app
from verl_pivot.data.json_values import encode_json
from verl_pivot.data.trajectories import read_trajectories, trajectory_as_dict
from verl_pivot.errors import ConfigError
from verl_pivot.playing.running import open_toolset
from verl_pivot.synthesis.rounds import LoopRound, TrainingBetween, next_of_loop
from verl_pivot.synthesis.writer import WriterQuestion
from verl_pivot.synthesis.writer_settings import WriterSettings
from verl_pivot.types import JsonObject, Trajectory

TALLY = f"{ROOT}/tests/support/tallies.py:Tally"
BASE = WriterSettings(model="base")


VARIED = "Please tell 44."


def tells(number: int) -> JsonObject:
    function: JsonObject = {"name": "tell", "arguments": json.dumps({"number": number})}
    return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}


def is_behind_the_1(question: WriterQuestion) -> bool:
    return [each["content"] for each in question.messages if each["role"] == "tool"] == ["1"]


def tells_5(question: WriterQuestion) -> JsonObject | str:
    """A policy that tells 5 after the 1, which solves "Reach 6."."""
    return tells(RIGHT) if is_behind_the_1(question) else "It is done."


def tells_7(question: WriterQuestion) -> JsonObject | str:
    """A policy that tells 7 instead and fails; also the writer and the caller of a new sample."""
    last = str(question.messages[-1]["content"])
    if "Write a new request" in last:
        return json.dumps({"request": VARIED, "calls": [{"name": "tell", "arguments": {"number": 44}}]})
    if last == VARIED:
        return tells(44)
    return tells(WRONG) if is_behind_the_1(question) else "It is done."


def synthesize(*words: str | Path) -> Any:
    return CliRunner().invoke(app, ["synthesize", *map(str, words)])


def closed_loop(folder: Path, *rows: Trajectory, program: str = "tells_5", logprobs: bool = False) -> Any:
    path = folder / "labelled.jsonl"
    path.write_text("".join(encode_json(trajectory_as_dict(each)) + "\n" for each in rows))
    given = ["--trajectories", path, "--tools", TALLY, "--program", f"{__file__}:{program}", "--out", folder / "out"]
    changes = ["--set", f"greedy_probe.logprobs={logprobs}", "--set", "verified_label.roles=[]"]
    return synthesize("closed_loop", *map(str, given), *changes)


def test_the_recipe_repairs_a_broken_label_and_leaves_out_what_is_mastered(tmp_path: Path) -> None:
    result = closed_loop(tmp_path, *map(labelled, (RIGHT, WRONG, RIGHT)))

    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    (kept,) = read_trajectories(tmp_path / "out" / "trajectories.jsonl")
    assert report["rejected"] == {"borderline": {"mastered": 2}}
    assert kept.id == "labelled-2/0"
    assert kept.messages[-1].tool_calls[0].arguments == {"number": RIGHT}
    provenance: Any = kept.metadata["verl_pivot"]
    assert provenance["synthesis"]["values"]["label"] == "original_incorrect"
    assert provenance["split_by"] == "labelled-2"


def test_a_verifier_that_needs_metadata_refuses_the_new_sample_and_not_the_turn_that_it_varies(tmp_path: Path) -> None:
    row = replace(
        labelled(RIGHT), tools=tuple(open_toolset(TALLY).schemas), verifier="state",
        verifier_options={"environment": "tests.support.tallies:NamedTally"},
    )  # fmt: skip

    result = closed_loop(tmp_path, row, program="tells_7")
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    (kept,) = read_trajectories(tmp_path / "out" / "trajectories.jsonl")
    assert report["rejected"] == {"error_variations": {"user_code_failed": 1}}
    assert kept.id == "labelled-1/0"


def test_a_program_is_not_asked_for_perplexities_that_it_cannot_give(tmp_path: Path) -> None:
    result = closed_loop(tmp_path, labelled(RIGHT), logprobs=True)

    assert result.exit_code == 1
    assert "returns no logprobs; use a model for its role, or request no logprobs" in " ".join(result.output.split())


def test_without_an_environment_the_command_says_so_before_anybody_is_asked(tmp_path: Path) -> None:
    rows = tmp_path / "labelled.jsonl"
    rows.write_text(encode_json(trajectory_as_dict(labelled(WRONG))) + "\n")

    result = synthesize(
        "closed_loop", "--trajectories", rows, "--program", f"{__file__}:tells_5", "--out", tmp_path / "out"
    )
    assert result.exit_code == 1
    assert "step verified_label runs labels: give a tools file or an environment with --tools" in " ".join(
        result.output.split()
    )


def test_a_missing_file_is_refused_before_a_server_starts(tmp_path: Path) -> None:
    result = synthesize(
        "closed_loop", "--trajectories", tmp_path / "none.jsonl", "--model", "base", "--out", tmp_path / "o"
    )

    assert result.exit_code == 1
    assert f"there is no file {tmp_path / 'none.jsonl'}" in " ".join(result.output.split())
    assert [*tmp_path.iterdir()] == []


def finished(loop: Path, number: int) -> Path:
    """The folder of a finished round that kept a trajectory."""
    folder = loop / f"round-{number}"
    folder.mkdir(parents=True)
    (folder / "report.json").write_text("{}")
    (folder / "trajectories.jsonl").write_text("{}\n")
    return folder


def test_a_loop_trains_between_its_rounds_and_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    first = tmp_path / "round-1"
    assert next_of_loop(tmp_path, 3, BASE) == LoopRound(number=1, out=first, trajectories=None, model=None)

    finished(tmp_path, 1)
    trained = next_of_loop(tmp_path, 3, BASE)
    assert trained == TrainingBetween(
        number=1,
        trajectories=first / "trajectories.jsonl",
        pivots=first / "pivots.parquet",
        checkpoints=first / "checkpoints",
        model="base",
    )

    make_run(first / "checkpoints")
    second = next_of_loop(tmp_path, 3, BASE)
    assert second == LoopRound(
        number=2, out=tmp_path / "round-2", trajectories=first / "trajectories.jsonl", model=first / "model"
    )
    assert (first / "model" / "model.safetensors").read_bytes() == b"weights"

    finished(tmp_path, 2)
    again = next_of_loop(tmp_path, 3, BASE)
    assert isinstance(again, TrainingBetween)
    assert (again.number, again.model) == (2, str(first / "model"))
    assert next_of_loop(tmp_path, 2, BASE) is None


def test_a_round_that_kept_nothing_ends_the_loop(tmp_path: Path) -> None:
    (finished(tmp_path, 1) / "trajectories.jsonl").unlink()

    with pytest.raises(ConfigError, match="round 1 kept no trajectory to train on"):
        next_of_loop(tmp_path, 2, BASE)


def test_the_command_prints_the_training_after_a_round(tmp_path: Path) -> None:
    loop, writers = tmp_path / "loop", tmp_path / "writers.yaml"
    finished(loop, 1)
    writers.write_text("policy: {model: base}\n")

    result = synthesize("closed_loop", "--writers", writers, "--rounds", "2", "--out", loop)
    first = loop / "round-1"
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    select, train = lines[1].split(), lines[2].split()
    assert select[:3] == ["verl-pivot", "select", str(first / "trajectories.jsonl")]
    assert train[:4] == ["python", "-m", "verl.trainer.main_ppo", "+method=pivotrl"]
    assert f"trainer.default_local_dir={first / 'checkpoints'}" in train
    assert "actor_rollout_ref.model.path=base" in train
    assert lines[3].startswith("Then run the same command again: round 2 goes on")
    assert "All 1 rounds are done" in synthesize(
        "closed_loop", "--writers", writers, "--rounds", "1", "--out", loop
    ).output  # fmt: skip


@pytest.mark.parametrize(
    ("method", "writers", "message"),
    [
        ("closed_loop", "policy: {program: clerk.py:answer}", "in --writers, as `policy: {model: CHECKPOINT}`"),
        (
            "closed_loop",
            "policy: {openai: http://x, model: a}",
            "in --writers, as `policy: {model: CHECKPOINT}`",
        ),
        ("closed_loop", "writer: {model: a}", "in --writers, as `policy: {model: CHECKPOINT}`"),
        ("magnet", "policy: {model: a}", "magnet works on numbers: use a method that works on trajectories"),
    ],
)
def test_a_loop_that_could_not_train_its_policy_is_refused(
    tmp_path: Path, method: str, writers: str, message: str
) -> None:
    (tmp_path / "writers.yaml").write_text(writers + "\n")

    result = synthesize(method, "--writers", tmp_path / "writers.yaml", "--rounds", "2", "--out", tmp_path / "loop")
    assert result.exit_code == 1
    assert message in " ".join(result.output.split())
    assert not (tmp_path / "loop").exists()
