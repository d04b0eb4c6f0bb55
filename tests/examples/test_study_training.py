"""The study's launches, rows of arms, plan of units, and outcomes in dumps."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet
import pytest
from rich.console import Console

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision

import typer  # noqa: E402
from omegaconf import DictConfig  # noqa: E402

from examples.quickstart.policy import encode  # noqa: E402
from examples.study.arms import Arm, ArmKind, Recipe  # noqa: E402
from examples.study.claims import read_design  # noqa: E402
from examples.study.domains.known import DOMAINS, GROUPS, OUTSIDE  # noqa: E402
from examples.study.measurement_units import measurements  # noqa: E402
from examples.study.plan import plan_lines  # noqa: E402
from examples.study.policy import (  # noqa: E402
    MAX_PROMPT_TOKENS,
    MAX_RESPONSE_TOKENS,
    MAX_TURN_TOKENS,
    MAX_TURNS,
    build_tokenizer,
)
from examples.study.recording import held_out_tasks, record_all, tasks_of, write_tasks  # noqa: E402
from examples.study.request import chosen_arms  # noqa: E402
from examples.study.rows import ProfiledTurns, rows_of  # noqa: E402
from examples.study.training import StudyTraining, _solved  # noqa: E402
from examples.study.units import StudySeed  # noqa: E402
from examples.units import Unit, finish  # noqa: E402
from tests.support.composing import checked_config  # noqa: E402
from verl_pivot.errors import ConfigError, DataError  # noqa: E402
from verl_pivot.sandbox.execution import Result, Status  # noqa: E402
from verl_pivot.sandbox.lane.interpreters import KILL_REASONS  # noqa: E402
from verl_pivot.tools.tool_response import render_tool_response  # noqa: E402

DESIGN = read_design()


def make_seed(folder: Path) -> StudySeed:
    return StudySeed(
        seed=1,
        folder=folder,
        study=DESIGN.study,
        digest=DESIGN.digest,
        measured_by=DESIGN.measured_by,
        console=Console(quiet=True),
    )


@pytest.mark.parametrize("arm", DESIGN.study.all_arms, ids=lambda arm: arm.name)
def test_every_command_composes_and_plays_whole_tasks_greedily(arm: Arm, tmp_path: Path) -> None:
    training = make_seed(tmp_path)._training(arm)
    config = checked_config(training.command[3:])

    rollout = config.actor_rollout_ref.rollout
    assert rollout.agent.default_agent_loop == "pivot_tools"
    assert (rollout.val_kwargs.do_sample, rollout.val_kwargs.temperature, rollout.val_kwargs.n) == (False, 0, 1)
    assert config.pivot.rollout.max_turn_tokens == MAX_TURN_TOKENS
    assert config.pivot.get("max_turn_tokens") == (MAX_TURN_TOKENS if arm.kind is ArmKind.TURNS else None)
    assert config.trainer.get("val_only", False) is (arm.kind in (ArmKind.NONE, ArmKind.SFT))
    assert config.data.val_files == str(tmp_path / "seed-1/held_out.parquet")
    assert config.trainer.total_training_steps == (16 if arm.name == "end_to_end" else 8)
    assert config.trainer.test_freq == {"pivotrl": 2, "end_to_end": 2}.get(arm.name, 8)
    assert config.trainer.save_freq == {"pivotrl": 2, "end_to_end": 2}.get(arm.name, 6)
    assert config.actor_rollout_ref.actor.use_kl_loss is (arm.recipe is Recipe.PAPER)
    assert (config.data.train_files == config.data.val_files) is (arm.kind in (ArmKind.NONE, ArmKind.SFT))
    start = {"sft": "sft/policy", "pivotrl_then_end_to_end": "pivotrl/global_step_8/actor/huggingface"}
    assert config.actor_rollout_ref.model.path.endswith(f"seed-1/{start.get(arm.name, 'policy')}")


def composed(name: str, folder: Path) -> DictConfig:
    training = make_seed(folder)._training(arm_named(name))
    return checked_config(training.command[3:])


def arm_named(name: str) -> Arm:
    return next(arm for arm in DESIGN.study.all_arms if arm.name == name)


def test_the_published_recipe_has_no_kl_and_leaves_one_out_and_else_is_that_of_the_paper(tmp_path: Path) -> None:
    published, paper = composed("published", tmp_path), composed("pivotrl", tmp_path)

    assert (published.algorithm.adv_estimator, paper.algorithm.adv_estimator) == ("rloo", "grpo")
    assert [each.actor_rollout_ref.actor.use_kl_loss for each in (published, paper)] == [False, True]
    assert not published.algorithm.use_kl_in_reward
    assert published.pivot == paper.pivot


def test_grpo_roc_samples_twice_as_many_rollouts_of_whole_tasks_for_updates_of_the_same_size(tmp_path: Path) -> None:
    roc, plain = composed("end_to_end_roc", tmp_path), composed("end_to_end", tmp_path)

    assert (roc.pivot.resampling.oversample, roc.pivot.resampling.equal_rewards) == (2, "keep")
    assert roc.pivot.resampling.group_size == plain.actor_rollout_ref.rollout.n == DESIGN.study.group_size
    assert roc.pivot.rollout.format_tag is None
    assert {**roc.pivot.rollout} == {**plain.pivot.rollout}
    assert roc.data.train_batch_size == plain.data.train_batch_size == DESIGN.study.batch_size
    assert roc.actor_rollout_ref.actor.optim.lr_warmup_steps <= 0


def test_the_second_stage_goes_on_from_the_end_of_the_first_one_and_pays_for_both(tmp_path: Path) -> None:
    seed = make_seed(tmp_path)
    write_evaluated(seed._training(arm_named("pivotrl")), num_rollouts=3)
    second = arm_named("pivotrl_then_end_to_end")
    write_evaluated(seed._training(second), num_rollouts=2)
    seed.files.profile.write_text('{"turn_index": 0}\n')

    (*_, first), (last,) = seed.results(arm_named("pivotrl")), seed.results(second)

    assert (first.turns, first.seconds, first.profile_turns) == (8 * 3, 8 * 10.0, 8)
    assert (last.turns, last.seconds, last.profile_turns) == (8 * 5, 8 * 20.0, 8)
    assert [each.step for each in seed.results(arm_named("pivotrl"))] == [2, 4, 6, 8]


@pytest.mark.parametrize(
    ("lost", "problem"),
    [
        ("validation/pivot/6.jsonl", "lacks the evaluation after step 6: remove the folder"),
        ("rollouts/pivot/7.jsonl", "lacks the rollouts of step 7: remove the folder"),
    ],
)
def test_a_unit_that_lost_something_is_refused(tmp_path: Path, lost: str, problem: str) -> None:
    seed, arm = make_seed(tmp_path), arm_named("pivotrl")
    training = seed._training(arm)
    write_evaluated(training, num_rollouts=3)
    seed.files.profile.write_text("")
    (training.folder / lost).unlink()

    with pytest.raises(DataError, match=problem):
        seed.results(arm)


def test_an_evaluation_amid_training_that_lacks_a_task_is_no_reason_to_refuse_its_unit(tmp_path: Path) -> None:
    seed, arm = make_seed(tmp_path), arm_named("pivotrl")
    training = seed._training(arm)
    write_evaluated(training, num_rollouts=3)
    seed.files.profile.write_text("")
    training.evaluation(4).write_text(dump_line("b", 1.0))

    assert [each.solved for each in seed.results(arm)] == [
        {"shop": {"b" if step == 4 else "a": True}} for step in (2, 4, 6, 8)
    ]


def test_a_unit_whose_seconds_or_tasks_are_not_all_there_is_refused(tmp_path: Path) -> None:
    seed, arm = make_seed(tmp_path), arm_named("random_turns")
    training = seed._training(arm)
    write_evaluated(training, num_rollouts=3)
    seed.files.profile.write_text("")
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist([{"trajectory_id": each} for each in "ab"]), training.held_out
    )
    training.metrics.write_text(training.metrics.read_text().partition("\n")[2])

    with pytest.raises(DataError, match="lacks the seconds of step 1, the evaluation after step 8: remove"):
        seed.results(arm)


def test_a_second_stage_whose_first_one_was_removed_has_no_results(tmp_path: Path) -> None:
    seed = make_seed(tmp_path)
    seed.own.mkdir()
    seed.files.profile.write_text("")

    with pytest.raises(
        DataError, match=r"pivotrl lacks the seconds of step 1, .*: remove the folder, and run the command again"
    ):
        seed.results(arm_named("pivotrl_then_end_to_end"))


def write_evaluated(training: StudyTraining, num_rollouts: int) -> None:
    """Write a unit whose steps took 10 seconds each, without 2 for a checkpoint and 50 for an evaluation."""
    training.folder.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"trajectory_id": "a"}]), training.held_out)
    timed = {"timing_s/step": 12.0, "timing_s/save_checkpoint": 2.0, "timing_s/testing": 50.0}
    for step in range(1, training.num_steps + 1):
        for folder, lines in ((training.rollouts, num_rollouts), (training.validation, 1)):
            path = folder / "pivot" / f"{step}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dump_line("a", 1.0) * lines)
        with training.metrics.open("a") as metrics:
            metrics.write(json.dumps({"step": step, **timed}) + "\n")


def test_a_second_stage_without_its_first_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="which is not there: run pivotrl again"):
        make_seed(tmp_path).run(arm_named("pivotrl_then_end_to_end"))
    with pytest.raises(typer.BadParameter, match="goes on from pivotrl; name it too"):
        chosen_arms(DESIGN.study, "base,pivotrl_then_end_to_end")


async def test_limits_hold_all_trajectories_of_the_expert() -> None:
    logs = await record_all(tasks_of(list(GROUPS), range(300), every_family=True))
    tokenizer = build_tokenizer(logs)

    for log in logs:
        example = encode(tokenizer, log)
        turns = "".join("x" if label >= 0 else " " for label in example.labels).split()
        assert len(example.input_ids) < min(MAX_PROMPT_TOKENS, MAX_RESPONSE_TOKENS)
        assert max(map(len, turns)) < MAX_TURN_TOKENS
        assert len(turns) <= MAX_TURNS


def test_rows_of_whole_tasks_name_their_task_and_its_group(tmp_path: Path) -> None:
    tasks = [task for group in GROUPS for task in held_out_tasks(group, 3, 1)]

    rows = pyarrow.parquet.read_table(write_tasks(tmp_path / "rows.parquet", tasks)).to_pylist()

    assert [(row["data_source"], row["trajectory_id"]) for row in rows] == [(task.domain, task.id) for task in tasks]
    assert [json.loads(row["metadata"]) for row in rows] == [task.metadata for task in tasks]
    assert rows[0]["prompt"][-1] == {"role": "user", "content": tasks[0].request}
    assert len(rows) == 3 * (len(DOMAINS) + len(OUTSIDE))


def write_turns(path: Path, number: int) -> None:
    rows = [{"trajectory_id": str(n), "verifier": "state", "verifier_options": "{}"} for n in range(number)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


@pytest.fixture
def profiled(tmp_path: Path) -> ProfiledTurns:
    files = ProfiledTurns(tmp_path / "pivots.parquet", tmp_path / "turns.parquet", tmp_path / "profile.jsonl")
    write_turns(files.pivots, 5)
    write_turns(files.all_turns, 40)
    return files


@pytest.mark.parametrize(
    ("name", "verifier", "are_pivots"),
    [("pivotrl", "state", True), ("random_turns", "state", False), ("strict", "tool_call", True),
     ("naive", "tool_call", False)],
)  # fmt: skip
def test_arms_of_single_turns_differ_in_rows_and_reward_alone(
    name: str, verifier: str, are_pivots: bool, profiled: ProfiledTurns, tmp_path: Path
) -> None:
    arm = arm_named(name)

    first, again, other = (
        pyarrow.parquet.read_table(rows_of(arm, profiled, tmp_path / f"{number}.parquet", seed)).to_pylist()
        for number, seed in enumerate((1, 1, 2))
    )

    assert len(first) == 5
    assert first == again
    assert (first == other) is are_pivots
    assert ([row["trajectory_id"] for row in first] == ["0", "1", "2", "3", "4"]) is are_pivots
    options = {} if verifier == "state" else {"mode": "strict"}
    assert {(row["verifier"], row["verifier_options"]) for row in first} == {(verifier, json.dumps(options))}


def dump_line(task: str | None, score: float | None, **fields: object) -> str:
    line = {"uid": "a_0_0", "score": score, "kept": True, "data_source": "shop", "trajectory_id": task, **fields}
    return json.dumps(line) + "\n"


def test_outcomes_of_a_dump_are_those_of_tasks_and_failures_of_the_system_are_not_known(tmp_path: Path) -> None:
    dump = tmp_path / "10.jsonl"
    dump.write_text(dump_line("a", 1.0) + dump_line("b", 0.0) + dump_line("c", None))

    assert _solved(dump) == {"shop": {"a": True, "b": False, "c": None}}


@pytest.mark.parametrize(
    ("result", "is_known"),
    [
        (Result(status=Status.TIMEOUT), False),
        (Result(status=Status.SESSION_KILLED, error=KILL_REASONS["timeout"]), False),
        (Result(status=Status.SESSION_KILLED, error=KILL_REASONS["memory_limit"]), True),
        (Result(status=Status.ERROR, exit_code=1), True),
    ],
)
def test_an_outcome_after_a_command_that_ran_out_of_time_is_not_known(
    result: Result, is_known: bool, tmp_path: Path
) -> None:
    """A machine that is too busy made commands of milliseconds end at their limit; a solved task stays solved."""
    dump = tmp_path / "10.jsonl"
    turns = [{"text": "", "num_tokens": 1, "ended": True, "observations": [render_tool_response(result)]}]
    dump.write_text(dump_line("a", 1.0, turns=turns) + dump_line("b", 0.0, turns=turns))

    assert _solved(dump) == {"shop": {"a": True, "b": False if is_known else None}}


def test_an_outcome_without_a_task_is_refused(tmp_path: Path) -> None:
    dump = tmp_path / "10.jsonl"
    dump.write_text(dump_line(None, 1.0))

    with pytest.raises(DataError, match="names no task"):
        _solved(dump)


def test_a_plan_takes_the_seconds_of_units_of_a_kind_and_says_which_kind_was_not_measured(tmp_path: Path) -> None:
    units = [Unit(arm=arm, seed=seed, folder=tmp_path / f"{arm}-{seed}", settings={}) for seed in (1, 2)
             for arm in ("sft", "pivotrl")]  # fmt: skip
    finish(units[0], lambda: None)
    stamp = units[0].folder / "unit.json"
    stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "seconds": 720.0}))

    assert plan_lines([units], {"sft": "sft", "pivotrl": "pivotrl"}) == [
        "sft, seed 1: done in 720 s, 720 s expected",
        "pivotrl, seed 1: not begun, not measured",
        "sft, seed 2: not begun, 720 s expected",
        "pivotrl, seed 2: not begun, not measured",
        "3 of 4 units left: 0.20 hours, without 2 whose duration is not known yet",
    ]


def test_a_measurement_is_of_the_code_that_measures_and_an_arm_is_not(tmp_path: Path) -> None:
    seed = make_seed(tmp_path)
    other = replace(seed, measured_by="other")
    (signals, *_) = measurements(DESIGN.claims, DESIGN.study.arms, has_profile=True)

    assert seed.measurement_unit(signals).settings != other.measurement_unit(signals).settings
    assert seed.unit(arm_named("sft")) == other.unit(arm_named("sft"))


def test_all_arms_of_a_seed_start_from_one_policy_and_play_the_same_tasks(tmp_path: Path) -> None:
    trainings = [make_seed(tmp_path)._training(arm) for arm in DESIGN.study.arms]

    assert {training.held_out for training in trainings} == {tmp_path / "seed-1/held_out.parquet"}
    assert {training.model.name for training in trainings} == {"policy"}
    assert len({training.folder for training in trainings}) == len(trainings)


def test_a_unit_is_of_its_design_and_of_its_arm(tmp_path: Path) -> None:
    seed = make_seed(tmp_path)
    other = replace(seed, digest="other")
    arm, strict = DESIGN.study.arms[2], DESIGN.study.arms[4]

    assert seed.unit(arm).settings != other.unit(arm).settings
    assert seed.unit(arm).settings != seed.unit(strict).settings
    assert seed.unit(arm) == make_seed(tmp_path).unit(arm)
