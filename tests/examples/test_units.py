"""Units of a study: finished ones are kept, killed ones go on, other settings are refused, interruptions are listed."""

from functools import partial
from pathlib import Path

import pytest

from examples.units import SpoiledError, Unit, finish, gaps


def make_unit(folder: Path, arm: str = "l0", seed: int = 0, **settings: int) -> Unit:
    return Unit(arm=arm, seed=seed, folder=folder / f"{arm}-{seed}", settings={**settings})


def killed() -> None:
    raise KeyboardInterrupt


def killed_after_a_checkpoint(unit: Unit) -> None:
    (unit.folder / "checkpoint").write_text("step 5")
    killed()


def test_a_finished_unit_is_not_done_again(tmp_path: Path) -> None:
    done: list[int] = []
    finish(make_unit(tmp_path, steps=3), lambda: done.append(1))
    finish(make_unit(tmp_path, steps=3), lambda: done.append(2))
    assert done == [1]
    progress = make_unit(tmp_path).progress
    assert progress is not None
    assert (progress.settings, progress.num_runs) == ({"steps": 3}, 1)
    assert 0.0 <= (progress.seconds or 0.0) < 60.0


def test_a_unit_that_was_killed_is_taken_up_and_what_its_folder_holds_stays(tmp_path: Path) -> None:
    unit = make_unit(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        finish(unit, partial(killed_after_a_checkpoint, unit))
    assert unit.progress is not None
    assert unit.progress.seconds is None

    finish(unit, lambda: None)

    assert unit.folder.joinpath("checkpoint").read_text() == "step 5"
    assert (unit.progress.num_runs, unit.progress.seconds is None) == (2, False)


def test_a_spoiled_unit_is_not_taken_up_again(tmp_path: Path) -> None:
    def spoiled() -> None:
        raise SpoiledError("the judge ended: remove the folder")

    for work in (spoiled, lambda: pytest.fail("the unit is spoiled")):
        with pytest.raises(SystemExit, match="the judge ended: remove the folder"):
            finish(make_unit(tmp_path), work)
    assert gaps([make_unit(tmp_path)]) == ["l0, seed 0: begun in 1 run(s), not finished."]


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_folder_with_other_settings_is_refused_and_the_difference_named(tmp_path: Path, is_finished: bool) -> None:
    if is_finished:
        finish(make_unit(tmp_path, steps=3, batch=8), lambda: None)
    else:
        with pytest.raises(KeyboardInterrupt):
            finish(make_unit(tmp_path, steps=3, batch=8), killed)
    with pytest.raises(SystemExit) as error:
        finish(make_unit(tmp_path, steps=4, batch=8), lambda: pytest.fail("the unit has other settings"))
    assert str(error.value) == (
        f"{tmp_path}/l0-0 holds l0 of seed 0 with other settings: steps 3, not 4; give another --out, or remove the "
        "folder"
    )


def test_gaps_are_units_that_were_not_finished_in_one_run(tmp_path: Path) -> None:
    whole, continued, begun, missing = (make_unit(tmp_path, seed=seed) for seed in range(4))
    finish(whole, lambda: None)
    for unit in (continued, begun):
        with pytest.raises(KeyboardInterrupt):
            finish(unit, killed)
    finish(continued, lambda: None)
    assert gaps([whole, continued, begun, missing]) == [
        "l0, seed 1: finished in 2 runs, each from what the one before had left.",
        "l0, seed 2: begun in 1 run(s), not finished.",
        "l0, seed 3: not run.",
    ]
