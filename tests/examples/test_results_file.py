"""Results of a study in one file: written results are read back, and files that do not fit together are refused."""

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from examples.evaluation_results import EvaluatedResult
from examples.merge import main
from examples.quickstart.training import PROJECT
from examples.results_file import (
    RESULTS,
    Kept,
    KeptUnit,
    StudyReport,
    merged,
    policy_digest,
    read_results,
    unplayed,
    without_seeds,
    write_results,
)
from verl_pivot.errors import DataError
from verl_pivot.types import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    prompt_id: str
    em: float
    scores: tuple[float | None, ...] = ()


def unit(arm: str, seed: int, *, policy: str = "p", steps: int = 30, em: float = 1.0) -> KeptUnit[Answer]:
    answers = [Answer(prompt_id="a", em=em, scores=(0.5, None)), Answer(prompt_id="b", em=0.0)]
    result = EvaluatedResult(
        arm=arm, seed=seed, evaluations={10: answers, 20: []}, training={} if arm == "base" else {1: answers[:1]}
    )
    return KeptUnit(result=result, policy=policy, design={"steps": steps, "mode": arm})


STUDY = StudyReport(
    arms=("base", "gain"),
    played=Answer,
    write=lambda results, gaps, folder: None,
    show=lambda results, gaps, console: None,
)


def written(path: Path, *units: KeptUnit[Answer], gaps: tuple[str, ...] = ()) -> Path:
    write_results(Kept(units=units, gaps=gaps), path)
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    kept = Kept(units=[unit("base", 0), unit("gain", 0, em=0.25)], gaps=["gain, seed 1: not run."])
    write_results(kept, tmp_path / RESULTS)
    assert read_results(tmp_path / RESULTS, Answer) == kept


def test_a_study_of_which_nothing_was_decided_is_read(tmp_path: Path) -> None:
    empty = EvaluatedResult[Answer](arm="base", seed=0, evaluations={0: []}, training={})
    kept = Kept(units=[KeptUnit(result=empty, policy="p", design={})], gaps=[])
    write_results(kept, tmp_path / RESULTS)
    assert read_results(tmp_path / RESULTS, Answer) == kept


def test_seeds_and_arms_of_several_files_become_one_study_in_order_of_the_seeds(tmp_path: Path) -> None:
    files = [
        written(tmp_path / "1", unit("base", 1, policy="q"), gaps=("gap.",)),
        written(tmp_path / "0", unit("base", 0), gaps=("gap.", "other.")),
        written(tmp_path / "0 later", unit("gain", 0)),
    ]
    kept = merged(files, STUDY)
    assert [(each.result.arm, each.result.seed) for each in kept.units] == [("base", 0), ("gain", 0), ("base", 1)]
    assert kept.gaps == ["gap.", "other."]


def test_a_unit_that_two_files_hold_is_refused(tmp_path: Path) -> None:
    files = [written(tmp_path / "a", unit("gain", 0)), written(tmp_path / "b", unit("gain", 0, em=0.0))]
    with pytest.raises(DataError, match="b holds gain with seed 0, as an earlier file does: leave one of them out"):
        merged(files, STUDY)


def test_an_arm_with_other_settings_is_refused(tmp_path: Path) -> None:
    files = [written(tmp_path / "a", unit("gain", 0)), written(tmp_path / "b", unit("gain", 1, policy="q", steps=40))]
    with pytest.raises(DataError, match="gain with seed 1, but gain with seed 0 had other settings: steps"):
        merged(files, STUDY)


def test_arms_of_a_seed_that_started_from_different_policies_are_refused(tmp_path: Path) -> None:
    files = [written(tmp_path / "a", unit("base", 0)), written(tmp_path / "b", unit("gain", 0, policy="q"))]
    with pytest.raises(DataError, match="gain with seed 0, whose base policy is not that of base with seed 0"):
        merged(files, STUDY)


def test_an_arm_that_the_study_has_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds lost with seed 0, but the study has no such arm: base, gain"):
        merged([written(tmp_path / "a", unit("lost", 0))], STUDY)


def test_files_that_are_no_results_are_refused(tmp_path: Path) -> None:
    text, table = tmp_path / "text", tmp_path / "table"
    text.write_text("text")
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), table)
    for path, message in (
        (tmp_path / "missing", "cannot be read as the results of a study"),
        (text, "cannot be read as the results of a study"),
        (table, "holds no results of a study; they are in the file results.parquet of its folder"),
    ):
        with pytest.raises(DataError, match=message):
            read_results(path, Answer)


def test_results_of_another_study_are_refused(tmp_path: Path) -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Other:
        prompt_id: str

    path = written(tmp_path / RESULTS, unit("base", 0))
    with pytest.raises(DataError, match=r"was written by another version, or for another study: .* 'em'"):
        read_results(path, Other)


def test_results_of_another_version_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / RESULTS, unit("base", 0))
    table = pyarrow.parquet.read_table(path)
    about = {"units": [{"arm": "base", "seed": 0, "evaluations": [], "training": []}], "gaps": []}
    pyarrow.parquet.write_table(table.replace_schema_metadata({"units": json.dumps(about)}), path)
    with pytest.raises(DataError, match="was written by another version: its units have no 'policy'"):
        read_results(path, Answer)


def test_settings_of_an_arm_hold_neither_seeds_nor_the_folder_of_the_study() -> None:
    settings: JsonObject = {
        "data.seed": 3, "data.train_files": "/here/out/world/rows.parquet", "sft": {"seed": 3, "num_logs": 10},
    }  # fmt: skip
    assert without_seeds(settings, Path("/here/out")) == {
        "data.train_files": "./world/rows.parquet", "sft": {"num_logs": 10},
    }  # fmt: skip


def test_a_folder_of_the_study_is_the_same_by_its_relative_and_its_whole_path() -> None:
    inside: JsonObject = {
        "data.train_files": "outputs/a/rows.parquet",
        "tools": "out/tools.yaml",
    }
    assert without_seeds(inside, Path("outputs/a")) == {"data.train_files": "./rows.parquet", "tools": "out/tools.yaml"}
    assert without_seeds(inside, Path(PROJECT) / "outputs/a") == without_seeds(inside, Path("outputs/a"))


def test_a_folder_of_the_study_is_the_same_through_a_link_and_with_two_dots(tmp_path: Path) -> None:
    (tmp_path / "disk" / "a").mkdir(parents=True)
    (tmp_path / "outputs").symlink_to(tmp_path / "disk")
    resolved: JsonObject = {"rows": f"{tmp_path}/disk/a/rows.parquet"}
    for out in ("outputs/a", "disk/../disk/a", "disk/a"):
        assert without_seeds(resolved, tmp_path / out) == {"rows": "./rows.parquet"}


def test_policies_are_told_apart_by_their_weights(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"one")
    first = policy_digest(tmp_path)
    weights.write_bytes(b"two")
    assert policy_digest(tmp_path) != first


def test_a_report_is_published_with_its_results(tmp_path: Path) -> None:
    seen: list[tuple[list[str], list[str]]] = []
    study = replace(STUDY, write=lambda results, gaps, folder: seen.append(([r.arm for r in results], [*gaps])))
    kept = Kept(units=[unit("base", 0)], gaps=["gap."])
    study.publish(kept, tmp_path / "new")
    assert seen == [(["base"], ["gap."])]
    assert read_results(tmp_path / "new" / RESULTS, Answer) == kept


def test_a_run_with_other_arms_or_seeds_keeps_what_earlier_runs_gave(tmp_path: Path) -> None:
    STUDY.add(Kept(units=[unit("base", 1, policy="q"), unit("gain", 0)], gaps=["gain, seed 0: gap."]), tmp_path)
    again = unit("gain", 0, em=0.5)
    found = STUDY.add(Kept(units=[unit("base", 0), again], gaps=[]), tmp_path)
    assert found == Kept(units=[unit("base", 0), again, unit("base", 1, policy="q")], gaps=[])
    assert read_results(tmp_path / RESULTS, Answer) == found
    third = STUDY.add(Kept(units=[unit("gain", 2, policy="r")], gaps=["gain, seed 2: gap."]), tmp_path)
    assert [(each.result.arm, each.result.seed) for each in third.units][-1] == ("gain", 2)
    assert len(third.units) == 4


def test_a_unit_that_will_not_go_with_earlier_ones_is_refused_before_it_is_trained(tmp_path: Path) -> None:
    STUDY.add(Kept(units=[unit("gain", 0)], gaps=[]), tmp_path)
    new = replace(unit("gain", 1, policy="q"), result=unplayed("gain", 1))
    STUDY.check(new, tmp_path)
    STUDY.check(new, tmp_path / "elsewhere")
    with pytest.raises(SystemExit, match=r"other settings: steps; give another --out"):
        STUDY.check(replace(new, design={"steps": 40, "mode": "gain"}), tmp_path)
    with pytest.raises(SystemExit, match="whose base policy is not that of"):
        STUDY.check(replace(new, result=unplayed("base", 0)), tmp_path)


def test_seeds_may_have_judges_of_their_own_which_the_file_names(tmp_path: Path) -> None:
    one, two = (replace(unit("gain", seed, policy=str(seed)), varying={"judge_model": str(seed)}) for seed in (0, 1))
    kept = merged([written(tmp_path / "a", one), written(tmp_path / "b", two)], STUDY)
    assert [each.varying for each in kept.units] == [{"judge_model": "0"}, {"judge_model": "1"}]


def test_a_run_in_the_folder_of_another_study_is_refused_and_its_file_stays(tmp_path: Path) -> None:
    STUDY.add(Kept(units=[unit("gain", 0)], gaps=[]), tmp_path)
    before = (tmp_path / RESULTS).read_bytes()
    with pytest.raises(SystemExit, match=r"other settings: steps; give another --out, or remove the file"):
        STUDY.add(Kept(units=[unit("gain", 1, policy="q", steps=40)], gaps=[]), tmp_path)
    assert (tmp_path / RESULTS).read_bytes() == before


def test_merging_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.merge", "ppr", f"{tmp_path}/missing.parquet", "--out", str(tmp_path)]

    missing = subprocess.run(command, check=False, capture_output=True, text=True)

    assert missing.returncode == 1
    assert missing.stderr.startswith(f"{tmp_path}/missing.parquet cannot be read as the results of a study")
    assert "Traceback" not in missing.stderr
    assert [*tmp_path.iterdir()] == []


def merge(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(main)
    return CliRunner().invoke(app, arguments)


def test_merging_an_unknown_study_or_into_the_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    unknown = merge("pqr", "results.parquet", "--out", str(tmp_path))
    assert unknown.exit_code == 2
    assert "there is no study pqr" in unknown.output
    assert [*tmp_path.iterdir()] == []

    (tmp_path / RESULTS).write_text("those of another run")
    taken = merge("ppr", str(tmp_path / "missing.parquet"), "--out", str(tmp_path))
    assert taken.exit_code == 2
    assert "which would be overwritten" in " ".join(taken.output.replace("│", " ").split())
    assert (tmp_path / RESULTS).read_text() == "those of another run"
