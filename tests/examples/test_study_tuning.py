"""Tuning: the try that wins, the file that keeps tries, the tasks that decide, and the study that uses the result."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import typer
import yaml
from rich.console import Console

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision

from examples.study.arms import ArmKind  # noqa: E402
from examples.study.claims import read_design  # noqa: E402
from examples.study.domains.known import DOMAINS  # noqa: E402
from examples.study.jobs import num_cores  # noqa: E402
from examples.study.models import study_model  # noqa: E402
from examples.study.outcomes import UnitEvaluation  # noqa: E402
from examples.study.recording import held_out_tasks, validation_tasks  # noqa: E402
from examples.study.request import StudyRequest  # noqa: E402
from examples.study.study import Study  # noqa: E402
from examples.study.tuned import (  # noqa: E402
    TriedSettings,
    TunedRates,
    read_tuned,
    scaled_study,
    tuned_study,
    tuning_lines,
    write_tuned,
)
from examples.study.tuning import share_solved, tuning_outcome  # noqa: E402
from examples.study.units import StudySeed  # noqa: E402
from examples.units import finish  # noqa: E402
from verl_pivot.errors import ConfigError, DataError  # noqa: E402

DESIGN = read_design(is_tuning=True)
TINY = study_model(None, on_gpu=False).name


def tried(arm: str, rate: float, solved: float, epochs: int | None = None) -> TriedSettings:
    return TriedSettings(arm=arm, learning_rate=rate, num_epochs=epochs, solved=solved)


def make_tuned(*tries: TriedSettings, policy: str = TINY) -> TunedRates:
    return TunedRates(policy=policy, seed=0, sizes=DESIGN.study.sizes, design="0123456789ab", tries=tries)


def tuning_of(folder: Path, arms: str | None = None) -> Study:
    return StudyRequest(out=folder, arms=arms).tuning(Console(quiet=True))


def test_the_try_that_solves_most_counts_and_of_equal_ones_the_lower_rate_and_then_fewer_epochs() -> None:
    tuned = make_tuned(tried("a", 3.0e-1, 0.5), tried("a", 1.0e-1, 0.6), tried("a", 2.0e-1, 0.6),
                       tried("b", 1.0e-1, 0.4, 3), tried("b", 1.0e-1, 0.4, 2))  # fmt: skip

    assert tuned.best("a") == tried("a", 1.0e-1, 0.6)
    assert tuned.best("b") == tried("b", 1.0e-1, 0.4, 2)
    assert tuned.best("c") is None
    assert tuning_lines(tuned, ["b"]) == [
        "b: learning rate 0.1, 3 epochs: 40.0 %",
        "b: learning rate 0.1, 2 epochs: 40.0 %, the best, with the lowest and highest learning rate that was tried",
    ]


@pytest.mark.parametrize(
    ("best", "mark"),
    [
        (0, ", with the lowest learning rate that was tried"),
        (1, ""),
        (2, ", with the highest learning rate that was tried"),
    ],
)
def test_a_best_rate_at_the_edge_of_those_that_were_tried_is_marked(best: int, mark: str) -> None:
    tuned = make_tuned(*(tried("a", 0.1 * (number + 1), float(number == best)) for number in range(3)))

    assert tuning_lines(tuned, ["a"])[best].endswith(f"100.0 %, the best{mark}")


def test_what_tuning_found_comes_back_from_its_file(tmp_path: Path) -> None:
    tuned = make_tuned(tried("sft", 5e-4, 0.41, 2), tried("pivotrl", 1e-4, 0.1 + 0.2))
    write_tuned(tuned, tmp_path / "tuned.yaml")

    assert read_tuned(tmp_path / "tuned.yaml") == tuned
    assert "num_epochs" not in yaml.safe_load((tmp_path / "tuned.yaml").read_text())["tries"][1]


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "cannot be read as YAML"), ("[", "cannot be read as YAML"), ("seed: 1", "tuned.yaml"),
     ("policy: x\nseed: 0\nsizes: {}\ndesign: a\ntries: []\nmore: 1", "tuned.yaml.more: unknown key")],
)  # fmt: skip
def test_a_file_that_tuning_did_not_write_is_refused(tmp_path: Path, content: str | None, problem: str) -> None:
    path = tmp_path / "tuned.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=problem):
        read_tuned(path)


def test_tuned_rates_replace_those_of_their_arms_alone() -> None:
    others = [tried(name, 5e-5, 0.4) for name in ("pivotrl", "random_turns", "end_to_end")]
    sft = tried("sft", 7e-4, 0.4, 5)
    study = tuned_study(DESIGN.study, make_tuned(sft, tried("strict", 9e-5, 0.4), *others))

    rates = {arm.name: (arm.learning_rate, arm.num_epochs) for arm in study.all_arms}
    assert rates["sft"] == (7e-4, 5)
    assert rates["strict"] == (9e-5, None)
    assert rates["naive"] == (4e-4, None)
    with pytest.raises(ConfigError, match=r"tuned\.yaml has no tries of the arm strict: run tune to its end"):
        tuned_study(DESIGN.study, make_tuned(sft, *others))
    with pytest.raises(ConfigError, match="arm strict: only arms of the kind sft have num_epochs"):
        tuned_study(DESIGN.study, make_tuned(sft, tried("strict", 1e-4, 0.5, 2), *others))
    with pytest.raises(ConfigError, match="names the arm other"):
        tuned_study(DESIGN.study, make_tuned(tried("other", 1e-4, 0.5)))


def test_a_scaled_study_has_all_rates_and_tries_times_the_factor() -> None:
    study = scaled_study(DESIGN.study, 0.5)

    assert [arm.learning_rate for arm in study.arms] == [None, 2.5e-4, *[2e-4] * 4]
    assert [each.learning_rate for each in study.tries[ArmKind.TURNS]] == [1e-4, 2e-4, 4e-4]
    assert scaled_study(DESIGN.study, 1.0) == DESIGN.study


def test_validation_tasks_are_neither_held_out_nor_those_of_any_training() -> None:
    study = DESIGN.study
    for name, domain in DOMAINS.items():
        chosen = {task.id for task in validation_tasks(name, study.num_validation)}
        others = {task.id for task in held_out_tasks(name, study.num_held_out, 1)}
        for seed in (*study.seeds, study.tuning_seed):
            for first in (100_000 * (seed + 1), 1_000_000 * (seed + 1)):
                others |= {domain.make_task(number, held_out=False).id for number in range(first, first + 50)}
        assert len(chosen) == study.num_validation
        assert not chosen & others


def test_every_core_arm_has_the_same_number_of_tries_on_the_tuning_seed(tmp_path: Path) -> None:
    tuning = tuning_of(tmp_path)

    (seed,) = tuning.seeds
    assert (seed.seed, seed.evaluated) == (DESIGN.study.tuning_seed, "validation")
    assert [arm.name for arm in tuning.arms if arm.name.startswith("sft")] == [f"sft_try_{n}" for n in (1, 2, 3)]
    assert len(tuning.arms) == 3 * 5
    assert [len(stage) for stage in tuning.stages] == [1, 1, 15]
    training = seed.training_of("pivotrl_try_3")
    assert (training.learning_rate, training.held_out.name) == (8e-4, "validation.parquet")


def test_a_part_of_the_arms_can_be_tuned_and_the_base_policy_cannot(tmp_path: Path) -> None:
    assert {arm.name for arm in tuning_of(tmp_path, "sft").arms} == {"sft_try_1", "sft_try_2", "sft_try_3"}
    with pytest.raises(typer.BadParameter, match="there is no arm base"):
        tuning_of(tmp_path, "base")


def write_try(seed: StudySeed, name: str, shares: list[float]) -> None:
    """Write a finished try that solved these shares of ten validation tasks of each domain."""
    training = seed.training_of(name)
    for folder in (training.rollouts, training.validation):
        (folder / "pivot").mkdir(parents=True)
    lines = [
        {
            "uid": f"{n}_0_0",
            "score": float(n < share * 10),
            "kept": True,
            "data_source": domain,
            "trajectory_id": f"{n}",
        }
        for domain, share in zip(DOMAINS, shares, strict=True)
        for n in range(10)
    ]
    training.evaluated.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = pyarrow.Table.from_pylist([{"trajectory_id": f"{n}"} for n in range(10)])
    pyarrow.parquet.write_table(rows, training.held_out)
    steps = range(1, training.num_steps + 1) if training.is_trained else ()
    training.metrics.write_text("".join(json.dumps({"step": step, "timing_s/step": 1.0}) + "\n" for step in steps))
    for step in steps:
        (training.rollouts / f"pivot/{step}.jsonl").write_text(json.dumps(lines[0]) + "\n")
    seed.files.profile.write_text("")
    finish(seed.unit(next(arm for arm in seed.study.arms if arm.name == name)), lambda: None)


def test_an_arm_is_tuned_once_all_its_tries_are_finished(tmp_path: Path) -> None:
    tuning = tuning_of(tmp_path)
    (seed,) = tuning.seeds
    for number, solved in enumerate(([0.2] * 4, [0.9, 0.1, 0.4, 0.2], [0.3, 0.3, 0.3, 0.3]), start=1):
        write_try(seed, f"pivotrl_try_{number}", solved)
    write_try(seed, "strict_try_1", [0.2] * 4)

    rates, missing = tuning_outcome(tuning)

    assert [(each.arm, each.learning_rate) for each in rates.tries] == [
        ("pivotrl", rate) for rate in (2e-4, 4e-4, 8e-4)
    ]
    assert [each.solved for each in rates.tries] == pytest.approx([0.2, 0.4, 0.3])
    assert rates.best("pivotrl") == rates.tries[1]
    assert "strict is not tuned: strict_try_2, strict_try_3 not finished." in missing
    assert len(missing) == 4
    assert (rates.policy, rates.seed) == (TINY, 0)


def test_a_try_that_does_not_know_the_outcomes_of_a_domain_is_refused() -> None:
    solved: dict[str, dict[str, bool | None]] = {"shop": {"a": True}, "sql": {"b": None, "c": True}}
    found = UnitEvaluation(arm="a", seed=0, step=1, turns=0, profile_turns=0, seconds=0.0, solved=solved)

    with pytest.raises(DataError, match="a does not know the outcomes of 1 of 2 sql tasks: remove its folder"):
        share_solved(found)


def test_what_tuning_found_is_part_of_the_hash_but_not_of_that_of_tuning(tmp_path: Path) -> None:
    write_tuned(make_tuned(tried("pivotrl", 1e-4, 0.5)), tmp_path / "tuned.yaml")

    assert read_design(tuned=tmp_path / "tuned.yaml").digest != DESIGN.digest
    assert read_design(tuned=tmp_path / "tuned.yaml", is_tuning=True).digest == DESIGN.digest


def test_rates_that_were_tuned_for_another_policy_do_not_change_the_hash(tmp_path: Path) -> None:
    write_tuned(make_tuned(tried("pivotrl", 1e-4, 0.5)), tmp_path / "tuned.yaml")

    assert read_design(tuned=tmp_path / "tuned.yaml").untuned.digest == read_design().untuned.digest
    assert read_design().untuned.tuned is None


def test_a_study_takes_over_what_was_tuned_for_its_policy_and_refuses_a_file_of_another(tmp_path: Path) -> None:
    path = tmp_path / "tuned.yaml"
    others = [tried(name, 2e-4, 0.5) for name in ("random_turns", "strict", "end_to_end")]
    write_tuned(make_tuned(tried("pivotrl", 1e-4, 0.5), tried("sft", 1e-4, 0.5, 2), *others), path)
    study = StudyRequest(out=tmp_path, tuned=path).study(Console(quiet=True))

    assert study.is_tuned
    assert study.seeds[0].training_of("pivotrl").learning_rate == 1e-4

    assert StudyRequest(out=tmp_path, tuned=path, steps=3).study(Console(quiet=True)).is_tuned

    write_tuned(make_tuned(tried("pivotrl", 1e-4, 0.5), policy="another"), path)
    with pytest.raises(ConfigError, match="was tuned for another, not for tiny policy"):
        StudyRequest(out=tmp_path, tuned=path).study(Console(quiet=True))


def test_rates_that_were_tuned_with_other_sizes_are_refused_but_by_a_study_of_these_sizes(tmp_path: Path) -> None:
    path = tmp_path / "tuned.yaml"
    rehearsal = StudyRequest(out=tmp_path, steps=2, tasks=5).tuning(Console(quiet=True)).design.study
    tries = [tried(arm.name, 1e-4, 0.5, arm.num_epochs) for arm in DESIGN.study.arms if arm.learning_rate]
    write_tuned(replace_sizes(make_tuned(*tries), rehearsal.sizes), path)

    with pytest.raises(ConfigError) as error:
        StudyRequest(out=tmp_path, tuned=path).study(Console(quiet=True))
    assert str(error.value) == (
        f"{path} was tuned with num_steps 2, not 8, num_validation 5, not 100: run tune with the sizes of arms.yaml, "
        "or remove the file"
    )
    assert StudyRequest(out=tmp_path, tuned=path, steps=2, tasks=5).study(Console(quiet=True)).is_tuned


def replace_sizes(tuned: TunedRates, sizes: dict[str, int]) -> TunedRates:
    return tuned.model_copy(update={"sizes": sizes})


def test_more_jobs_than_there_is_room_for_are_refused() -> None:
    StudyRequest(out=Path(), jobs=num_cores()).check()
    with pytest.raises(typer.BadParameter, match=f"--jobs {num_cores() + 1}: this machine has {num_cores()} cores"):
        StudyRequest(out=Path(), jobs=num_cores() + 1).check()


@pytest.mark.skipif(num_cores() < 2, reason="needs two cores")
def test_one_gpu_trains_one_arm_at_a_time() -> None:
    with pytest.raises(typer.BadParameter, match="with --gpu one training at a time has the GPU"):
        StudyRequest(out=Path(), jobs=2, gpu=True).check()


def test_a_process_of_the_study_gets_all_options_that_decide_its_unit(tmp_path: Path) -> None:
    request = StudyRequest(out=tmp_path, arms="sft,pivotrl", seeds="1", steps=3, tasks=4, jobs=2)

    assert request.options == (
        "--out", str(tmp_path), "--seeds", "1", "--arms", "sft,pivotrl", "--steps", "3", "--tasks", "4",
    )  # fmt: skip
    assert request.deciding == ("--steps", "3", "--tasks", "4")
    study = request.study(Console(quiet=True))
    assert study.seeds[0].digest.endswith(" with num_steps=3 num_held_out=4 num_outside=4 num_validation=4")
    job = study._job(study.seeds[0], study.arms[0])
    assert job.command[-4:] == ["unit", "sft", "--of-seed", "1"]
    assert job.command[-len(request.options) - 4 : -4] == list(request.options)
