"""runs.run and runs.metrics: the parts of a run's folder are found, whichever of them there are."""

import json
from pathlib import Path

import pytest

from tests.support.dumped_runs import make_line, read_index, write_run
from verl_pivot.errors import DataError
from verl_pivot.runs.growing_lines import PlacedLine
from verl_pivot.runs.metrics import MetricSeries
from verl_pivot.runs.run import RunPart, TrainingRun, differing_settings, run_names
from verl_pivot.runs.tool_use import dump_files

CONFIG = """
trainer: {project_name: shop, experiment_name: first, rollout_data_dir: null, validation_data_dir: %s}
algorithm: {gamma: %s}
data: {train_files: [a.parquet]}
"""


def configure(folder: Path, gamma: float = 1.0, validation: str = "null") -> TrainingRun:
    (folder / ".hydra").mkdir(parents=True, exist_ok=True)
    (folder / ".hydra" / "config.yaml").write_text(CONFIG % (validation, gamma))
    return TrainingRun(folder)


def test_dumps_are_found_by_part_and_step(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", {10: [make_line()], 9: [make_line()]})
    write_run(tmp_path / "elsewhere", {4: [make_line()]})
    run = configure(folder, validation=str(tmp_path / "elsewhere" / "rollouts"))
    (folder / "rollouts" / "10.jsonl").write_text("{}")  # verl's own dump beside ours
    (folder / "rollouts" / "pivot" / "11.jsonl.unfinished").touch()

    found = [(dump.part, dump.step, dump.path.parent.name) for dump in run.dumps]

    assert found == [
        (RunPart.TRAINING, 9, "pivot"), (RunPart.TRAINING, 10, "pivot"), (RunPart.VALIDATION, 4, "pivot"),
    ]  # fmt: skip
    assert [dump.step for dump in TrainingRun(folder / "rollouts").dumps] == [9, 10]
    assert [dump.step for dump in TrainingRun(folder / "rollouts" / "pivot").dumps] == [9, 10]
    assert [dump.step for dump in TrainingRun(folder / "rollouts" / "pivot" / "9.jsonl").dumps] == [9]


@pytest.mark.parametrize("name", ["validation", "validation/pivot", "validation/pivot/4.jsonl"])
def test_dumps_in_a_folder_of_validation_are_of_validation(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, {4: [make_line()]})
    (tmp_path / "rollouts").rename(tmp_path / "validation")
    monkeypatch.chdir(tmp_path / "validation")

    for run in (TrainingRun(tmp_path / name), TrainingRun(Path()), TrainingRun(Path("pivot"))):
        assert [(dump.part, dump.step) for dump in run.dumps] == [(RunPart.VALIDATION, 4)]
    assert dump_files(tmp_path / name) == [tmp_path / "validation" / "pivot" / "4.jsonl"]


def test_relative_folders_of_dumps_are_those_of_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for launch in ("a", "b"):
        (tmp_path / launch).mkdir()
        write_run(tmp_path / launch, {4: [make_line()]})
        (tmp_path / launch / "rollouts").rename(tmp_path / launch / "dumps")
    run = configure(tmp_path / "a" / "outputs", validation="dumps")
    (run.folder / ".hydra" / "hydra.yaml").write_text(f"hydra: {{runtime: {{version: 1.3.2, cwd: {tmp_path}/a}}}}")
    monkeypatch.chdir(tmp_path / "b")

    assert [dump.path for dump in run.dumps] == [tmp_path / "a" / "dumps" / "pivot" / "4.jsonl"]


def test_relative_folders_of_a_launch_in_a_container_are_found_from_the_run(tmp_path: Path) -> None:
    write_run(tmp_path, {4: [make_line()]})
    (tmp_path / "rollouts").rename(tmp_path / "dumps")
    run = configure(tmp_path / "outputs" / "run", validation="dumps")
    (run.folder / ".hydra" / "hydra.yaml").write_text(
        "hydra: {runtime: {cwd: /nowhere/work, output_dir: /nowhere/work/outputs/run}}"
    )

    (dump,) = run.dumps
    assert dump.path.resolve() == tmp_path / "dumps" / "pivot" / "4.jsonl"


def test_verls_own_dumps_are_found_where_there_are_none_of_ours(tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "3.jsonl").write_text("{}")

    assert [(dump.step, dump.path.name) for dump in TrainingRun(tmp_path).dumps] == [(3, "3.jsonl")]


def test_settings_that_differ_are_named_with_both_values(tmp_path: Path) -> None:
    runs = {"a": configure(tmp_path / "a", 1.0), "b": configure(tmp_path / "b", 0.9)}

    assert differing_settings(runs) == {"algorithm.gamma": ["1.0", "0.9"]}
    assert runs["a"].settings["data.train_files"] == '["a.parquet"]'


def test_runs_are_named_by_the_shortest_ends_that_differ() -> None:
    assert run_names([Path("/runs/seed-0/grpo"), Path("/runs/seed-1/grpo")]) == ["seed-0/grpo", "seed-1/grpo"]
    assert run_names([Path("/runs/a"), Path("/other/b")]) == ["a", "b"]
    assert run_names([Path("/a"), Path("/b/a")]) == ["a", "b/a"]


def test_checkpoints_and_the_method_are_those_in_the_folder(tmp_path: Path) -> None:
    for name in ("global_step_10", "global_step_5", "global_step_x"):
        (tmp_path / name).mkdir()
    (tmp_path / "verl_pivot_run.json").write_text('{"method": "ppr"}')

    assert (TrainingRun(tmp_path).checkpoints, TrainingRun(tmp_path).method) == ([5, 10], "ppr")


def test_a_folder_that_is_no_run_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds neither .* give the folder of a run"):
        TrainingRun(tmp_path).check()
    with pytest.raises(DataError, match=r"/none does not exist: give the folder of a run"):
        TrainingRun(tmp_path / "none").check()


def test_a_run_that_cannot_be_read_is_refused_with_the_remedy() -> None:
    with pytest.raises(DataError, match=r"^x+ cannot be read: File name too long; give a run that can be read$"):
        TrainingRun(Path(300 * "x")).check()


def test_a_broken_configuration_hides_nothing_else(tmp_path: Path) -> None:
    run = configure(write_run(tmp_path, {1: [make_line()]}))
    (tmp_path / ".hydra" / "config.yaml").write_text("trainer: [")

    run.check()
    assert (run.config, len(run.dumps)) == ({}, 1)
    assert run.config_problem is not None
    assert run.config_problem.startswith(f"{tmp_path}/.hydra/config.yaml is no YAML (while parsing a flow")
    assert read_index(tmp_path).problems == [run.config_problem]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "metrics.jsonl",
            [{"step": 1.0, "a/b": 0.5}, {"step": 2.0, "a/b": float("nan"), "c": 1}, {"step": 2, "a/b": 3}],
        ),
        ("shop/first.jsonl", [{"step": 1, "data": {"a/b": 0.5}}, {"step": 2, "data": {"a/b": 3, "c": 1, "d": "text"}}]),
    ],
)
def test_metrics_are_read_from_either_logger(tmp_path: Path, name: str, lines: list[dict[str, object]]) -> None:
    run = configure(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines) + "no JSON\n")
    series = MetricSeries()

    assert series.read(run.metrics)
    assert not series.read(run.metrics)
    assert (series.names, series.steps, series.num_unreadable) == (["a/b", "c"], [1, 2], 1)
    assert (series.points("a/b"), series.points("c"), series.points("none")) == ([(1, 0.5), (2, 3.0)], [(2, 1.0)], [])


def test_the_file_of_verls_logger_is_found_in_the_folder_of_the_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later launch of the same name overwrites it, and so what the run's own folder has comes before it."""
    run = configure(tmp_path / "outputs" / "run")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop").mkdir()
    logged = tmp_path / "shop" / "first.jsonl"
    logged.write_text('{"step": 1, "data": {"a/b": 0.5}}\n')
    assert run.metrics is None  # the folder of the launch is not known
    (run.folder / "main_ppo.log").write_text("[2026-11-30 12:00:00,000][verl][WARNING] - no metrics\n")

    (run.folder / ".hydra" / "hydra.yaml").write_text(f"hydra: {{runtime: {{cwd: {tmp_path}}}}}")
    assert TrainingRun(run.folder).metrics == run.folder / "main_ppo.log"  # verl's logger writes no file
    config = run.folder / ".hydra" / "config.yaml"
    config.write_text(config.read_text().replace("trainer: {", "trainer: {logger: [console, file], "))
    assert TrainingRun(run.folder).metrics == logged

    (run.folder / "train.log").write_text("step:1 - a/b:0.5\n")
    assert TrainingRun(run.folder).metrics == run.folder / "train.log"


class AskedWhileItReads(MetricSeries):
    """A series that another thread asks for its metrics before each line."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[object] = []

    def _add(self, line: PlacedLine, *, is_console: bool) -> None:
        self.answers.append((self.names, self.steps, self.points("reward")))
        super()._add(line, is_console=is_console)


def test_metrics_that_are_asked_for_while_they_are_read_are_those_before(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "reward": 0.5}\n')
    series = AskedWhileItReads()
    series.read(path)
    (tmp_path / "new").write_text('{"step": 2, "reward": 1.0}\n{"step": 3, "loss": 1.0}\n')
    (tmp_path / "new").replace(path)

    series.read(path)

    before = (["reward"], [1], [(1, 0.5)])
    assert series.answers == [([], [], []), before, before]
    assert (series.names, series.steps, series.points("reward")) == (["loss", "reward"], [2, 3], [(2, 1.0)])


def test_metrics_are_read_from_a_console_log_while_it_grows(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    log = tmp_path / "launch.log"
    log.write_text(
        "\x1b[36m(TaskRunner pid=7)\x1b[0m step:1 - actor/lr:0.1 - critic/score/mean:np.float64(0.5)\nstep:2 - ac"
    )
    run, series = TrainingRun(tmp_path), MetricSeries()
    series.read(run.metrics)
    assert series.points("critic/score/mean") == [(1, 0.5)]

    with log.open("a") as file:
        file.write("tor/lr:0.2 - critic/score/mean:nan\n")
    series.read(run.metrics)

    assert (series.points("actor/lr"), series.points("critic/score/mean")) == ([(1, 0.1), (2, 0.2)], [(1, 0.5)])
