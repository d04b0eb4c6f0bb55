"""Merging folders of a study that ran apart: the result, what is refused, and the entry points of the command."""

import dataclasses
from pathlib import Path

import pytest
from typer.testing import CliRunner

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision

from examples.study.measures_file import StudyMeasures, read_measures, write_measures  # noqa: E402
from examples.study.merging import merged  # noqa: E402
from examples.study.outcomes import OUTCOMES, ArmSettings, StudyAbout, read_results, write_results  # noqa: E402
from examples.study.request import StudyRequest  # noqa: E402
from examples.study.run import app, run_study  # noqa: E402
from tests.examples.test_study import make_results  # noqa: E402
from tests.examples.test_study_page import DESIGN, make_measures  # noqa: E402
from verl_pivot.errors import DataError  # noqa: E402

ABOUT = StudyAbout(policy="a policy", commit="abc", arms={"pivotrl": ArmSettings(learning_rate=2e-4)})


def write_folder(folder: Path, *seeds: int, about: StudyAbout = ABOUT, digest: str = "", measured_by: str = "") -> Path:
    """Write the folder of a study that has these seeds."""
    digest, whole = digest or DESIGN.digest, make_results()
    evaluations = [each for each in whole.evaluations if each.seed in seeds]
    write_results(
        dataclasses.replace(whole, digest=digest, evaluations=evaluations, about=about), folder / "outcomes.parquet"
    )
    about_measures = StudyMeasures(digest=digest, measured_by=measured_by or DESIGN.measured_by)
    write_measures(about_measures.with_results([make_measures(seeds)]), folder / "measures.json")
    return folder


def test_folders_with_other_seeds_each_make_one_study_with_all_verdicts(tmp_path: Path) -> None:
    folders = [write_folder(tmp_path / "a", 1), write_folder(tmp_path / "b", 2, 3)]
    out = tmp_path / "all"

    found = CliRunner().invoke(app, ["--out", str(out), "merge", *map(str, folders)], catch_exceptions=False)

    assert found.exit_code == 0
    page = (out / "page.md").read_text()
    assert page.count("**holds**") == 4
    assert "All units were run." in page
    assert read_measures(out / "measures.json").signals == make_measures().signals
    assert {each.seed for each in read_results(out / "outcomes.parquet").evaluations} == {1, 2, 3}
    again = CliRunner().invoke(app, ["page", str(out / "outcomes.parquet")], catch_exceptions=False)
    assert again.output.strip() == page.strip()
    assert (out / "study.png").read_bytes().startswith(b"\x89PNG")


def test_a_merged_study_names_all_commits_and_notes_and_whether_any_ran_side_by_side(tmp_path: Path) -> None:
    other = ABOUT.model_copy(update={"commit": "def", "side_by_side": ("sft",), "notes": ("sft, seed 2: late.",)})
    results, _ = merged([write_folder(tmp_path / "a", 1), write_folder(tmp_path / "b", 2, about=other)], tmp_path)

    assert (results.about.commit, results.about.side_by_side) == ("abc, def", ("sft",))
    assert results.about.notes == ("sft, seed 2: late.",)


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        ({"seeds": (1, 3)}, "both have the seed 1: leave one of them out"),
        ({"digest": "other"}, "has another design than .*: hash other, not"),
        ({"measured_by": "other"}, "hash of the measuring code other, not"),
        ({"about": ABOUT.model_copy(update={"policy": "b policy"})}, "policy b policy, not a policy"),
        ({"about": ABOUT.model_copy(update={"arms": {}})}, "launches or learning rates that differ"),
    ],
)
def test_folders_that_are_not_of_one_study_are_refused(tmp_path: Path, second: dict[str, object], problem: str) -> None:
    options = {"seeds": (2,), **second}
    seeds = options.pop("seeds")
    assert isinstance(seeds, tuple)
    folders = [write_folder(tmp_path / "a", 1), write_folder(tmp_path / "b", *seeds, **options)]  # type: ignore[arg-type]

    with pytest.raises(DataError, match=problem):
        merged(folders, tmp_path / "all")


def test_a_folder_is_not_merged_into_itself_and_one_without_outcomes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is one of the folders that are merged"):
        merged([write_folder(tmp_path / "a", 1)], tmp_path / "a")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        merged([tmp_path / "a", tmp_path / "b"], tmp_path / "all")


def test_a_study_that_lies_in_the_folder_for_all_is_not_overwritten(tmp_path: Path) -> None:
    folders = [write_folder(tmp_path / "a", 1), write_folder(tmp_path / "b", 2)]
    before = (write_folder(tmp_path / "c", 3) / OUTCOMES).read_bytes()
    with pytest.raises(DataError, match=r"c holds outcomes.parquet of a study, which would be overwritten"):
        merged(folders, tmp_path / "c")
    assert (tmp_path / "c" / OUTCOMES).read_bytes() == before


def test_what_a_seed_gave_is_written_behind_its_trainings_and_again_behind_its_measurements() -> None:
    class ToldModel:
        def check_machine(self) -> None:
            done.append("check")

    class ToldSeed:
        model = ToldModel()

    class ToldStudy:
        seeds = (ToldSeed(), ToldSeed())
        out = Path()

        def train_seed(self, seed: object, num_jobs: int, console: object) -> None:
            done.append("train")

        def measure_seed(self, seed: object) -> None:
            done.append("measure")

        def write(self) -> None:
            done.append("write")

    done: list[str] = []
    run_study(ToldStudy(), StudyRequest(out=Path()))  # type: ignore[arg-type]  # what the run uses of a study

    assert done == ["check", *["train", "write", "measure", "write"] * 2]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--help"], "Seeds to run, with commas"),
        (["--seeds", "2,3", "plan"], "pivotrl, seed 3: not begun"),
        (["--seeds", "2,3", "plan"], "24 of 24 units left"),
        (["tune", "--plan"], "end_to_end_try_3, seed 0: not begun"),
        (["merge", "--help"], "Merge several folders"),
    ],
)
def test_the_commands_that_train_nothing_print_what_they_say(tmp_path: Path, arguments: list[str], shown: str) -> None:
    found = CliRunner().invoke(app, ["--out", str(tmp_path), *arguments], catch_exceptions=False)

    assert found.exit_code == 0
    assert shown in found.output
