"""EvaluatedTraining: the checkpoint from which an interrupted training goes on."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision

from examples.evaluated_training import EvaluatedTraining, go_back  # noqa: E402


@dataclass(frozen=True, slots=True, kw_only=True)
class SomeTraining(EvaluatedTraining):
    every: int

    @property
    def is_trained(self) -> bool:
        return True

    @property
    def save_freq(self) -> int:
        return self.every

    @property
    def test_freq(self) -> int:
        return 10


def ended(folder: Path, *, saved: int, logged: int, evaluated: list[int], every: int = 5) -> SomeTraining:
    """Interrupted training of 20 steps, with the files of its first steps; it evaluates after steps 10 and 20."""
    training = SomeTraining(
        name="a",
        model=folder,
        rows=folder,
        folder=folder,
        seed=0,
        num_steps=20,
        learning_rate=0.1,
        batch_size=1,
        group_size=1,
        held_out=folder,
        tools=folder,
        every=every,
    )
    training.metrics.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1, logged + 1)))
    for step in (each for each in (saved - every, saved) if each > 0):
        (folder / f"global_step_{step}" / "actor").mkdir(parents=True)
    for step in evaluated:
        training.evaluation(step).parent.mkdir(parents=True, exist_ok=True)
        training.evaluation(step).touch()
    training.latest.write_text(str(saved))
    return training


@pytest.mark.parametrize(
    ("saved", "logged", "evaluated", "goes_on_from"),
    [
        (5, 7, [], 5),
        (10, 9, [], 5),  # interrupted during the evaluation
        (10, 9, [10], 5),  # interrupted before the step was logged
        (10, 12, [10], 10),
        (15, 16, [10], 15),
        (20, 19, [10], 15),
        (20, 19, [10, 20], 15),
        (20, 20, [10, 20], 20),
    ],
)
def test_a_training_goes_on_from_the_last_checkpoint_behind_which_nothing_is_missing(
    tmp_path: Path, saved: int, logged: int, evaluated: list[int], goes_on_from: int
) -> None:
    training = ended(tmp_path, saved=saved, logged=logged, evaluated=evaluated)

    go_back(training)

    assert training.latest.read_text() == str(goes_on_from)
    assert training.num_kept_checkpoints == 2


def test_an_evaluation_behind_the_step_from_which_a_training_goes_on_is_made_again(tmp_path: Path) -> None:
    training = ended(tmp_path, saved=20, logged=19, evaluated=[10, 20])

    go_back(training)

    assert [training.evaluation(step).is_file() for step in (10, 20)] == [True, False]


@pytest.mark.parametrize(
    ("every", "saved", "logged", "evaluated"),
    [
        (10, 10, 9, []),  # interrupted during the first evaluation
        (5, 5, 4, []),  # interrupted before the step was logged
        (5, 15, 16, []),  # trained on after an evaluation that is missing
        (10, 20, 19, [20]),
    ],
)
def test_a_training_without_a_checkpoint_up_to_which_nothing_is_missing_starts_over(
    tmp_path: Path, every: int, saved: int, logged: int, evaluated: list[int]
) -> None:
    training = ended(tmp_path, saved=saved, logged=logged, evaluated=evaluated, every=every)
    (tmp_path / "global_step_5").mkdir(exist_ok=True)  # verl removes only `actor` from an old checkpoint

    go_back(training)

    assert not [*tmp_path.glob("global_step_*"), *tmp_path.glob("latest*")]
    assert not training.validation.exists()
    assert not training.metrics.exists()


def test_the_last_checkpoint_is_asked_where_its_evaluation_alone_is_missing(tmp_path: Path) -> None:
    training = ended(tmp_path, saved=20, logged=19, evaluated=[10], every=20)

    go_back(training)

    assert training.has_last_checkpoint
    assert training.num_kept_checkpoints == 1


def test_a_step_to_go_on_from_that_was_being_written_is_found_again(tmp_path: Path) -> None:
    training = ended(tmp_path, saved=10, logged=12, evaluated=[10])
    training.latest.write_text("")

    go_back(training)

    assert training.latest.read_text() == "10"
