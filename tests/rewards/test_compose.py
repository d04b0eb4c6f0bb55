"""Composition: rewards by hand, which rollouts pay costs, what makes a rollout undecided, and files it refuses."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.configuration import configs_dir
from verl_pivot.data.rollout_records import CallRecord, CallStatus, RolloutRecord, StopReason
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.rewards.compose import ComposedReward, Composition, TermValue, compose
from verl_pivot.rewards.compose_settings import read_composition, reward_presets, sums_of
from verl_pivot.rewards.reward_terms import dumped_terms, paid_keys, term_metrics, terms_text
from verl_pivot.rewards.task_turns import turn_of_task
from verl_pivot.rewards.term_values import VALUES, RolloutFacts, ValueLimits
from verl_pivot.types import ErrorKind, JsonObject

LIMITS = ValueLimits(max_turns=10, max_calls=160, max_tokens=8192)


@pytest.mark.parametrize("prompt", [[], [{"role": "user", "content": "?"}, {"role": "assistant", "content": "So"}]])
def test_a_prompt_that_no_turn_of_the_assistant_follows_is_the_rows_fault(prompt: list[JsonObject]) -> None:
    with pytest.raises(DataError, match=r"^a verifier of pivot\.rewards judges the assistant's turn behind the prompt"):
        turn_of_task({"raw_prompt": prompt, "reward_model": {"ground_truth": "Paris"}}, "qa", {})


def known(**values: float | None) -> Mapping[str, TermValue]:
    return {
        name: TermValue(
            value=value, reason="" if value is not None else "judge_failed", detail="down" * (value is None)
        )
        for name, value in values.items()
    }


def total(name: str, **values: float | None) -> float | None:
    return compose(read_composition(name), known(**values), 10).total


def paid(reward: ComposedReward) -> dict[str, float]:
    return {term.name: term.paid for term in reward.terms}


def call(turn: int, status: CallStatus = CallStatus.OK, kind: ErrorKind | None = None, **arguments: Any) -> CallRecord:
    return CallRecord(turn=turn, name="add", arguments=arguments, status=status, error_kind=kind)


def record(
    *calls: CallRecord, turns: int = 3, stop: StopReason = StopReason.ANSWERED, **last_turn: Any
) -> RolloutRecord:
    return RolloutRecord(
        **last_turn,
        prompt_id="p",
        stop_reason=stop,
        calls=calls,
        turn_tokens=(5,) * turns,
        prompt_tokens=1,
        response_tokens=1,
        generate_seconds=0,
        tool_seconds=0,
    )


def value(name: str, facts: RolloutRecord) -> float | None:
    return VALUES[name].of(RolloutFacts(record=facts)).value


def written(folder: Path, text: str) -> str:
    path = folder / "rewards.yaml"
    path.write_text(text)
    return str(path)


def test_the_course_by_hand() -> None:
    """1 - 0.1 * 4 / 10 - 0.5 for a right answer in a wrong form; a failure pays no costs."""
    assert total("course", task=1.0, turns=4.0, format=0.0) == pytest.approx(0.46)
    assert total("course", task=1.0, turns=4.0, format=1.0) == pytest.approx(0.96)
    assert total("course", task=0.0, turns=9.0, format=0.0) == 0.0


def test_costs_are_charged_on_failures_where_the_file_says_so(tmp_path: Path) -> None:
    name = written(tmp_path, "preset: course\nterms:\n  turns: {paid_on: all}\n  format: {paid_on: all}\n")

    assert total(name, task=0.0, turns=9.0, format=0.0) == pytest.approx(-0.59)


def test_dimensions_by_hand() -> None:
    """0.5 + 0.3 (0.4 * 0.5 + 0.3 * 1 + 0.3 * 0) + 0.2 (1 - 5 / 10)."""
    values = {"effective_calls": 0.5, "coherence": 1.0, "recovery": 0.0, "efficiency": 5.0}

    assert total("dimensions", completion=1.0, **values) == pytest.approx(0.5 + 0.15 + 0.1)
    assert total("dimensions", completion=0.0, **values) == pytest.approx(0.15)


def test_giving_up_at_once_earns_nothing_by_dimensions() -> None:
    gave_up = RolloutFacts(record=record(turns=1), outcome=TermValue(value=0.0))
    terms = {
        "completion": "outcome",
        "effective_calls": "",
        "coherence": "fresh_calls",
        "recovery": "",
        "efficiency": "turns",
    }
    values = {name: VALUES[source or name].of(gave_up) for name, source in terms.items()}

    assert compose(read_composition("dimensions"), values, 10).total == 0.0


def test_the_other_presets_by_hand() -> None:
    assert total("outcome", task=0.25) == 0.25
    assert total("rubric", rubric=-0.5) == -0.5
    assert total("search_r1", match=1.0) == 1.0
    assert total("search_cost", match=1.0, searches=3.0) == pytest.approx(0.85)
    assert total("search_cost", match=0.0, searches=3.0) == 0.0
    assert total("toolrl", format=1.0, correct=0.5) == pytest.approx(1.0)
    assert total("toolrl", format=0.0, correct=0.0) == pytest.approx(-3.0)
    assert total("l0", right=1.0, answered=1.0, format=1.0, execution=0.5) == pytest.approx(0.95)
    assert total("dr_tulu", rubric=0.5, citations=1.0, format=1.0, searches=2.0) == pytest.approx(0.25 + 0.4 + 0.2 / 3)
    assert total("dr_tulu", rubric=0.5, citations=1.0, format=1.0, searches=9.0) == pytest.approx(0.75)
    assert total("dr_tulu_uncited", rubric=0.5, format=1.0, searches=3.0) == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("name", "worst", "best"),
    [
        ("course", 0.0, 1.0),
        ("dimensions", 0.0, 0.98),
        ("l0", 0.0, 1.0),
        ("search_r1", 0.0, 1.0),
        ("search_cost", 1 - 0.05 * 160, 1.0),
        ("toolrl", -3.0, 4.0),
        ("outcome", -math.inf, math.inf),
        ("rubric", -math.inf, math.inf),
        ("dr_tulu", -math.inf, math.inf),
        ("dr_tulu_uncited", -math.inf, math.inf),
    ],
)
def test_the_worst_and_the_best_sum_of_each_preset(name: str, worst: float, best: float) -> None:
    sums = sums_of(name, read_composition(name), LIMITS)

    assert (sums.least, sums.largest) == (pytest.approx(worst), pytest.approx(best))


def test_every_preset_is_listed_and_read() -> None:
    assert reward_presets() == tuple(sorted(path.stem for path in (configs_dir() / "rewards").iterdir()))
    for name in reward_presets():
        read_composition(name)


def test_each_term_says_its_share_and_why() -> None:
    reward = compose(read_composition("course"), known(task=1.0, turns=4.0, format=0.0), 10)

    assert [(term.name, term.depth, term.value, term.paid, term.share, term.why) for term in reward.terms] == [
        ("task", 1, 1.0, 1.0, pytest.approx(1 / 1.54), "1 x 1"),
        ("turns", 1, 0.4, pytest.approx(-0.04), pytest.approx(0.04 / 1.54), "-0.1 x 0.4"),
        ("format", 1, 1.0, -0.5, pytest.approx(0.5 / 1.54), "-0.5 x 1"),
    ]
    failed = compose(read_composition("course"), known(task=0.0, turns=4.0, format=0.0), 10)
    assert [term.why for term in failed.terms[1:]] == ["not paid: task is 0, below 1"] * 2


def test_an_undecided_term_makes_the_rollout_undecided_and_is_no_zero() -> None:
    reward = compose(read_composition("dr_tulu"), known(rubric=None, citations=1.0, format=1.0, searches=1.0), 10)

    assert (reward.total, reward.reason, reward.detail) == (None, "judge_failed", "term rubric: down")


def test_an_undecided_term_within_another_makes_the_rollout_undecided() -> None:
    values = known(completion=1.0, effective_calls=None, coherence=1.0, recovery=1.0, efficiency=1.0)

    assert compose(read_composition("dimensions"), values, 10).total is None


def test_an_undecided_term_that_is_not_paid_changes_nothing(tmp_path: Path) -> None:
    text = "terms:\n  task: {value: outcome}\n  rubric: {value: rubric, only_if: {term: task, at_least: 1}}\n"
    name = written(tmp_path, text)

    assert total(name, task=0.0, rubric=None) == 0.0
    assert total(name, task=1.0, rubric=None) is None
    assert total(name, task=1.0, rubric=0.5) == 1.5


def test_a_condition_that_is_not_met_leaves_nothing_to_decide_whatever_stands_before_it(tmp_path: Path) -> None:
    """The cost has two conditions: a quality that is undecided, and a success."""
    quality = "quality: {value: rubric, paid_on: success}"
    cost = "cost: {value: turns, weight: -0.1, only_if: {term: quality, at_least: 0.5}}"
    name = written(tmp_path, f"terms:\n  task: {{value: outcome}}\n  {quality}\n  {cost}\n")
    failed = compose(read_composition(name), known(task=0.0, quality=None, cost=3.0), 5)

    assert failed.total == 0.0
    assert [term.why for term in failed.terms] == ["1 x 0"] + ["not paid: task is 0, below 1"] * 2
    assert total(name, task=1.0, quality=None, cost=3.0) is None
    assert total(name, task=None, quality=0.25, cost=3.0) is None
    assert total(name, task=1.0, quality=0.5, cost=3.0) == pytest.approx(1.2)


def test_a_total_is_held_in_its_bounds_and_says_so(tmp_path: Path) -> None:
    name = written(tmp_path, "bounds: [0, 1]\nterms:\n  a: {value: format}\n  b: {value: recovery, weight: 2}\n")
    reward = compose(read_composition(name), known(a=1.0, b=1.0), 10)

    assert (reward.total, reward.detail) == (1.0, "the sum of 3 is limited to [0.0, 1.0]")
    assert sums_of(name, read_composition(name), LIMITS) == (0.0, 1.0)


WRONG = {
    "terms: {}": "terms: Dictionary should have at least 1 item",
    "x: 1\nterms: {a: {value: turns}}": "x: unknown key; known: bounds, success, terms",
    "terms: {a: {value: turms}}": "terms.a.value: unknown value 'turms'; known values: outcome, ruler,",
    "terms: {a: {}}": "terms.a: a term must have one of value, verifier and terms, got none",
    "terms: {a: {value: turns, terms: {b: {value: calls}}}}": "must have one of value, verifier and terms, got v",
    "terms: {a: {value: turns, weight: 0}}": "terms.a: a term of weight 0 is never paid",
    "terms: {a: {value: turns, weight: .nan}}": "terms.a.weight: Input should be a finite number",
    "terms: {a: {value: turns, bounds: [1, 0]}}": "terms.a: bounds must be the smallest and the largest value",
    "terms: {a: {value: turns, kye: 1}}": "terms.a.kye: unknown key",
    "terms: {a: {value: turns, weight: -1}}": "a term is paid only on success, but no term has the value outcome",
    "terms: {a: {value: format, only_if: {term: b, at_least: 1}}}": "terms.a depends on the unknown term b",
    "terms: {a: {value: format, only_if: {term: b, at_least: 1}}, b: {value: calls, only_if: {term: a, at_least: 1}}}":
        "terms depend on each other in a circle (",
    "terms: {a: {value: format, only_if: {term: a, at_least: 1}}}": "terms depend on each other in a circle (a -> a)",
    "terms: {a: {terms: {b: {value: format, only_if: {term: a, at_least: 1}}}}}": "depend on each other in a circle",
    "terms: {a: {value: format}, b: {terms: {a: {value: turns}}}}": "two terms are called a: give each a name",
    "terms: {a: {verifier: {name: qq}}}": "terms.a.verifier.name: unknown verifier 'qq'; known verifiers: ",
    "terms: {a: {verifier: {name: tool_call, options: {mode: x}}}}": "terms.a.verifier.options: ",
    "terms: {A b: {value: turns}}": "terms.A b: String should match pattern",
    "[]": "has no terms: it must be a YAML file with the key terms",
    "terms: {a: [": "is not valid YAML:",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_a_file_that_contradicts_itself_is_refused_with_key_and_remedy(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_composition(written(tmp_path, text))

    assert str(caught.value).startswith("pivot.rewards: ")
    assert WRONG[text] in str(caught.value)


UNREACHABLE = {
    "bounds: [0, 1]\nterms: {a: {value: format, weight: 0.8}}": "the largest reward of 1 is never reached, since",
    "bounds: [-1, 1]\nterms: {a: {value: format}}": "bounds: the least reward of -1 is never reached",
    "terms: {a: {value: format}, b: {value: turns, only_if: {term: a, at_least: 2}}}": "condition is never met: a",
    "terms: {a: {value: format}, b: {value: turns, only_if: {term: a, at_least: 0}}}": "condition is always met: a",
    "terms: {a: {value: format, bounds: [2, 3]}}": "terms.a.bounds: the value lies between 0 and 1, so that",
}


@pytest.mark.parametrize("text", UNREACHABLE)
def test_weights_and_conditions_that_reach_nothing_are_refused(text: str, tmp_path: Path) -> None:
    name = written(tmp_path, text)

    with pytest.raises(ConfigError) as caught:
        sums_of(name, read_composition(name), LIMITS)

    assert UNREACHABLE[text] in str(caught.value)


def test_a_file_that_is_not_there_is_named_with_the_presets() -> None:
    with pytest.raises(ConfigError, match=r"pivot.rewards=curse: there is no such file .* presets course, dimensions,"):
        read_composition("curse")


def test_a_preset_that_builds_on_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rewards.yaml"
    path.write_text(f"preset: {path}\n")

    with pytest.raises(ConfigError, match="a preset cannot build on itself"):
        read_composition(str(path))


def test_values_of_a_rollout_by_hand() -> None:
    wrong = CallStatus.TOOL_ERROR
    facts = record(call(0, a=1), call(0, a=1), call(1, wrong, ErrorKind.REFUSED, a=2), call(2, a=3), turns=4)

    assert {name: value(name, facts) for name in VALUES} == {
        "outcome": None, "ruler": None, "rubric": None, "process": None, "turns": 4.0, "calls": 4.0, "tokens": 20.0,
        "repeated_calls": 1.0, "tool_errors": 1.0, "format": 1.0, "answered": 1.0, "effective_calls": 0.75,
        "fresh_calls": 0.75, "recovery": 1.0, "citations": 0.0,
    }  # fmt: skip
    assert value("recovery", record(call(0, a=1), call(1, wrong, ErrorKind.REFUSED))) == 0.0


def test_a_rollout_that_cannot_be_read_or_is_cut_off_has_no_form() -> None:
    assert value("format", record(call(1, CallStatus.TOOL_ERROR, ErrorKind.MALFORMED_CALL))) == 0.0
    assert value("format", record(call(1, CallStatus.TOOL_ERROR, ErrorKind.NO_ACTION))) == 0.0
    assert value("calls", record(call(1, CallStatus.TOOL_ERROR, ErrorKind.NO_ACTION))) == 0.0
    assert value("format", record(stop=StopReason.MAX_TURN_TOKENS, is_cut_off=True)) == 0.0
    assert value("format", record(stop=StopReason.MAX_TURNS, unread=ErrorKind.MALFORMED_CALL)) == 0.0
    assert value("format", record(stop=StopReason.MAX_RESPONSE_TOKENS)) == 1.0  # what did not fit was an observation
    assert value("format", record(stop=StopReason.MAX_TURNS)) == 1.0


def test_the_share_of_citations_by_hand() -> None:
    assert value("citations", record(num_citations=4, num_shown_citations=3)) == 0.75


def test_metrics_of_terms_by_hand() -> None:
    """Two groups; within the first the turns differ, in the second one rollout is undecided."""
    course = read_composition("course")
    rewards = [
        compose(course, known(task=task, turns=turns, format=1.0), 10)
        for task, turns in ((1.0, 2.0), (1.0, 4.0), (0.0, 5.0), (None, 5.0))
    ]
    infos = [{"reward_terms": terms_text(each), **paid_keys(each, course.terms)} for each in rewards]
    metrics = term_metrics({"a": infos[:2], "b": infos[2:]})

    assert metrics["rewards/undecided_rate"] == 0.25
    assert metrics["rewards/turns/paid"] == pytest.approx(-0.02)
    assert metrics["rewards/turns/value"] == pytest.approx(11 / 30)
    assert metrics["rewards/turns/spread"] == pytest.approx(0.01)
    assert metrics["rewards/task/spread"] == 0.0
    assert infos[0]["paid/turns"] == pytest.approx(-0.02)
    assert math.isnan(float(infos[3]["paid/turns"]))
    assert term_metrics({"a": [{"score": 1.0}]}) == {}


def test_what_a_row_says_is_read_again() -> None:
    reward = compose(read_composition("course"), known(task=1.0, turns=4.0, format=0.0), 10)
    read = dumped_terms({"reward_terms": terms_text(reward)})

    assert read is not None
    assert (read.total, [term.why for term in read.terms]) == (reward.total, [term.why for term in reward.terms])
    assert dumped_terms({}) is None


@given(st.floats(0, 1), st.integers(1, 10), st.sampled_from([0.0, 1.0]))
def test_no_reward_lies_outside_the_worst_and_the_best_sum(task: float, turns: int, form: float) -> None:
    course = read_composition("course")
    reward = compose(course, known(task=task, turns=float(turns), format=form), 10).total
    sums = sums_of("course", course, LIMITS)

    assert reward is not None
    assert sums.least - 1e-12 <= reward <= sums.largest + 1e-12


def test_a_composition_is_checked_by_its_type() -> None:
    assert Composition.model_validate({"terms": {"a": {"value": "turns"}}}).terms["a"].weight == 1.0
