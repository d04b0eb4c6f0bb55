"""Messages and a form -> messages that ask for this form; an answer -> an instance of the form, or Malformed."""

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from verl_pivot.data.json_values import BadRowError, decode_json
from verl_pivot.engines.chat import AnswerFormat, ChatAnswer
from verl_pivot.types import JsonObject, Malformed
from verl_pivot.validation import first_problem

AnswerFormT = TypeVar("AnswerFormT", bound=BaseModel)
_THINKING_END = "</think>"
_FENCED = re.compile(r"^```(?:json)?[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)


@cache
def schema_of(form: type[BaseModel]) -> JsonObject:
    """JSON schema of a form, which is cached."""
    return form.model_json_schema()


@cache
def _order(form: type[BaseModel]) -> str:
    schema = json.dumps(schema_of(form), sort_keys=True)
    return f"\n\nAnswer with one JSON object in a fenced block (```json), which fits this JSON schema:\n{schema}"


def asked_for(
    form: type[BaseModel], messages: Sequence[JsonObject], answer_format: AnswerFormat
) -> tuple[JsonObject, ...]:
    """The messages; unless the endpoint gets the JSON schema in the request, it is added to the last message."""
    if answer_format == "json_schema" or not messages:
        return tuple(messages)
    return (*messages[:-1], {**messages[-1], "content": f"{messages[-1].get('content') or ''}{_order(form)}"})


def read_form(form: type[AnswerFormT], answer: ChatAnswer) -> AnswerFormT | Malformed:
    """The answer as an instance of the form; several fenced blocks are refused, because they are ambiguous."""
    if answer.finish_reason == "length":
        return Malformed(reason="truncated_answer", detail=f"cut off after {answer.num_completion_tokens} tokens")
    text = answer.text.rpartition(_THINKING_END)[2].strip()
    blocks = _FENCED.findall(text)
    if len(blocks) > 1:
        return Malformed(reason="several_answers", detail=f"{len(blocks)} fenced blocks instead of one")
    try:
        return form.model_validate(decode_json(blocks[0] if blocks else text, what="the answer"))
    except BadRowError as error:
        return Malformed(reason="unreadable_answer", detail=str(error))
    except ValidationError as error:
        return Malformed(reason="answer_of_other_form", detail=first_problem(error, model=form))
