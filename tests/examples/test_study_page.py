"""The study's page: the files alone give every table and verdict, and a missing seed gives a gap and no mean."""

import dataclasses
from pathlib import Path

import pytest

from examples.study.claims import TUNED_OTHERWISE, read_design
from examples.study.measures_file import (
    OutsideKl,
    SignalCount,
    StepVariance,
    StudyMeasures,
    TurnGain,
    read_measures,
    write_measures,
)
from examples.study.measures_page import measures_lines
from examples.study.outcomes import ArmSettings, StudyAbout, read_results, write_results
from examples.study.page import page
from examples.study.paper_page import paper_figures, paper_lines
from examples.study.plot import plot
from examples.study.tuned import TunedRates
from tests.examples.test_study import OUTSIDE, SEEDS, make_results
from verl_pivot.errors import DataError

DESIGN = read_design()
COMMANDS = {
    "pivotrl": ("python", "-m", "verl.trainer.main_ppo", "+method=pivotrl", "data.train_files=OUT/rows.parquet"),
    "end_to_end": ("python", "-m", "verl.trainer.main_ppo", "+method=tool_rollout"),
}  # fmt: skip
ABOUT = StudyAbout(
    policy="a policy",
    options=("--steps", "20"),
    arms={name: ArmSettings(learning_rate=2e-4, command=command) for name, command in COMMANDS.items()},
)


def signal(seed: int, domain: str = "shop", *, without: int = 6, missed: int = 10) -> SignalCount:
    return SignalCount(
        seed=seed, domain=domain, num_samples=8, num_turns=10, num_without_signal=without, num_accepted=40,
        num_missed=missed,
    )  # fmt: skip


def gains(seed: int, *values: tuple[float, float]) -> list[TurnGain]:
    return [
        TurnGain(seed=seed, turn=f"t:{number}", domain="shop", num_answers=16, deviation=deviation, gain=gain)
        for number, (deviation, gain) in enumerate(values)
    ]


def make_measures(seeds: tuple[int, ...] = SEEDS) -> StudyMeasures:
    """Made-up measures: 60 % and 30 % without signal, a fourth missed; deviations and gains rank alike, with a tie."""
    variances = {"pivotrl": (0.2, 0.24), "random_turns": (0.05, 0.21)}
    return StudyMeasures(
        digest=DESIGN.digest,
        signals=tuple(row for seed in seeds for row in (signal(seed), signal(seed, "sql", without=3))),
        variances=tuple(
            StepVariance(arm=arm, seed=seed, step=step, within_groups=both[0], of_batch=both[1])
            for arm, both in variances.items() for seed in seeds for step in (39, 40)
        ),
        gains=tuple(
            gain for seed in seeds
            for gain in gains(seed, (0.0, 0.0), (0.0, 0.0), (0.2, 0.02), (0.5, 0.06), (0.3, 0.03))
        ),
        kls=tuple(
            OutsideKl(arm=arm, seed=seed, group=group, num_tokens=100, nats=nats)
            for arm, nats in (("pivotrl", 1.0), ("sft", 4.0)) for seed in seeds for group in OUTSIDE
        ),
    )  # fmt: skip


def test_the_page_is_made_again_from_the_two_files_alone(tmp_path: Path) -> None:
    results, measures = dataclasses.replace(make_results(), about=ABOUT), make_measures()
    write_results(results, tmp_path / "outcomes.parquet")
    write_measures(measures, tmp_path / "measures.json")

    again = page(
        DESIGN, read_results(tmp_path / "outcomes.parquet"), read_measures(tmp_path / "measures.json"), OUTSIDE
    )

    assert again == page(DESIGN, results, measures, OUTSIDE)
    assert again.count("**holds**") == 4
    for line in (
        "Policy: a policy.",
        "python -m examples.study --steps 20",
        "| `pivotrl` | 0.0002 | - |",
        "data.train_files=OUT/rows.parquet",
        "All units were run.",
    ):
        assert line in again


def test_the_plot_has_a_line_of_each_curve_and_a_point_of_each_unit_that_was_run() -> None:
    """A line begins with the base policy of its seed; SFT, which samples no turns, has a dashed one over all turns."""
    whole = make_results()
    lacking = (("end_to_end", 2), ("base", 3))
    kept = [each for each in whole.evaluations if (each.arm, each.seed) not in lacking]

    over_training, finals = plot(dataclasses.replace(whole, evaluations=kept), SEEDS, OUTSIDE).axes

    base, pivotrl = [0, pytest.approx(40)], [[1280, pytest.approx(60)], [2560, pytest.approx(80)]]
    whole_tasks = [[4000, 50], [8000, pytest.approx(70)], [12000, 85], [16000, 80]]
    assert [line.get_xydata().tolist() for line in over_training.lines] == [
        *[[[0, pytest.approx(60)], [1, pytest.approx(60)]]] * 3,
        *[[base, *pivotrl]] * 2, pivotrl,
        [base, *whole_tasks], whole_tasks,
    ]  # fmt: skip
    assert over_training.get_legend_handles_labels()[1] == ["sft", "pivotrl", "end_to_end"]
    points = [tuple(line.get_xydata()[0]) for line in finals.lines]
    assert len(points) == 6 * 3 - 2
    assert points[:3] == [pytest.approx((40, 95))] * 2 + [pytest.approx((60, 80))]
    assert finals.get_legend_handles_labels()[1][:2] == ["base", "sft"]


def test_figures_of_the_paper_stand_beside_ours() -> None:
    lines = paper_lines(make_results(), SEEDS, OUTSIDE)

    assert lines[0] == "| | paper | mean over all seeds | seed 1 | seed 2 | seed 3 |"
    assert lines[1] == "|---|---|---|---|---|---|"
    assert "(table 1, mean of four benchmarks) | +9.94 | +20.0 | +20.0 | +20.0 | +20.0 |" in lines[2]
    assert (
        "change outside by SFT (table 2, mean of eight benchmarks) | -9.83 | -15.0 | -15.0 | -15.0 | -15.0 |"
        in lines[4]
    )
    assert "after PivotRL (table 4) | 63.81 | 80.0 | 80.0 | 80.0 | 80.0 |" in lines[8]
    assert len(lines) == 2 + len(paper_figures())


def test_a_missing_seed_makes_a_gap_and_no_mean() -> None:
    whole = make_results()
    results = dataclasses.replace(
        whole, evaluations=[each for each in whole.evaluations if (each.arm, each.seed) != ("sft", 2)]
    )

    lines = paper_lines(results, SEEDS, OUTSIDE)

    assert "| +9.94 | 2 of 3 seeds | +20.0 | - | +20.0 |" in lines[2]
    assert "| 63.81 | 80.0 |" in lines[8]


def test_measures_are_those_of_the_paper_by_hand() -> None:
    """The correlation of all turns is 1: deviations and gains have the same ranks 1.5, 1.5, 3, 5, 4."""
    text = "\n".join(measures_lines(DESIGN.claims, make_measures(), SEEDS))

    for line in (
        "| all turns of the expert, K = 8 | | 45.0 % | 45.0 % | 45.0 % | 45.0 % |",
        "| of these `shop` | | 60.0 % | 60.0 % | 60.0 % | 60.0 % |",
        "| random turns of these, K = 16 | | 40.0 % | 40.0 % | 40.0 % | 40.0 % |",
        "| `pivotrl`, within the groups of a batch | | 0.2000 | 0.2000 | 0.2000 | 0.2000 |",
        "| `random_turns`, of all rewards of a batch | | 0.2100 | 0.2100 | 0.2100 | 0.2100 |",
        "| all turns | | +1.00 | +1.00 | +1.00 | +1.00 |",
        "| turns with signal alone | | +1.00 | +1.00 | +1.00 | +1.00 |",
        "| of these with signal | | 3 | 3 | 3 | 3 |",
        "| `pivotrl`, nats | | 0.01000 | 0.01000 | 0.01000 | 0.01000 |",
        "| `sft`, nats | | 0.04000 | 0.04000 | 0.04000 | 0.04000 |",
        "| all domains | | 25.0 % | 25.0 % | 25.0 % | 25.0 % |",
    ):
        assert line in text, line


def test_a_seed_without_measures_is_a_gap() -> None:
    text = "\n".join(measures_lines(DESIGN.claims, make_measures((1, 3)), SEEDS))

    assert "| all domains | | 2 of 3 seeds | 25.0 % | - | 25.0 % |" in text


def test_nothing_measured_is_said_of_each_measure() -> None:
    text = "\n".join(measures_lines(DESIGN.claims, StudyMeasures(digest="x"), SEEDS))

    assert text.count("| not measured | | 0 of 3 seeds | - | - | - |") == 5


def test_measures_of_another_run_are_said() -> None:
    text = page(DESIGN, make_results(), StudyMeasures(digest="other"), OUTSIDE)

    assert "**The measures without a verdict are of another run, other.**" in text


def test_a_random_model_on_a_gpu_is_said_to_show_the_path_alone() -> None:
    results = dataclasses.replace(make_results(), about=StudyAbout(policy="random", is_taught_at_random=True))

    assert "this only shows that the launches work, and how fast" in page(DESIGN, results, make_measures(), OUTSIDE)


def test_seconds_of_arms_that_were_trained_side_by_side_are_said_to_be_so() -> None:
    results = dataclasses.replace(make_results(), about=StudyAbout(side_by_side=("pivotrl", "strict")))

    shown = page(DESIGN, results, make_measures(), OUTSIDE)

    assert (
        "**`pivotrl`, `strict` were trained beside others: their seconds are not those of a training alone.**" in shown
    )
    assert "- pivotrl was trained beside other arms, so that its seconds do not count: train it with --jobs 1" in shown


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "cannot be read as JSON"), ("{", "cannot be read as JSON"), ("[]", "holds no measures"),
     ('{"digest": "x", "gains": [{"seed": 1}]}', "holds no measures")],
)  # fmt: skip
def test_a_file_of_no_measures_is_refused(tmp_path: Path, content: str | None, problem: str) -> None:
    path = tmp_path / "measures.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=problem):
        read_measures(path)


def test_results_of_units_are_joined_in_their_order() -> None:
    joined = StudyMeasures(digest="x").with_results([make_measures((1,)), make_measures((2,))])

    assert [each.seed for each in joined.signals] == [1, 1, 2, 2]
    assert (joined.digest, len(joined.gains)) == ("x", 10)


def test_units_that_were_not_finished_in_one_run_stand_on_the_page() -> None:
    results = dataclasses.replace(make_results(), about=StudyAbout(notes=("sft, seed 2: finished in 2 runs.",)))

    assert "All units were run.\n\n- sft, seed 2: finished in 2 runs." in page(
        DESIGN, results, make_measures(), OUTSIDE
    )


def test_measures_that_other_code_took_are_said() -> None:
    measures = make_measures().model_copy(update={"measured_by": "other"})

    assert "were taken by other code than the present code" in page(DESIGN, make_results(), measures, OUTSIDE)


def test_rates_that_were_tuned_with_other_tasks_are_said_to_be_so() -> None:
    rates = TunedRates(policy="tiny", seed=0, sizes={}, design=f"{DESIGN.tuned_by} with num_steps=8", tries=())

    assert TUNED_OTHERWISE not in page(
        dataclasses.replace(DESIGN, tuned=rates), make_results(), make_measures(), OUTSIDE
    )
    other = dataclasses.replace(DESIGN, tuned=rates.model_copy(update={"design": "0123456789ab"}))
    assert f"**{TUNED_OTHERWISE}**" in page(other, make_results(), make_measures(), OUTSIDE)


def test_outcomes_that_do_not_say_how_they_were_made_are_refused(tmp_path: Path) -> None:
    import pyarrow.parquet

    path = tmp_path / "outcomes.parquet"
    write_results(make_results(), path)
    table = pyarrow.parquet.read_table(path)
    pyarrow.parquet.write_table(table.replace_schema_metadata({**table.schema.metadata, b"about": b"{"}), path)

    with pytest.raises(DataError, match="does not say how its outcomes were made"):
        read_results(path)
