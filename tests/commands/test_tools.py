"""`verl-pivot tools report` from dumps to tables, JSON and a picture."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.runs.test_tool_use import called, write_steps
from tests.support.rollout_records import dump_line
from verl_pivot.cli import app


def report(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["tools", "report", *map(str, arguments)], env={"COLUMNS": "80"})


def shown(*arguments: object) -> str:
    result = report(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def told(*arguments: object) -> Any:
    return json.loads(shown(*arguments, "--json"))


@pytest.fixture
def seeds(tmp_path: Path) -> list[Path]:
    """Two runs of 8 steps: step n has n calls, and 100 n^2 tokens in the first run, 100 n^0.5 in the second."""
    return [
        write_steps(
            tmp_path / name,
            *(
                [dump_line("a_0_0", float(step > 4), calls=(called(),) * step, turn_tokens=(round(100 * step**power),))]
                for step in range(1, 9)
            ),
        )
        for name, power in (("seed-0", 2.0), ("seed-1", 0.5))
    ]


def test_json_has_every_step_the_trends_and_their_ranges(seeds: list[Path]) -> None:
    found = told(*seeds, "--block", 2)

    assert [run["run"] for run in found["runs"]] == [str(seed) for seed in seeds]
    first = found["runs"][0]
    assert first["steps"][2] == {
        "step": 3, "num_trajectories": 1, "num_masked": 0, "calling_share": 1.0, "calls": 3.0, "failing_share": 0.0,
        "tokens": 900.0, "accuracy": 0.0,
    }  # fmt: skip
    by_pair = {(each["first"], each["second"]): each for each in first["trends"]}
    assert list(by_pair) == [
        ("step", "calls"), ("step", "tokens"), ("step", "accuracy"), ("calls", "tokens"), ("calls", "accuracy"),
        ("tokens", "accuracy"),
    ]  # fmt: skip
    assert by_pair["step", "calls"]["levels"] == {
        "rho": pytest.approx(1.0), "num_points": 8, "slope": pytest.approx(1.0), "num_logarithms": 8,
    }  # fmt: skip
    assert by_pair["step", "calls"]["differences"] is None
    assert by_pair["calls", "tokens"]["levels"]["slope"] == pytest.approx(2.0)
    assert by_pair["calls", "tokens"]["differences"]["num_points"] == 3
    ranges = {(each["first"], each["second"]): each for each in found["ranges"]}["calls", "tokens"]
    assert ranges["slope"] == {"low": pytest.approx(0.5, abs=0.01), "high": pytest.approx(2.0), "num_seeds": 2}
    assert ranges["rho"] == {"low": pytest.approx(1.0), "high": pytest.approx(1.0), "num_seeds": 2}
    assert ranges["difference_rho"] is None  # calls change by 1 in every step


def test_the_tables_show_blocks_and_every_run(seeds: list[Path]) -> None:
    text = shown(*seeds, "--block", 2)

    assert f"run 2: {seeds[1]}\n" in text
    assert "7-8    100.0 %   7.50    0.0 %  5650.0   100.0 %       0" in text
    (row,) = [line.split() for line in text.splitlines() if line.startswith("calls, tokens    ")]
    assert row == ["calls,", "tokens", "1", "1.00", "2.00", "-", "1.84"]
    assert "all  1.00 to 1.00  0.50 to 2.00" in text
    assert "There are no p-values" in text


def test_too_few_steps_are_told(seeds: list[Path]) -> None:
    text = shown(seeds[0])

    assert "run 1: 8 steps are too few for d-rho and d-slope, which need 40 with --block 10." in text
    assert "all" not in [line.split()[0] for line in text.splitlines() if line.split()]


def test_a_picture_is_drawn(seeds: list[Path], tmp_path: Path) -> None:
    picture = tmp_path / "trends.png"

    result = report(*seeds, "--plot", picture)

    assert result.exit_code == 0
    assert result.stdout.endswith(f"Wrote {picture}.\n")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert told(*seeds, "--plot", picture)["block_size"] == 10  # the sentence `Wrote ...` is not in the JSON


def test_a_mistake_is_one_sentence(seeds: list[Path], tmp_path: Path) -> None:
    for arguments, sentence in (
        ([tmp_path / "nowhere"], f"error: {tmp_path}/nowhere has no dumps of rollouts"),
        ([seeds[0], seeds[1], seeds[0]], "error: a RUN is given twice: each must be the run of another seed"),
        ([seeds[0], f"{seeds[0]}/../seed-0"], "error: a RUN is given twice"),
        ([seeds[0], "--plot", "trends.pdf"], "error: --plot trends.pdf: a PNG is drawn, and its name must end in"),
        ([seeds[0], "--plot", tmp_path / "none" / "trends.png"], f"error: {tmp_path}/none/trends.png: No such file"),
        ([seeds[0], "--right-from", "nan"], "error: --right-from nan: give a number, such as 1"),
    ):
        result = report(*arguments)
        assert (result.exit_code, result.stderr.startswith(sentence)) == (1, True), result.stderr
