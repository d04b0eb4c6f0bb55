"""Row of a task and a verifier -> the Turn that the verifier judges, with the ground truth as the right answer."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from verl_pivot.data.json_values import as_object, decode_json, encode_json
from verl_pivot.data.labels import answers_of_truth, ground_truth_of, plain_truth
from verl_pivot.data.messages import parse_message
from verl_pivot.errors import DataError
from verl_pivot.types import Json, JsonObject, Message, Role, Turn
from verl_pivot.verifiers.extraction import AnswerPlace, extract_answers

_COMBINING = frozenset({"first_decided", "weighted"})
"""Verifiers whose option `verifiers` holds other verifiers with their options."""
_ANSWER_OPTION = {"qa": "answers", "math": "answer"}
"""{verifier: its option for the right answer}"""
_PLACES: Mapping[str, AnswerPlace] = {
    "answer_tag": "answer_tag",
    "boxed_in_answer_tag": "answer_tag",
    "boxed": "boxed",
}
"""{option `place`: where a ground truth, too, may hold the answer}; elsewhere the whole text is the answer."""
_DEFAULT_PLACE = {"qa": "answer_tag", "math": "boxed"}


def turn_of_task(row: Mapping[str, Any], verifier: str, options: JsonObject | None) -> Turn:
    """A row of a task as a turn whose expert answers with the row's ground truth.

    Args:
        row: Columns of the row.
        verifier: Name of the verifier that judges the turn.
        options: Options of the verifier; None for those of the row, if the row names this verifier.

    Raises:
        DataError: If a column cannot be read, the prompt does not end before a turn of the assistant, or the verifier
            cannot take the ground truth.
    """
    truth = ground_truth_of(row)
    state = tuple(parse_message(dict(message)) for message in row["raw_prompt"])
    if not state or state[-1].role is Role.ASSISTANT:
        raise DataError(
            "a verifier of pivot.rewards judges the assistant's turn behind the prompt, but the prompt is empty or "
            "ends with a message of the assistant: end it with one of the user or of a tool"
        )
    if options is None:
        options = _object_in(row, "verifier_options") if row.get("verifier") == verifier else {}
    return Turn(
        trajectory_id=str(row.get("index", "task")),
        index=0,
        state=state,
        expert=Message(role=Role.ASSISTANT, content=_text_of(truth)),
        verifier=verifier,
        verifier_options=_with_truth(verifier, options, truth),
        metadata=_object_in(row, "metadata") if isinstance(row.get("metadata"), str) else {},
    )


def _object_in(row: Mapping[str, Any], column: str) -> JsonObject:
    """Object in a column of a row, which may be JSON text; empty if the row has no such column."""
    value = row.get(column)
    if value is None:
        return {}
    return as_object(decode_json(value, what=column) if isinstance(value, str) else plain_truth(value), column)


def _text_of(truth: Any) -> str:
    """Text of a ground truth: its only answer, or else the whole truth as JSON."""
    plain = plain_truth(truth)
    target = plain["target"] if isinstance(plain, dict) and "target" in plain else plain
    only = target[0] if isinstance(target, list) and len(target) == 1 else target
    if only is None:
        return ""
    return only if isinstance(only, str) else encode_json(only)


def _with_truth(verifier: str, options: JsonObject, truth: Any) -> JsonObject:
    """Options in which each `qa` and `math` without a right answer has that of the ground truth."""
    parts = options.get("verifiers")
    if verifier in _COMBINING and isinstance(parts, list):
        return {**options, "verifiers": [_part_with_truth(part, truth) for part in parts]}
    key = _ANSWER_OPTION.get(verifier)
    if key is None or options.get(key):
        return options
    place = _PLACES.get(str(options.get("place", _DEFAULT_PLACE[verifier])), "all")
    answers = [each for text in answers_of_truth(truth) for each in extract_answers(text, place) or (text,)]
    if verifier == "qa":
        return {**options, key: list[Json](answers)}
    if (num_answers := len(set(answers))) > 1:
        raise DataError(
            f"the verifier math takes one right answer, but reward_model.ground_truth gives {num_answers}: correct the "
            "row, or give the answer in the verifier's options"
        )
    return {**options, key: answers[0]} if answers else options


def _part_with_truth(part: Json, truth: Any) -> Json:
    """One verifier of several, with the ground truth in its options; a part that is none is left to its verifier."""
    if not isinstance(part, dict) or not isinstance(options := part.get("options", {}), dict):
        return part
    return {**part, "options": _with_truth(str(part.get("name")), options, truth)}


def with_verifier(turn: Turn, verifier: str, options: JsonObject | None) -> Turn:
    """The turn of a pivot, judged by a verifier of a term.

    Args:
        turn: The turn, with the verifier that its row names.
        verifier: Name of the verifier that judges the turn.
        options: Options of the verifier; None for those of the row, if the row names this verifier.
    """
    if options is None:
        options = turn.verifier_options if turn.verifier == verifier else {}
    return replace(turn, verifier=verifier, verifier_options=options)
