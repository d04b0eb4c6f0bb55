"""Files that release 0.1.0 wrote are read or continued with the same outcome (`previous_version/README.md`)."""

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path

import pyarrow.parquet
import pytest
import torch
from typer.testing import CliRunner

from tests.data.previous_version.make import ByteRenderer, sampled_text
from tests.data.test_curriculum_training import Training, data_config
from verl_pivot.cli import app
from verl_pivot.data import journal
from verl_pivot.data.journal import input_identity, journal_path
from verl_pivot.data.pivots import row_to_turn
from verl_pivot.data.rollout_dumps import read_rollouts
from verl_pivot.data.rollout_records import StopReason
from verl_pivot.data.trajectories import read_trajectories
from verl_pivot.data.turns import turns
from verl_pivot.engines.engine import Completion, Sampling
from verl_pivot.engines.pool import EnginePool
from verl_pivot.errors import DataError
from verl_pivot.formats import importing
from verl_pivot.formats.importing import import_files, rejected_path
from verl_pivot.formats.row_import import ImportOptions
from verl_pivot.profiling.profiler import Profiler, Totals, profile_turns
from verl_pivot.profiling.profiles import TurnKey, file_sha256, read_profiles, read_settings
from verl_pivot.profiling.writer import open_profile
from verl_pivot.routing.simulator.recorded import read_conversations

FILES = Path(__file__).parent / "previous_version"


def restore_interrupted_import(out: Path) -> None:
    """Put the journal of the killed import where an import to `out` looks for it."""
    folder = journal_path(out)
    folder.mkdir()
    for path in (FILES / "import").glob("unfinished.*"):
        shutil.copy(path, folder / path.name.removeprefix("unfinished."))
    with sqlite3.connect(folder / "journal.sqlite") as database:
        database.executescript((FILES / "import" / "journal.sql").read_text())


def import_input(out: Path) -> list[int]:
    """Import the same input; returns the number of rows of each report of progress."""
    steps: list[int] = []
    import_files([FILES / "input.jsonl"], out, ImportOptions(), on_rows=steps.append)
    return steps


def test_an_interrupted_import_goes_on_after_its_last_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test sets the journal's version and the input's path and time of change, which a checkout does not keep."""
    identity = json.loads((FILES / "import" / "input_identity.json").read_text())
    monkeypatch.setattr(importing, "input_identity", lambda path: identity)
    monkeypatch.setattr(journal, "__version__", "0.1.0")
    out = tmp_path / "trajectories.jsonl"
    restore_interrupted_import(out)

    assert import_input(out) == [4, 3]

    assert out.read_bytes() == (FILES / "trajectories.jsonl").read_bytes()
    rejected = (FILES / "import" / "unfinished.rejected.jsonl").read_bytes()
    assert rejected_path(out).read_bytes() == rejected
    assert not journal_path(out).exists()


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_an_interrupted_import_of_another_version_or_input_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    identity = json.loads((FILES / "import" / "input_identity.json").read_text())
    is_same_input = version != "0.1.0"
    monkeypatch.setattr(importing, "input_identity", lambda path: identity if is_same_input else input_identity(path))
    monkeypatch.setattr(journal, "__version__", version)
    out = tmp_path / "trajectories.jsonl"
    restore_interrupted_import(out)

    assert import_input(out) == [0, 7]

    assert out.read_bytes() == (FILES / "trajectories.jsonl").read_bytes()


class HashEngine:
    """The engine of `make.py`: samples that depend on the prompt and the seed alone."""

    url = "http://engine"

    def __init__(self) -> None:
        self.num_samples = 0

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, n: int) -> tuple[Completion, ...]:
        self.num_samples += n if sampling.max_new_tokens > 1 else 0
        texts = [sampled_text(bytes(prompt_ids).decode(), sampling.seed_of(k)) for k in range(n)]
        return tuple(
            Completion(token_ids=(*text.encode(), 0), text="", ended=True, num_tokens=len(text) + 1) for text in texts
        )

    async def close(self) -> None: ...


def finish_profile(path: Path, like: Path) -> int:
    """Measure the turns that a profile lacks, with the settings of another one; returns the number of samples drawn."""
    settings, engine = read_settings(like), HashEngine()
    everything = [turn for trajectory in read_trajectories(FILES / "trajectories.jsonl") for turn in turns(trajectory)]

    async def run() -> None:
        with open_profile(path, settings) as writer:
            pool = EnginePool([engine], lambda message: None)
            profiler = Profiler(renderer=ByteRenderer(), pool=pool, settings=settings, seed=0, totals=Totals())
            await profile_turns(everything, profiler, writer, concurrency=4, on_turn=lambda: None)
            writer.put_in_order(TurnKey(turn.trajectory_id, turn.index) for turn in everything)

    asyncio.run(run())
    return engine.num_samples


def without_details(path: Path) -> list[str]:
    """Lines of a profile without the explanations of verdicts, whose wording differs between versions."""
    lines = list(map(json.loads, path.read_text().splitlines()))
    assert lines[0]["settings"].pop("turns", "all") == "all"  # a setting that 0.1.0 did not have
    for sample in chain.from_iterable(line["samples"] for line in lines[1:]):
        del sample["detail"]
    return list(map(json.dumps, lines))


def test_an_interrupted_profile_goes_on_and_ends_with_the_same_lines(tmp_path: Path) -> None:
    path = shutil.copy(FILES / "profile.interrupted.jsonl", tmp_path / "profile.jsonl")

    assert finish_profile(path, FILES / "profile.jsonl") == 4 * 4  # four samples of the four missing turns

    assert without_details(path) == without_details(FILES / "profile.jsonl")
    *whole, torn = (FILES / "profile.interrupted.jsonl").read_bytes().split(b"\n")
    assert torn
    assert set(whole) <= set(path.read_bytes().split(b"\n"))


@pytest.mark.parametrize("name", ["profile.jsonl", "profile.early_stop.jsonl"])
def test_a_finished_profile_is_read_and_a_new_one_has_the_same_lines(tmp_path: Path, name: str) -> None:
    path = shutil.copy(FILES / name, tmp_path / name)
    assert finish_profile(path, FILES / name) == 0
    assert path.read_bytes() == (FILES / name).read_bytes()
    assert read_settings(path).input_sha256 == file_sha256(FILES / "trajectories.jsonl")
    assert list(read_profiles(path)) == [(f"shop-{number}", index) for number in range(6) for index in (0, 1)]

    finish_profile(tmp_path / "new.jsonl", FILES / name)

    assert without_details(tmp_path / "new.jsonl") == without_details(FILES / name)


def test_pivots_are_read_as_the_turns_that_they_were_made_of() -> None:
    rows = [
        row
        for name in ("pivots.parquet", "pivots.validation.parquet")
        for row in pyarrow.parquet.read_table(FILES / name).to_pylist()
    ]

    read = sorted((row_to_turn(row) for row in rows), key=lambda turn: turn.id)

    assert read == [
        turn for trajectory in read_trajectories(FILES / "trajectories.jsonl") for turn in turns(trajectory)
    ]


def test_the_same_selection_writes_the_same_pivots_and_the_same_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("trajectories.jsonl", "profile.jsonl"):
        shutil.copy(FILES / name, tmp_path)
    monkeypatch.chdir(tmp_path)

    command = ["select", "trajectories.jsonl", "--profile", "profile.jsonl", "--out", "pivots.parquet"]
    result = CliRunner().invoke(app, [*command, "--validation-share", "0.25", "--workers", "1"], catch_exceptions=False)

    assert result.exit_code == 0
    for name in ("pivots.parquet", "pivots.validation.parquet"):
        table = pyarrow.parquet.read_table(tmp_path / name)
        assert table.drop_columns(["sampling"]).equals(pyarrow.parquet.read_table(FILES / name))
    report = json.loads((tmp_path / "pivots.report.json").read_text())
    assert report["settings"].pop("turns") == "all"  # a setting that 0.1.0 did not have
    assert report == json.loads((FILES / "pivots.report.json").read_text())


def test_a_dump_of_rollouts_is_read() -> None:
    rollouts = list(read_rollouts(FILES / "rollouts.jsonl"))

    assert [
        (rollout.id, rollout.score, rollout.is_kept, rollout.record and rollout.record.stop_reason)
        for rollout in rollouts
    ] == [
        ("a_0", 1.0, True, StopReason.ANSWERED),
        ("a_1", 0.0, True, StopReason.ANSWERED),
        ("b_0", None, False, StopReason.TOOL_FAILURE),
    ]
    recorded = map(json.loads, (FILES / "rollouts.jsonl").read_text().splitlines())
    for line, rollout in zip(recorded, rollouts, strict=True):
        assert rollout.record is not None
        added = {"oldest_weights", "newest_weights", "answer", "num_trims", "search", "num_citations"}
        added |= {"num_workflows", "workflow_version", "is_cut_off", "unread", "num_shown_citations"}
        added |= {"retry_message"}  # added later
        read = {key: value for key, value in rollout.record.as_dict().items() if key not in added}
        assert [call.pop("reward") for call in read["calls"]] == [None] * len(read["calls"])  # a later version added it
        assert {**line, **read} == line
    assert [len(conversation.turns) for conversation in read_conversations(FILES / "rollouts.jsonl")] == [2, 2, 1]


def test_the_state_of_a_training_dataset_names_no_class() -> None:
    """verl pickles the state of the dataset: a class in it would have to keep its module for ever."""
    state = torch.load(FILES / "data.pt", weights_only=True)

    assert "records" in str(state)


@pytest.fixture
def own_curriculum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the training dataset of other tests, since a process has only one."""
    monkeypatch.setattr("verl_pivot.data.dataset._training_curricula", [])


@pytest.mark.slow
@pytest.mark.usefixtures("own_curriculum")
def test_training_goes_on_with_the_saved_curriculum_and_draws_the_same_pivots(tmp_path: Path) -> None:
    path = shutil.copy(FILES / "pivots.parquet", tmp_path / "pivots.parquet")
    config = data_config(path, "data.train_batch_size=2", "pivot.curriculum.reprofile_every=2")
    training = Training(config)

    training.loader.load_state_dict(torch.load(FILES / "data.pt", weights_only=False))

    assert list(islice(training.steps(4), 6)) == json.loads((FILES / "drawn.json").read_text())


@pytest.mark.slow
@pytest.mark.usefixtures("own_curriculum")
def test_the_saved_curriculum_of_other_pivots_is_refused_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "pivots.parquet"
    pyarrow.parquet.write_table(pyarrow.parquet.read_table(FILES / "pivots.parquet").slice(2), path)
    training = Training(data_config(path, "data.train_batch_size=2"))
    training.loader.load_state_dict(torch.load(FILES / "data.pt", weights_only=False))

    with pytest.raises(
        DataError, match=r"the checkpoint's curriculum was saved for other pivots than those of data\.train"
    ):
        next(training.steps(4))
