"""The study's claims and arms, its outcomes, verdicts, page and simulated studies, with made-up outcomes."""

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from examples.study.claims import FOLDER, TUNED, Claims, read_design
from examples.study.digests import MEASUREMENT_SOURCES, OUTCOME_SOURCES, PROJECT, source_files
from examples.study.measures_file import StudyMeasures
from examples.study.outcomes import Solved, StudyResults, UnitEvaluation, read_results, write_results
from examples.study.page import page
from examples.study.simulated import SimulatedStudies, coverage, coverage_table
from examples.study.verdicts import JudgedClaim, JudgedPart, judge
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.statistics import ClaimVerdict

SEEDS = (1, 2, 3)
OUTSIDE = ("adding", "copying")
NUM_TASKS = 200


def task_id(number: int) -> str:
    return f"shop-{('refund', 'count')[number % 2]}-{number}-True"


def outcomes(share: float, shift: int = 0) -> dict[str, bool | None]:
    """Outcomes of 200 tasks: a `share` of them is solved, counted from task `shift` on."""
    return {task_id(task): (task - shift) % NUM_TASKS < round(share * NUM_TASKS) for task in range(NUM_TASKS)}


def solved(inside: float, outside: float) -> Solved:
    return {**{name: outcomes(inside) for name in ("shop", "sql")}, **{name: outcomes(outside) for name in OUTSIDE}}


def make_evaluation(
    arm: str, seed: int, inside: float, outside: float = 0.95, *, step: int = 40, turns: int = 5120
) -> UnitEvaluation:
    return UnitEvaluation(
        arm=arm,
        seed=seed,
        step=step,
        turns=turns,
        profile_turns=1000,
        seconds=turns / 10,
        solved=solved(inside, outside),
    )


SHARES: Mapping[str, tuple[float, float]] = {
    "base": (0.4, 0.95), "sft": (0.6, 0.8), "pivotrl": (0.8, 0.945), "random_turns": (0.7, 0.94), "strict": (0.65, 0.9),
}  # fmt: skip


def curve(arm: str, seed: int, shares: Mapping[int, float], turns_of_a_step: int) -> list[UnitEvaluation]:
    return [
        make_evaluation(arm, seed, share, step=step, turns=step * turns_of_a_step) for step, share in shares.items()
    ]


def make_results(*, end_to_end: Mapping[int, float] | None = None, **changed: tuple[float, float]) -> StudyResults:
    """Results by which every claim of the paper holds, unless an arm's final shares are changed."""
    shares = {**SHARES, **changed}
    evaluations = []
    for seed in SEEDS:
        evaluations += [
            make_evaluation(arm, seed, *both, turns=0) for arm, both in shares.items() if arm in ("base", "sft")
        ]
        evaluations += [make_evaluation(arm, seed, *shares[arm]) for arm in ("random_turns", "strict")]
        evaluations.append(make_evaluation("pivotrl", seed, 0.6, step=10, turns=1280))
        evaluations.append(make_evaluation("pivotrl", seed, *shares["pivotrl"], step=20, turns=2560))
        evaluations += curve("end_to_end", seed, end_to_end or {10: 0.5, 20: 0.7, 30: 0.85, 40: 0.8}, 400)
    return StudyResults(digest=read_design().digest, evaluations=evaluations)


def shown(results: StudyResults) -> str:
    return page(read_design(), results, StudyMeasures(digest=results.digest), OUTSIDE)


def verdicts(results: StudyResults) -> dict[str, JudgedClaim]:
    judged = judge(read_design().claims, results, SEEDS, OUTSIDE)
    return {each.claim.name: each for each in judged}


def test_the_papers_results_would_make_every_claim_hold() -> None:
    judged = verdicts(make_results())

    assert {name: each.verdict for name, each in judged.items()} == dict.fromkeys(
        ("in_domain", "outside", "both_ingredients", "cost"), ClaimVerdict.HOLDS
    )
    (part,) = judged["in_domain"].parts
    assert part.low is not None
    assert part.low is part.high
    assert part.low.by_seed == pytest.approx((0.2, 0.2, 0.2))


def factors(part: JudgedPart) -> tuple[float, float]:
    """Lowest and highest factor between the costs of two arms."""
    assert part.low is not None
    assert part.high is not None
    return math.exp(part.low.value), math.exp(part.high.value)


def test_a_ratio_of_costs_lies_between_those_that_the_evaluations_around_the_level_allow() -> None:
    """PivotRL reaches 80 % after 1,280 to 2,560 turns, training on whole tasks after 8,000 to 12,000."""
    turns, seconds = verdicts(make_results())["cost"].parts
    (with_profile,) = verdicts(make_results())["cost"].shown

    assert factors(turns) == pytest.approx((8_000 / 2_560, 12_000 / 1_280))
    assert factors(seconds) == pytest.approx((8_000 / 2_560, 12_000 / 1_280))
    assert factors(with_profile) == pytest.approx((9_000 / 3_560, 13_000 / 2_280))
    assert "| 3.12 to 9.37 (3.12 to 9.37, 3.12 to 9.37, 3.12 to 9.37) |" in shown(make_results())


def test_an_accuracy_that_is_never_reached_makes_all_turns_a_lower_bound_and_is_said() -> None:
    results = make_results(end_to_end={10: 0.5, 40: 0.7})
    (turns, _) = verdicts(results)["cost"].parts

    assert factors(turns)[0] == pytest.approx(16_000 / 2_560)
    assert factors(turns)[1] > 1e40
    assert "| at least 6.25 (at least 6.25, at least 6.25, at least 6.25) | [6.25, no bound] |" in shown(results)


def test_an_accuracy_that_the_first_evaluation_has_has_no_lower_bound() -> None:
    results = make_results(end_to_end={10: 0.85, 40: 0.9})
    judged = verdicts(results)["cost"]

    assert factors(judged.parts[0])[1] == pytest.approx(4_000 / 1_280)
    assert judged.verdict is ClaimVerdict.UNDECIDED
    assert "| at most 3.12 (at most 3.12, at most 3.12, at most 3.12) | [no bound, 3.12] |" in shown(results)


@pytest.mark.parametrize(
    ("changed", "claim", "verdict"),
    [
        ({"pivotrl": (0.5, 0.945)}, "in_domain", ClaimVerdict.DOES_NOT_HOLD),
        ({"pivotrl": (0.6, 0.945)}, "in_domain", ClaimVerdict.UNDECIDED),  # the same outcomes as those of SFT
        ({"pivotrl": (0.8, 0.85)}, "outside", ClaimVerdict.DOES_NOT_HOLD),  # ten points below the base policy
        ({"pivotrl": (0.8, 0.93)}, "outside", ClaimVerdict.UNDECIDED),  # about two points below the base policy
        ({"strict": (0.9, 0.9)}, "both_ingredients", ClaimVerdict.DOES_NOT_HOLD),
    ],
)
def test_other_outcomes_have_other_verdicts(
    changed: dict[str, tuple[float, float]], claim: str, verdict: ClaimVerdict
) -> None:
    assert verdicts(make_results(**changed))[claim].verdict is verdict


def test_a_seed_that_lacks_an_arm_leaves_its_claims_undecided_and_stands_on_the_page() -> None:
    whole = make_results()
    results = StudyResults(
        digest=whole.digest,
        evaluations=[each for each in whole.evaluations if (each.arm, each.seed) != ("sft", 2)],
    )

    judged = verdicts(results)

    assert {name: each.verdict for name, each in judged.items()} == {
        "in_domain": ClaimVerdict.UNDECIDED, "outside": ClaimVerdict.UNDECIDED,
        "both_ingredients": ClaimVerdict.HOLDS, "cost": ClaimVerdict.HOLDS,
    }  # fmt: skip
    assert judged["in_domain"].missing == ["sft, seed 2, was not run"]
    text = shown(results)
    assert "- sft, seed 2, was not run" in text
    assert "| 2 of 3 |" in text
    assert "| `sft` | 2 | - | - | - | - | - |" in text
    assert "- `sft`, seed 2: not run" in text


def test_a_study_without_outcomes_has_a_page_of_gaps() -> None:
    design = read_design()

    text = shown(StudyResults(digest=design.digest, evaluations=[]))

    assert text.count("**undecided**") == 4
    assert text.count(", seeds 1, 2, 3: not run") == 6


def test_a_page_says_that_its_outcomes_are_of_another_design() -> None:
    text = shown(StudyResults(digest="0123456789ab", evaluations=[]))

    assert "are not of the present design" in text


def test_tasks_at_which_the_system_failed_are_left_out_of_both_arms_and_counted() -> None:
    results = make_results()
    for each in results.evaluations:
        if each.arm == "sft":
            shop = dict(each.solved["shop"])
            shop.update({task_id(task): None for task in (0, 1, 150, 199)})
            each.solved["shop"] = shop  # type: ignore[index]  # a dict, as made above

    (part,) = verdicts(results)["in_domain"].parts

    assert part.low is not None
    assert part.low.by_seed == pytest.approx([(39 / 196 + 0.2) / 2] * 3)
    assert "| 60.2 | 60.0 | 80.0 | 80.0 | 4 |" in shown(results)


def test_a_group_of_which_the_system_failed_more_than_two_percent_leaves_its_claims_undecided() -> None:
    results = make_results()
    for each in results.evaluations:
        if (each.arm, each.seed) == ("sft", 2):
            each.solved["shop"] = {**each.solved["shop"], **dict.fromkeys(map(task_id, range(5)))}  # type: ignore[index]

    judged = verdicts(results)

    assert judged["in_domain"].verdict is ClaimVerdict.UNDECIDED
    assert judged["in_domain"].missing == [
        "pivotrl and sft, seed 2, both know the outcomes of 97.5% of the domains tasks of a group, and 98% are needed"
    ]
    assert judged["both_ingredients"].verdict is ClaimVerdict.HOLDS


@pytest.mark.parametrize(
    ("end_to_end", "verdict"),
    [
        ({13: 0.5, 20: 0.85}, ClaimVerdict.HOLDS),  # over 5,200 turns against PivotRL's at most 2,560
        ({10: 0.5, 20: 0.85}, ClaimVerdict.UNDECIDED),  # over 4,000 turns against at most 2,560
        ({4: 0.5, 6: 0.85}, ClaimVerdict.DOES_NOT_HOLD),  # at most 2,400 turns against PivotRL's over 1,280
        ({4: 0.5, 7: 0.85}, ClaimVerdict.UNDECIDED),  # at most 2,800 turns against over 1,280
        ({4: 0.5, 6: 0.7}, ClaimVerdict.UNDECIDED),  # not reached within 2,400 turns
        ({10: 0.5, 40: 0.7}, ClaimVerdict.HOLDS),  # not reached within 16,000 turns
    ],
)
def test_the_claim_on_costs_holds_by_the_lowest_factor_and_fails_by_the_highest_one(
    end_to_end: dict[int, float], verdict: ClaimVerdict
) -> None:
    assert verdicts(make_results(end_to_end=end_to_end))["cost"].verdict is verdict


def test_with_the_steps_of_arms_yaml_the_claim_on_turns_can_hold_fail_and_stay_undecided() -> None:
    """A step of PivotRL has 128 single turns, a step of whole tasks 128 tasks of 4.4 turns each."""
    study = read_design().study
    arms = {arm.name: arm for arm in study.arms}
    steps = {
        name: [round((number + 1) * study.steps_of(arms[name]) / arms[name].num_evaluations) for number in range(8)]
        for name in ("pivotrl", "end_to_end")
    }
    whole = make_results()
    kept = [each for each in whole.evaluations if each.arm not in steps]

    def verdict(reached: int) -> ClaimVerdict:
        curves = [
            made
            for seed in SEEDS
            for made in (
                *curve("pivotrl", seed, dict(zip(steps["pivotrl"][:4], (0.5, 0.6, 0.7, 0.8), strict=True)), 128),
                *curve("end_to_end", seed, {step: 0.85 if n >= reached else 0.5 for n, step in
                                            enumerate(steps["end_to_end"])}, 563),
            )
        ]  # fmt: skip
        return verdicts(replace(whole, evaluations=[*kept, *curves]))["cost"].verdict

    assert [verdict(reached) for reached in (0, 1, 2, 8)] == [
        ClaimVerdict.DOES_NOT_HOLD, ClaimVerdict.UNDECIDED, ClaimVerdict.HOLDS, ClaimVerdict.HOLDS,
    ]  # fmt: skip


def test_a_level_that_is_not_reached_in_many_draws_of_the_tasks_refutes_nothing() -> None:
    results = make_results(end_to_end={4: 0.5, 6: 0.81})
    for each in results.evaluations:
        if (each.arm, each.step) == ("end_to_end", 6):
            each.solved.update(dict.fromkeys(("shop", "sql"), outcomes(0.81, shift=20)))  # type: ignore[attr-defined]

    judged = verdicts(results)["cost"]

    assert factors(judged.parts[0])[1] == pytest.approx(2_400 / 1_280)
    assert judged.verdict is ClaimVerdict.UNDECIDED


def without_outcomes(results: StudyResults, arm: str, step: int) -> None:
    """Make the outcomes of five tasks after a step unknown, and remove the line of one task."""
    for each in results.evaluations:
        if (each.arm, each.seed, each.step) == (arm, 2, step):
            shop = {**each.solved["shop"], **dict.fromkeys(map(str, range(5)))}
            each.solved["shop"] = {task: known for task, known in shop.items() if task != "7"}  # type: ignore[index]


def test_an_evaluation_amid_training_that_lost_outcomes_is_left_out_of_its_curve_alone_and_said() -> None:
    results = make_results(end_to_end={10: 0.5, 20: 0.7, 30: 0.85, 40: 0.85})
    without_outcomes(results, "pivotrl", 10)
    without_outcomes(results, "end_to_end", 20)

    judged = verdicts(results)

    assert {each.verdict for name, each in judged.items() if name != "cost"} == {ClaimVerdict.HOLDS}
    assert judged["cost"].missing == []
    turns = judged["cost"].parts[0].low
    assert turns is not None
    assert [math.exp(value) for value in turns.by_seed] == pytest.approx([8_000 / 2_560, 4_000 / 2_560, 8_000 / 2_560])
    text = shown(results)
    for place in ("pivotrl, seed 2, step 10", "end_to_end, seed 2, step 20"):
        assert f"- {place}: too many outcomes are not known, so it is left out of the curve" in text


def test_what_an_arm_costs_that_learned_nothing_says_nothing() -> None:
    judged = verdicts(make_results(base=(0.9, 0.95)))["cost"]

    assert judged.verdict is ClaimVerdict.UNDECIDED
    assert judged.missing == [f"pivotrl, seed {seed}, solves no more than the base policy" for seed in SEEDS]


@pytest.mark.parametrize("seconds", [0.0, -5.0, math.nan, math.inf])
def test_an_evaluation_that_cost_nothing_is_refused(seconds: float) -> None:
    results = make_results()
    broken = [replace(each, seconds=seconds) if each.step == 20 else each for each in results.evaluations]

    with pytest.raises(DataError, match=r"step 20 has .* seconds: remove the unit's folder"):
        verdicts(StudyResults(digest=results.digest, evaluations=broken))


def test_outcomes_come_back_from_their_file(tmp_path: Path) -> None:
    results = make_results()
    write_results(results, tmp_path / "outcomes.parquet")

    again = read_results(tmp_path / "outcomes.parquet")

    assert again == results
    assert shown(again) == shown(results)


def test_a_file_of_no_outcomes_keeps_its_hash(tmp_path: Path) -> None:
    empty = StudyResults(digest="0123456789ab", evaluations=[])
    write_results(empty, tmp_path / "outcomes.parquet")

    assert read_results(tmp_path / "outcomes.parquet") == empty


@pytest.mark.parametrize("content", [None, b"PAR1 half of a file"])
def test_a_file_that_is_missing_or_broken_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "outcomes.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as parquet"):
        read_results(path)


def changed_design(tmp_path: Path, name: str, change: Callable[[str], str]) -> Path:
    for each in ("claims.yaml", "arms.yaml", TUNED):
        shutil.copy(FOLDER / each, tmp_path / each)
    (tmp_path / name).write_text(change((tmp_path / name).read_text()))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "old", "new", "problem"),
    [
        ("claims.yaml", "arm: pivotrl, baseline: sft", "arm: pivot, baseline: sft", "names the arm pivot, which"),
        ("claims.yaml", "arm: pivotrl, baseline: sft", "arm: sft, baseline: sft", "sft cannot be compared with itself"),
        ("claims.yaml", "above: -0.02", "above: 0.03", "above 0.03 and below 0.02 leave no region"),
        ("claims.yaml", "above: 2.0", "above: -2.0", "bounds of turns are factors above 0, got -2"),
        ("claims.yaml", "measure: turns, tasks: domains, arm: pivotrl", "measure: turns, tasks: domains, arm: sft",
         "turns cannot be measured for the arm sft"),
        ("claims.yaml", "alpha: 0.05", "alpha: 5", "claims.yaml.alpha: Input should be less than 1, got 5"),
        ("claims.yaml", "alpha: 0.05", "alpha: [", "is no YAML"),
        ("claims.yaml", ", above: 0.0}", "}", "a part needs above, below, or both"),
        ("arms.yaml", "seeds: [1, 2, 3]", "seeds: [0, 1]", "must not contain tuning_seed"),
        ("arms.yaml", "seeds: [1, 2, 3]", "seeds: [1, 1]", "seeds must not repeat"),
        ("arms.yaml", "5.0e-4, num_epochs: 6}\n  - {name: p", "5.0e-4}\n  - {name: p", "arms of the kind sft have"),
        ("arms.yaml", "name: strict, kind: turns", "name: pivotrl, kind: turns", "two arms have the same name"),
        ("arms.yaml", "kind: none", "kind: none, step_factor: 2", "the kind none has no steps, so no step_factor"),
        ("arms.yaml", "num_outside: 100", "num_outside: 1001", "arms.yaml.num_outside"),
        ("arms.yaml", "kind: tasks", "kind: tasks, rows: random", "rows and reward are settings of the kind turns"),
        ("arms.yaml", "kind: tasks", "kind: tasks, recipe: published", "the recipe published needs the kind turns"),
        ("arms.yaml", "rows: random}", "rows: random, recipe: roc}", "the recipe roc needs the kind tasks"),
        ("arms.yaml", "rows: random}", "rows: random, after: pivotrl}", "only the kind tasks goes on after another"),
        ("arms.yaml", "after: pivotrl", "after: sft", "after must be one of pivotrl, random_turns, strict"),
        ("arms.yaml", "num_steps: 8", "num_steps: 8\nmore: 1", "arms.yaml.more: unknown key; known: arms"),
        ("arms.yaml", "seeds: [1, 2, 3]", "seeds: [-1, 2]", "arms.yaml.seeds"),
        ("arms.yaml", "  tasks: [{learning_rate: 2.0e-4}, ", "  tasks: [", "all kinds of arms need the same number"),
        ("arms.yaml", "{learning_rate: 5.0e-4, num_epochs: 6}", "{learning_rate: 5.0e-4}", "tries of the kind sft"),
        ("arms.yaml", "  turns: [{learning_rate: 2.0e-4}, {", "  none: [{learning_rate: 2.0e-4}, {",
         "tries need a list for each of sft, tasks, turns"),
        ("claims.yaml", "arms: [pivotrl, random_turns]", "arms: [pivotrl, random]", "a measure names the arm random"),
        ("claims.yaml", "arms: [pivotrl, random_turns]", "arms: [pivotrl, sft]",
         "reward_variance cannot be measured for the arm sft"),
        ("claims.yaml", "name: miss_rate", "name: no_signal", "two measures have one name"),
        ("arms.yaml", "group_size: 8", "group_size: 1", "arms.yaml.group_size"),
    ],
)  # fmt: skip
def test_a_wrong_design_is_refused_with_the_reason(tmp_path: Path, name: str, old: str, new: str, problem: str) -> None:
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    with pytest.raises(ConfigError) as error:
        read_design(changed_design(tmp_path, name, change))
    assert problem in str(error.value)


def test_a_design_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_design(tmp_path)


def test_a_change_of_what_decides_outcomes_changes_their_hash(tmp_path: Path) -> None:
    changed = changed_design(tmp_path, "arms.yaml", lambda text: text.replace("num_steps: 8", "num_steps: 9"))

    assert read_design(changed).digest != read_design().digest
    assert read_design(changed, is_tuning=True).digest != read_design(is_tuning=True).digest
    assert len(read_design().digest) == 12


def test_a_claim_of_another_file_may_have_one_bound() -> None:
    part = {"measure": "seconds", "tasks": "domains", "arm": "a", "baseline": "b", "below": 1.5}
    claims = Claims.model_validate(
        {"alpha": 0.1, "claims": [{"name": "x", "text": "x", "paper": "x", "parts": [part]}]}
    )

    assert claims.claims[0].parts[0].region == (-math.inf, pytest.approx(math.log(1.5)))


@pytest.mark.heavy
def test_the_interval_over_tasks_covers_the_trainings_that_were_run_and_that_over_trainings_all() -> None:
    """Of 100 studies 95 +- 2.2 (standard deviation) should be covered; 0.88 lies three deviations below."""
    alike = coverage(SimulatedStudies(gain=0.04, spread=0.0, num_studies=100))
    unlike = coverage(SimulatedStudies(gain=0.0, spread=0.03, num_studies=100))

    assert alike.these_trainings > 0.88
    assert alike.over_tasks > 0.88
    assert alike.over_trainings > 0.88
    assert unlike.these_trainings > 0.88
    assert unlike.over_trainings > 0.88
    assert unlike.over_tasks < 0.8  # it leaves out the spread of trainings


@pytest.mark.heavy
def test_a_gain_of_four_points_is_claimed_and_none_seldom() -> None:
    assert coverage(SimulatedStudies(gain=0.04, spread=0.0, num_studies=100)).claimed > 0.9
    assert coverage(SimulatedStudies(gain=0.0, spread=0.0, num_studies=100)).claimed < 0.1


def test_the_table_of_simulated_studies_has_a_row_for_each_truth() -> None:
    lines = coverage_table(num_studies=2).splitlines()

    assert [line.split(" | ")[:2] for line in lines[2:]] == [
        [f"| {gain}", spread] for gain in (0, 4) for spread in ("0", "1", "3")
    ]


@pytest.mark.parametrize(
    ("name", "outcomes_change", "measures_change"),
    [
        ("examples/study/policy.py", True, False),
        ("examples/study/recording.py", True, False),
        ("examples/study/domains/search.py", True, False),
        ("examples/study/tools.yaml", True, False),
        ("examples/quickstart/policy.py", True, False),
        ("examples/study/turn_gains.py", False, True),
        ("examples/study/measures.py", False, True),
        ("examples/study/verdicts.py", False, False),
        ("examples/study/costs.py", False, False),
        ("examples/study/claims.yaml", False, False),
        ("examples/study/page.py", False, False),
        ("examples/evaluated_training.py", False, False),
    ],
)
def test_a_source_is_part_of_the_hash_of_what_it_decides_alone(
    tmp_path: Path, name: str, outcomes_change: bool, measures_change: bool
) -> None:
    for path in (*source_files((*OUTCOME_SOURCES, *MEASUREMENT_SOURCES)), PROJECT / name):
        (tmp_path / path.relative_to(PROJECT)).parent.mkdir(exist_ok=True, parents=True)
        shutil.copy(path, tmp_path / path.relative_to(PROJECT))
    design = read_design()
    assert read_design(project=tmp_path) == design

    (tmp_path / name).write_text((tmp_path / name).read_text() + "\n")

    changed = read_design(project=tmp_path)
    assert (changed.digest != design.digest) is outcomes_change
    assert (changed.measured_by != design.measured_by) is measures_change


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("claims.yaml", "above: 2.0", "above: 3.0"),
        ("arms.yaml", "seeds: [1, 2, 3]", "seeds: [1, 2, 3, 4]"),
        ("arms.yaml", "num_validation: 100", "num_validation: 200"),
        ("arms.yaml", "# samples of a prompt", "# of a prompt"),
        ("arms.yaml", "num_measured_turns: 200", "num_measured_turns: 100"),
    ],
)
def test_what_decides_no_outcome_of_a_seed_is_no_part_of_the_outcomes_hash(
    tmp_path: Path, name: str, old: str, new: str
) -> None:
    changed, design = read_design(changed_design(tmp_path, name, lambda text: text.replace(old, new))), read_design()

    assert (tmp_path / name).read_text() != (FOLDER / name).read_text()
    assert changed.digest == design.digest
    assert (changed.measured_by != design.measured_by) is ("num_measured_turns" in old)


def test_every_source_that_a_hash_covers_is_there() -> None:
    assert all(list(PROJECT.glob(pattern)) for pattern in (*OUTCOME_SOURCES, *MEASUREMENT_SOURCES))
