"""Answers for a judge to learn from: principles with their quotations stand before the scores."""

import json
from fractions import Fraction
from typing import Any

from verl_pivot.rewards.principle_answers import decoded_answer, read_principles_answer
from verl_pivot.rewards.principles import PrincipleSet, quotable
from verl_pivot.types import JsonObject

_MAX_PLAIN_MAXIMUM = 1000
"""Largest maximum of a score in the form `released`, which is written in whole numbers: 0.75 is 3 of 4."""


def plain_answer(score: float, turn_text: str, principle_set: PrincipleSet) -> str:
    """An answer with this score for every principle, and no reasoning, in the form that a judge is asked for."""
    quotation = quotable(turn_text)
    if principle_set.form == "released":
        shown = "; ".join(f'{each.name}: "{quotation}" {10.0 * score:.1f} of 10' for each in principle_set.principles)
        share = Fraction(score).limit_denominator(_MAX_PLAIN_MAXIMUM)
        return f"Analysis: {shown}\nScores: <final_score>{share.numerator},{share.denominator}</final_score>"
    scores = [
        {"name": each.name, "quotation": quotation, "score": 10.0 * score, "maximum": 10.0}
        for each in principle_set.principles
    ]
    return json.dumps({"principles": scores})


def ordered_answer(text: str, principle_set: PrincipleSet) -> str:
    """A valid answer whose principles each have their name and quotation before the score.

    JSON is rewritten in that order, without any text around it. In the form `released` the analysis stands before the
    score anyway, and the text is returned unchanged.
    """
    return text if principle_set.form == "released" else json.dumps(_ordered(text))


def pair_answer(first: str, second: str, principle_set: PrincipleSet) -> str:
    """The answer about a pair of turns that holds these two answers."""
    if principle_set.form == "released":
        return f"{first}\n{second}"
    return json.dumps({"first": _ordered(first), "second": _ordered(second)})


def _ordered(text: str) -> JsonObject:
    written: Any = read_principles_answer(decoded_answer(text)).model_dump()
    return {"principles": written["principles"]}
