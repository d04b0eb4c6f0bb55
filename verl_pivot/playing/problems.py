"""Rows of a training file, or a user's text -> Problem: a prompt with the columns that tools and rewards read."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from verl_pivot.data.json_values import BadRowError, as_list, as_object, decode_json, encode_json
from verl_pivot.data.messages import parse_message
from verl_pivot.data.prompts import prompt_id
from verl_pivot.errors import DataError
from verl_pivot.types import JsonObject, Message, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One prompt for a player, with the columns of its row.

    Example:
        Problem(
            id="problems-1", place="problems.parquet, row 1", prompt=(question,), prompt_id="eb140b54fbfdc2a0",
            columns={"metadata": "{}"},
        )
    """

    id: str
    place: str
    """File and row of the problem, for error messages."""
    prompt: tuple[Message, ...]
    prompt_id: str
    """Digest of the row's prompt, which identifies the prompt in dumps of training."""
    columns: Mapping[str, Any]
    """Columns of the row, as training reads them."""


def read_problems(path: Path, num: int | None) -> list[Problem]:
    """The problems in the first `num` rows of a file of training rows; all if `num` is None.

    Raises:
        DataError: If the file cannot be read, or a row has no prompt; the message names the row.
    """
    return list(islice(_problems(path), num))


def _problems(path: Path) -> Iterator[Problem]:
    from verl_pivot.data.files import read_rows  # needs the extra `data`; problems from a text work without it

    for row in read_rows(path):
        try:
            yield problem_of_row(row.decoded(), f"{path.stem}-{row.place.number}", str(row.place))
        except BadRowError as error:
            raise DataError(f"{row.place} cannot be played: {error}") from error


def problem_of_row(columns: JsonObject, name: str, place: str) -> Problem:
    """The problem in a row, whose prompt is a list of messages, or JSON text as in files of `verl-pivot select`.

    Raises:
        BadRowError: If the row has no prompt.
    """
    value = columns.get("prompt")
    listed = as_list(decode_json(value, what="prompt") if isinstance(value, str) else value, "prompt")
    if not listed:
        raise BadRowError("no_prompt", "it has no column `prompt` with a list of chat messages, which training needs")
    messages = tuple(parse_message(message) for message in listed)
    if messages[-1].role is Role.ASSISTANT:
        raise BadRowError("no_prompt", "its prompt ends with the assistant's message; end it before an assistant turn")
    encode_json([message.as_dict() for message in messages])  # refuses text that UTF-8 cannot hold
    digest = prompt_id(as_object(message, "a message") for message in listed)
    return Problem(id=name, place=place, prompt=messages, prompt_id=digest, columns=columns)


def text_problem(text: str, metadata: JsonObject) -> Problem:
    """The problem whose prompt is a user's text.

    Args:
        text: First message of the conversation.
        metadata: Content of the column `metadata`, which environments and tools read.
    """
    prompt = (Message(role=Role.USER, content=text),)
    return Problem(
        id="prompt", place="--prompt", prompt=prompt, prompt_id=prompt_id(message.as_dict() for message in prompt),
        columns={"metadata": encode_json(metadata)},
    )  # fmt: skip
