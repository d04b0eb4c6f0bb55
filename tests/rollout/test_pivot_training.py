"""The stock trainer runs +method=pivotrl, and without it refuses the rows of pivots with a message that names it."""

import json
import random
from collections import Counter
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import psutil
import pytest

from tests.support.factories import ANSWER, USER, make_trajectory
from tests.support.launching import LAUNCH_SECONDS, cli, launch, step_metrics, training
from tests.support.tiny_model import write_model
from verl_pivot.profiling.profiles import read_profiles
from verl_pivot.types import Message, Role

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LAUNCH_SECONDS + 200)]


def write_questions(path: Path, num_trajectories: int) -> Path:
    """Write single-turn trajectories whose expert answers with text, which a random model sometimes does too."""
    rng = random.Random(0)
    with path.open("w") as file:
        for number in range(num_trajectories):
            question = Message(role=Role.USER, content=f"{USER.content} {rng.randrange(10**6)}")
            trajectory = make_trajectory(id=f"question-{number}", messages=(question, ANSWER), tools=())
            messages = [message.as_dict() for message in trajectory.messages]
            file.write(json.dumps({"id": trajectory.id, "messages": messages, "reward": 1}) + "\n")
    return path


def output_of(result: CompletedProcess[str]) -> str:
    """Standard output of a command that must have succeeded."""
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


VERIFIER = """
from verl_pivot.types import Verdict
from verl_pivot.verifiers.registry import get_verifier, register

@register("sometimes_undecided")
async def sometimes_undecided(action, turn):
    if len(action.content) % 4 == 0:
        return Verdict(score=None, reason="no_judge")
    return await get_verifier("tool_call")(action, turn)
"""


def test_the_mean_reward_of_the_first_step_is_that_of_the_profile(tmp_path: Path) -> None:
    """import -> profile, on a server of its own -> select -> two steps, with a verifier that cannot always decide.

    The two means agree within sampling error, and undecided rows reach no update.
    """
    model = write_model(tmp_path / "model")
    raw = write_questions(tmp_path / "raw.jsonl", 60)
    verifier, trajectories, profile, pivots = (
        tmp_path / name for name in ("verifier.py", "t.jsonl", "p.jsonl", "pivots.parquet")
    )
    verifier.write_text(VERIFIER)
    module = ("--verifier-module", verifier)
    output_of(cli("import", raw, "--out", trajectories, "--verifier", "sometimes_undecided", *module))
    printed = output_of(
        cli("profile", trajectories, "--model", model, "--out", profile, "--max-new-tokens", "24", *module)
    )
    assert "prefix cache" in printed
    assert profile.with_suffix(".jsonl.server.log").stat().st_size > 0
    assert [
        process for process in psutil.process_iter(["cmdline"]) if str(model) in (process.info["cmdline"] or [])
    ] == []
    output_of(cli("select", trajectories, "--profile", profile, "--keep", "all", "--out", pivots,
             "--validation-share", "0.2", *module))  # fmt: skip

    output = launch(
        tmp_path,
        "+method=pivotrl",
        "+local=cpu",
        "pivot.trial_steps=null",
        *training(model, pivots, batch_size=32, n=8, num_steps=2),
        f"pivot.verifier_modules=[{verifier}]",
        "data.max_prompt_length=256",
        "data.max_response_length=24",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=64",
        f"trainer.rollout_data_dir={tmp_path}/dump",
        f"trainer.validation_data_dir={tmp_path}/validation",
    )

    assert output.returncode == 0, output.stdout[-3000:] + output.stderr
    assert "do not say how they were profiled" not in output.stderr  # the sampling was compared, and is alike
    metrics = step_metrics(output.stdout)
    assert sorted(metrics) == [0, 1, 2]
    printed = [line.split(" s  ")[-1] for line in output.stderr.splitlines() if " s  " in line]
    assert [line.split(":")[0] for line in printed] == [
        "Ray runs",
        "data",
        "actor and reference policy loaded",
        "rollout engine and reward workers run",
        "validation before training",
        "step 1 of 2",
        "step 2 of 2",
        "finished",
    ]
    assert printed[5].startswith(f"step 1 of 2: mean reward {metrics[1]['critic/score/mean']:.2f}; ")
    assert not (tmp_path / "checkpoints").exists()
    samples = [sample.verdict for turn in read_profiles(profile).values() for sample in turn.samples]
    scores = [verdict.score for verdict in samples if verdict.score is not None]
    mean = sum(scores) / len(scores)
    standard_error = (mean * (1 - mean) * (1 / len(scores) + 1 / 256)) ** 0.5
    assert 0.02 < mean < 0.98
    assert abs(metrics[1]["critic/score/mean"] - mean) < 4 * standard_error
    assert metrics[1]["training/rollout_probs_diff_mean"] < 0.005  # verl's own bound
    assert metrics[1]["pivot/undecided_rows"] == pytest.approx(
        256 * metrics[1]["verifier/sometimes_undecided/no_judge"]
    )
    assert 0 < metrics[1]["pivot/undecided_rows"] < 256
    check_dump(tmp_path, profile, metrics[1])
    for stored in ((profile,), (tmp_path / "dump" / "pivot" / "1.jsonl", "--trajectories", pivots)):
        report = json.loads(output_of(cli("score", *stored, *module, "--json")))
        assert report["num_samples"] == (len(samples) if stored[0] == profile else 256)
        assert report["changed"] == []


def check_dump(folder: Path, profile: Path, metrics: dict[str, float]) -> None:
    """Check that each rollout of step 1 has a line with its verdict, and that verl's dump has what the update saw."""
    text = [each for each in read_lines(folder / "dump" / "1.jsonl") if not each["uid"].startswith("pad")]
    lines = read_lines(folder / "dump" / "pivot" / "1.jsonl")
    left_out = Counter(each["left_out"] for each in lines)
    assert len(lines) == 256
    assert left_out["undecided"] == metrics["pivot/undecided_rows"]
    assert left_out["lone"] == metrics["pivot/lone_rows"]
    assert {each["uid"]: each["score"] for each in text} == {
        each["uid"]: each["score"] for each in lines if each["kept"]
    }
    shares = {
        name.removeprefix("verifier/sometimes_undecided/"): round(256 * share)
        for name, share in metrics.items()
        if name.startswith("verifier/sometimes_undecided/")
    }
    assert Counter(each["reason"] for each in lines) == shares
    turns = {(turn.trajectory_id, turn.index) for turn in read_profiles(profile).values()}
    assert {(each["trajectory_id"], each["turn_index"]) for each in lines} <= turns
    for each in lines:
        (turn,) = each["turns"]
        assert (each["step"], each["verifier"], each["data_source"]) == (
            1, "sometimes_undecided", "verl_pivot/sometimes_undecided",
        )  # fmt: skip
        assert each["stop_reason"] == ("single_turn" if turn["ended"] else "max_response_tokens")
        assert (each["reason"] == "no_judge") == (turn["ended"] and each["score"] is None)
    assert [path.name for path in (folder / "validation" / "pivot").iterdir()] == ["0.jsonl"]
    assert {each["uid"] for each in read_lines(folder / "validation" / "pivot" / "0.jsonl")} == {
        each["uid"] for each in read_lines(folder / "validation" / "0.jsonl")
    }


def read_lines(path: Path) -> list[dict[str, Any]]:
    with path.open() as file:  # the text of a random model may hold what str.splitlines takes for the end of a line
        return list(map(json.loads, file))


async def test_stock_verl_refuses_pivots_without_the_method_and_names_it(tmp_path: Path) -> None:
    """Without the package verl reads the rows, and only the rows' agent name can say what they need."""
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
    from verl.utils.dataset.rl_dataset import RLHFDataset

    model = write_model(tmp_path / "model")
    raw = write_questions(tmp_path / "raw.jsonl", 16)
    trajectories, pivots = tmp_path / "t.jsonl", tmp_path / "pivots.parquet"
    output_of(cli("import", raw, "--out", trajectories))
    output_of(
        cli("select", trajectories, "--keep", "all", "--model", model, "--out", pivots, "--validation-share", "0.5")
    )
    stock = RLHFDataset(str(pivots), None, OmegaConf.create({"filter_overlong_prompts": False}))
    trajectory = {"step": 1, "sample_index": 0, "rollout_n": 0, "validate": False}

    with pytest.raises(AssertionError, match=r"install verl-pivot and add \+method=pivotrl"):
        await AgentLoopWorker._run_agent_loop(
            object(), {}, trajectory, agent_name=stock.dataframe[0]["agent_name"], trace=False
        )
