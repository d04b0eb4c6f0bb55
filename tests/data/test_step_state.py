"""State beside the checkpoints: a resumed run reads exactly the bytes that the run had at that step."""

import multiprocessing
from pathlib import Path
from time import sleep

import pytest

from verl_pivot.data.step_state import StateEntry, StepState, begin_launch, state_path
from verl_pivot.errors import ConfigError, StateError
from verl_pivot.types import Json


def contents(state: StepState) -> dict[str, Json]:
    return {key: entry.value for key in state.names() if (entry := state.read(key)) is not None}


def checkpoint(folder: Path, step: int) -> Path:
    """A checkpoint that is saved now."""
    saved = folder / f"global_step_{step}"
    (saved / "actor").mkdir(parents=True)
    sleep(0.02)  # the clock of a file system has steps of some milliseconds
    return saved


def test_a_value_has_the_version_and_the_step_of_its_last_change(tmp_path: Path) -> None:
    state = StepState(tmp_path / "state.jsonl")

    assert state.read("a") is None
    assert state.write("a", {"n": 1}, step=1, version=0)
    assert state.write("a", {"n": 2}, step=4, version=1)
    assert state.read("a") == StateEntry(2, 4, {"n": 2})
    assert state.names() == ["a"]


def test_a_step_reads_what_earlier_steps_wrote_whatever_the_step_itself_has_written(tmp_path: Path) -> None:
    state = StepState(tmp_path / "state.jsonl")
    state.write("a", "of 1", step=1, version=0)
    state.write("a", "of 2", step=2, version=1)

    assert [state.read("a", before=step) for step in (1, 2, 3)] == [
        None,
        StateEntry(1, 1, "of 1"),
        StateEntry(2, 2, "of 2"),
    ]


def test_of_two_changes_of_one_version_the_second_is_refused(tmp_path: Path) -> None:
    first, second = StepState(tmp_path / "state.jsonl"), StepState(tmp_path / "state.jsonl")

    assert first.write("a", "first", step=1, version=0)
    assert not second.write("a", "second", step=1, version=0)
    assert second.read("a") == StateEntry(1, 1, "first")


def test_a_resumed_run_has_the_state_of_its_step_and_writes_later_steps_again(tmp_path: Path) -> None:
    path = state_path(tmp_path, "state")
    begin_launch(tmp_path, "state", 0)
    state = StepState(path)
    for step in (1, 2, 3):
        state.write("a", f"of {step}", step=step, version=step - 1)
    bytes_of_first_run = path.read_bytes()

    begin_launch(tmp_path, "state", 2)
    resumed = StepState(path)

    assert contents(resumed) == {"a": "of 2"}
    assert resumed.write("a", "again of 3", step=3, version=2)
    assert contents(StepState(path)) == {"a": "again of 3"}
    assert path.read_bytes().startswith(bytes_of_first_run)
    begin_launch(tmp_path, "state", 0)
    assert contents(StepState(path)) == {}


def test_a_change_falls_with_the_later_change_that_it_builds_on(tmp_path: Path) -> None:
    begin_launch(tmp_path, "state", 0)
    state = StepState(state_path(tmp_path, "state"))
    state.write("a", "of 5", step=5, version=0)
    state.write("a", "of 4, which came after it", step=4, version=1)

    begin_launch(tmp_path, "state", 4)

    assert state.read("a") is None


def test_a_checkpoint_of_another_folder_brings_its_state_along(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        begin_launch(folder, "state", 0)
    source = StepState(state_path(old, "state"))
    source.write("a", 1, step=1, version=0)
    source.write("b", 2, step=2, version=0)
    source.write("a", 3, step=3, version=1)
    StepState(state_path(new, "state")).write("c", 0, step=1, version=0)

    begin_launch(new, "state", 2, checkpoint(old, 2))

    assert contents(StepState(state_path(new, "state"))) == {"a": 1, "b": 2}
    assert contents(source) == {"a": 3, "b": 2}


def run_to(folder: Path, step: int, value: str) -> Path:
    """Change a value in each step up to one, and save a checkpoint there."""
    state = StepState(state_path(folder, "state"))
    entry = state.read("a")
    for each in range(1 if entry is None else entry.step + 1, step + 1):
        state.write("a", f"{value} {each}", step=each, version=each - 1)
    state.close()
    return checkpoint(folder, step)


@pytest.mark.parametrize("begun_since", [(0,), (0, 0), (1,), (1, 0), (0, 1)])
@pytest.mark.parametrize("is_other_folder", [False, True])
def test_a_checkpoint_brings_the_state_of_its_run_though_later_launches_began_anew(
    tmp_path: Path, begun_since: tuple[int, ...], is_other_folder: bool
) -> None:
    begin_launch(tmp_path / "run", "state", 0)
    first = run_to(tmp_path / "run", 1, "first")
    saved = run_to(tmp_path / "run", 2, "first")
    for step in begun_since:
        begin_launch(tmp_path / "run", "state", step, first if step else None)
        StepState(state_path(tmp_path / "run", "state")).write("b", "later", step=1, version=0)
    folder = tmp_path / ("other" if is_other_folder else "run")

    begin_launch(folder, "state", 2, saved)

    assert contents(StepState(state_path(folder, "state"))) == {"a": "first 2"}
    last = run_to(folder, 3, "first")
    begin_launch(folder, "state", 0)
    begin_launch(folder, "state", 3, last)
    assert contents(StepState(state_path(folder, "state"))) == {"a": "first 3"}


def test_a_resume_after_a_crash_copies_nothing(tmp_path: Path) -> None:
    begin_launch(tmp_path, "state", 0)
    saved = run_to(tmp_path, 2, "first")
    for _ in range(3):
        begin_launch(tmp_path, "state", 2, saved)
        state = StepState(state_path(tmp_path, "state"))
        assert contents(state) == {"a": "first 2"}
        state.write("a", "lost", step=3, version=2)

    num_changes = state_path(tmp_path, "state").read_text().count('"key"')

    assert num_changes == 2 + 3


def test_half_a_line_of_a_killed_process_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    state = StepState(path)
    state.write("a", 1, step=1, version=0)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"step":2,"key":"a","val')

    assert state.read("a") == StateEntry(1, 1, 1)
    assert path.read_bytes() == whole


def add_one(path: Path, number: int) -> None:
    state = StepState(path)
    for _ in range(number):
        while True:
            entry = state.read("sum")
            version, value = (0, 0) if entry is None else (entry.version, int(str(entry.value)))
            if state.write("sum", value + 1, step=1, version=version):
                break


def test_no_change_of_several_processes_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=add_one, args=(path, 20)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

    assert StepState(path).read("sum") == StateEntry(60, 1, 60)


def test_a_file_of_something_else_is_refused_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    path.write_text("no state\n")

    with pytest.raises(ConfigError, match="the line at byte 0 is not that of a saved state"):
        StepState(path)


def test_a_file_that_is_spoilt_later_is_the_systems_failure(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    state = StepState(path)
    path.write_text("no state\n")

    with pytest.raises(StateError, match="is not that of a saved state"):
        state.read("a")
