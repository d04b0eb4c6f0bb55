"""Contrasts between two arms, over the seeds and questions that both arms have."""

from dataclasses import dataclass

import pytest

from examples.comparison import UnitResult
from examples.contrasts import Contrast, contrast_table, contrasted


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    prompt_id: str
    em: float


def unit(
    arm: str, seed: int, held_out: dict[str, float], training: dict[str, float] | None = None
) -> UnitResult[Answer]:
    answers, trained = (
        [Answer(prompt_id=name, em=em) for name, em in (values or {}).items()] for values in (held_out, training)
    )
    return UnitResult(arm=arm, seed=seed, held_out=answers, training={1: trained} if trained else {})


OVER_BASE: Contrast[Answer] = Contrast(arm="gain", over="base", measure="EM", value=lambda each: each.em)


def test_a_contrast_is_over_the_seeds_and_questions_that_both_arms_have() -> None:
    results = [
        unit("base", 0, {"a": 0.0, "b": 1.0, "c": 0.0}), unit("gain", 0, {"a": 1.0, "b": 1.0}),
        unit("base", 1, {"a": 0.0}), unit("gain", 1, {"a": 0.5}), unit("gain", 2, {"a": 1.0}),
    ]  # fmt: skip

    (found,) = contrasted([OVER_BASE], results)

    assert (found.name, found.seeds, found.by_seed) == ("EM, gain over base", (0, 1), (0.5, 0.5))
    assert found.difference.value == pytest.approx((0.75 + 0.0) / 2)  # mean over questions a and b of means over seeds
    assert found.over_trainings == (0.5, 0.5)
    assert contrast_table([found]).row_count == 1


def test_a_contrast_may_be_of_training_and_of_a_part() -> None:
    contrast: Contrast[Answer] = Contrast(
        arm="gain", over="base", measure="EM", value=lambda each: each.em, applies=lambda each: each.prompt_id != "b",
        in_training=True,
    )  # fmt: skip
    results = [unit("base", 0, {}, {"a": 0.0, "b": 1.0}), unit("gain", 0, {}, {"a": 1.0, "b": 0.0})]

    (found,) = contrasted([contrast], results)

    assert (found.difference.value, found.over_trainings) == (1.0, None)


def test_arms_without_a_common_seed_or_question_have_no_contrast() -> None:
    assert contrasted([OVER_BASE], [unit("base", 0, {"a": 1.0}), unit("gain", 1, {"a": 1.0})]) == []
    assert contrasted([OVER_BASE], [unit("base", 0, {"a": 1.0}), unit("gain", 0, {"b": 1.0})]) == []
