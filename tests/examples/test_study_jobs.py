"""The study's processes that run in parallel, its plan of hours, and the measurements among its units."""

import json
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

import pytest
import typer
from rich.console import Console

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision

from examples.study.arms import Arm  # noqa: E402
from examples.study.claims import read_design  # noqa: E402
from examples.study.jobs import Job, num_cores, run_jobs  # noqa: E402
from examples.study.measurement_units import MeasuredSeed, Measurement, measurements  # noqa: E402
from examples.study.measures_file import StudyMeasures  # noqa: E402
from examples.study.plan import plan_lines, seconds_of  # noqa: E402
from examples.study.request import StudyRequest  # noqa: E402
from examples.study.study import Study  # noqa: E402
from examples.units import Unit, finish  # noqa: E402

QUIET = Console(quiet=True)
STUDY = read_design().study


def job(folder: Path, name: str, program: str) -> Job:
    return Job(name=name, command=[sys.executable, "-c", program], log=folder / name / "console.txt")


def test_jobs_run_side_by_side_but_no_more_than_allowed(tmp_path: Path) -> None:
    """Each job waits for a second one to begin, and prints how many run; a third one would print 3."""
    program = (
        "import pathlib, sys, time; own = pathlib.Path(sys.argv[1]); own.touch()\n"
        "while len(list(own.parent.glob('run-*'))) < 2 and not list(own.parent.glob('end-*')): time.sleep(0.05)\n"
        "print(len(list(own.parent.glob('run-*')))); own.rename(own.with_name(own.name.replace('run', 'end')))"
    )
    jobs = [
        Job(name=name, command=[sys.executable, "-c", program, str(tmp_path / f"run-{name}")], log=tmp_path / name)
        for name in ("a", "b", "c")
    ]

    run_jobs(jobs, 2, QUIET)

    assert sorted(path.name for path in tmp_path.glob("end-*")) == ["end-a", "end-b", "end-c"]
    assert max(int((tmp_path / name).read_text()) for name in "abc") == 2


def test_after_a_job_that_fails_none_is_begun_and_its_last_lines_are_shown(tmp_path: Path) -> None:
    jobs = [job(tmp_path, "bad", "import sys; print('no room'); sys.exit(3)"), job(tmp_path, "next", "print('begun')")]

    with pytest.raises(SystemExit) as error:
        run_jobs(jobs, 1, QUIET)

    assert "bad failed; the end of" in str(error.value)
    assert "no room" in str(error.value)
    assert not (tmp_path / "next").exists()


def test_jobs_end_with_the_one_who_waits_for_them(tmp_path: Path) -> None:
    class InterruptedConsole(Console):
        def print(self, *objects: object, **options: object) -> None:
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_jobs([job(tmp_path, "long", "import time; time.sleep(600)")], 1, InterruptedConsole())

    assert time.monotonic() - began < 60.0
    assert num_cores() >= 1


@pytest.mark.parametrize(("num_jobs", "seconds"), [(1, 10.0), (2, 5.0), (3, 4.0), (9, 4.0)])
def test_units_side_by_side_take_as_long_as_the_fullest_place(num_jobs: int, seconds: float) -> None:
    """Two jobs at once take 4 + 1 and 3 + 2 seconds; three take 4, 3, and 2 + 1."""
    assert seconds_of([4.0, 3.0, 2.0, 1.0], num_jobs) == seconds


def test_a_plan_with_jobs_counts_stages_one_after_the_other(tmp_path: Path) -> None:
    done = Unit(arm="a", seed=1, folder=tmp_path / "a", settings={})
    finish(done, lambda: None)
    stamp = done.folder / "unit.json"
    stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "seconds": 3600.0}))
    more = [Unit(arm="a", seed=seed, folder=tmp_path / str(seed), settings={}) for seed in (2, 3, 4)]

    stages, kinds = [[done], more[:2], more[2:]], {"a": "a"}
    assert plan_lines(stages, kinds, 2)[-1] == "3 of 4 units left: 2.00 hours, with 2 at once"
    assert plan_lines(stages, kinds)[-1] == "3 of 4 units left: 3.00 hours"


def test_a_unit_with_other_settings_is_neither_done_nor_a_measure_of_its_kind(tmp_path: Path) -> None:
    unit = Unit(arm="a", seed=1, folder=tmp_path, settings={"design": "new"})
    finish(replace(unit, settings={"design": "old"}), lambda: None)

    assert plan_lines([[unit]], {"a": "a"}) == [
        f"a, seed 1: {tmp_path} has other settings and must be removed, not measured",
        "1 of 1 units left: 0.00 hours, without 1 whose duration is not known yet",
    ]


def test_tries_with_other_numbers_of_epochs_are_of_other_kinds(tmp_path: Path) -> None:
    tuning = StudyRequest(out=tmp_path).tuning(QUIET)
    tries = [arm for arm in tuning.arms if arm.name.startswith("sft_try")]
    assert len({arm.num_epochs for arm in tries}) == len({tuning.kinds[arm.name] for arm in tries}) > 1


def test_what_other_code_measured_is_measured_again_and_what_has_another_design_is_refused(tmp_path: Path) -> None:
    study = StudyRequest(out=tmp_path, arms="base,pivotrl").study(QUIET)
    seed = next(iter(study.seeds))
    (signals,) = [each for each in study.measurements if each.name == "signals"]
    done: list[str] = []

    def work(seed: MeasuredSeed, folder: Path, arms: tuple[str, ...]) -> StudyMeasures:
        done.append("now")
        return StudyMeasures(digest=seed.digest)

    asked = replace(signals, work=work)

    class OneMeasurement(Study):
        @property
        def measurements(self) -> list[Measurement]:
            return [asked]

    one = OneMeasurement(**{each.name: getattr(study, each.name) for each in fields(study)})
    old = replace(seed, measured_by="old")
    one.measure_seed(old)
    assert plan_lines([[seed.measurement_unit(signals)]], {"signals": "signals"})[0] == (
        "signals, seed 1: measured by other code, and measured again, not measured"
    )
    one.measure_seed(seed)
    one.measure_seed(seed)
    assert done == ["now", "now"]
    with pytest.raises(SystemExit, match="other settings: design"):
        one.measure_seed(replace(seed, digest="other"))


def test_a_unit_that_another_command_ran_in_two_runs_stays_a_note(tmp_path: Path) -> None:
    study = StudyRequest(out=tmp_path, arms="base,pivotrl").study(QUIET)
    arm = next(each for each in study.seeds[0].study.all_arms if each.name == "end_to_end")
    unit = study.seeds[0].unit(arm)

    def killed() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finish(unit, killed)
    finish(unit, lambda: None)
    assert study.about.notes == ("end_to_end, seed 1: finished in 2 runs, each from what the one before had left.",)


def test_tries_of_arms_that_train_alike_are_of_one_kind_so_that_the_first_one_tells_their_seconds(
    tmp_path: Path,
) -> None:
    tuning = StudyRequest(out=tmp_path).tuning(QUIET)
    (seed,) = tuning.seeds
    unit = seed.unit(tuning.arms[3])
    finish(unit, lambda: None)
    stamp = unit.folder / "unit.json"
    stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "seconds": 3600.0}))

    lines = plan_lines(tuning.stages, tuning.kinds)

    assert unit.arm == "pivotrl_try_1"
    assert [line.partition(",")[0] for line in lines if line.endswith("3600 s expected")] == [
        f"{name}_try_{number}" for name in ("pivotrl", "random_turns", "strict") for number in (1, 2, 3)
    ]
    assert lines[-1] == "16 of 17 units left: 8.00 hours, without 8 whose duration is not known yet"


def test_seeds_are_named_and_those_of_other_commands_stay_in_what_is_written(tmp_path: Path) -> None:
    study = StudyRequest(out=tmp_path, seeds="3,2").study(QUIET)

    assert [seed.seed for seed in study.seeds] == [2, 3]
    assert [seed.seed for seed in study.reported] == [1, 2, 3]
    with pytest.raises(typer.BadParameter, match="there is no seed 4; known: 1, 2, 3"):
        StudyRequest(out=tmp_path, seeds="4").study(QUIET)


def test_launches_are_written_alike_for_all_seeds(tmp_path: Path) -> None:
    study = StudyRequest(out=tmp_path).study(QUIET)
    first, second = (replace(study, reported=study.reported[n:]).about for n in (0, 1))

    assert "data.seed=SEED" in first.arms["pivotrl"].command
    assert "data.val_files=OUT/seed-SEED/held_out.parquet" in first.arms["pivotrl"].command
    assert first == second


def arms_named(*names: str) -> list[Arm]:
    return [arm for arm in STUDY.all_arms if arm.name in names]


@pytest.mark.parametrize(
    ("arms", "has_profile", "expected"),
    [
        (("base",), False, []),
        (("sft",), True, ["signals", "gains"]),
        (("pivotrl", "random_turns"), True, ["signals", "gains", "variance"]),
        (("base", "sft", "pivotrl"), True, ["signals", "gains", "outside_kl"]),
    ],
)
def test_a_measurement_is_a_unit_where_its_arms_run(
    arms: tuple[str, ...], has_profile: bool, expected: list[str]
) -> None:
    found = measurements(read_design().claims, arms_named(*arms), has_profile=has_profile)

    assert [each.name for each in found] == expected


def test_the_plan_of_a_study_lists_policy_profile_arms_and_measurements_in_their_order(tmp_path: Path) -> None:
    study = StudyRequest(out=tmp_path, seeds="1").study(QUIET)

    assert [[unit.arm for unit in stage] for stage in study.stages] == [
        ["policy"], ["profile"], ["base", "sft", "pivotrl", "random_turns", "strict", "end_to_end"],
        ["signals"], ["gains"], ["variance"], ["outside_kl"],
    ]  # fmt: skip
    assert len({unit.folder for stage in study.stages for unit in stage}) == 12


def test_a_study_knows_that_an_arm_was_trained_beside_others(tmp_path: Path) -> None:
    study = StudyRequest(out=tmp_path, seeds="1").study(QUIET)
    job = study._job(study.seeds[0], study.arms[2])

    assert study.results.about.side_by_side == ()
    job.log.parent.mkdir(parents=True)
    job.log.touch()
    assert study.results.about.side_by_side == (study.arms[2].name,)


def test_an_arm_that_goes_on_after_another_runs_in_a_later_stage(tmp_path: Path) -> None:
    study = StudyRequest(out=tmp_path, seeds="1", arms="pivotrl,pivotrl_then_end_to_end").study(QUIET)

    assert [unit.arm for stage in study.stages for unit in stage][2:4] == ["pivotrl", "pivotrl_then_end_to_end"]
    assert [len(stage) for stage in study.stages][:4] == [1, 1, 1, 1]
