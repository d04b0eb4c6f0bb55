"""Messages and a form -> messages that ask for it; an answer -> the form, or what is wrong with the answer."""

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
    """JSON schema of a form, made once."""
    return form.model_json_schema()


@cache
def _order(form: type[BaseModel]) -> str:
    schema = json.dumps(schema_of(form), sort_keys=True)
    return f"\n\nAnswer with one JSON object in a fenced block (```json), which fits this JSON schema:\n{schema}"


def asked_for(
    form: type[BaseModel], messages: Sequence[JsonObject], answer_format: AnswerFormat
) -> tuple[JsonObject, ...]:
    """The messages; if the endpoint takes no JSON schema, the form stands at the end of the last one."""
    if answer_format == "json_schema" or not messages:
        return tuple(messages)
    return (*messages[:-1], {**messages[-1], "content": f"{messages[-1].get('content') or ''}{_order(form)}"})


def read_form(form: type[AnswerFormT], answer: ChatAnswer) -> AnswerFormT | Malformed:
    """The answer as its form; several fenced blocks are refused, since nobody knows which one is meant."""
    if answer.finish_reason == "length":
        return Malformed(reason="truncated_answer", detail=f"cut off after {answer.num_completion_tokens} tokens")
    text = answer.text.rpartition(_THINKING_END)[2].strip()
    blocks = _FENCED.findall(text)
    if len(blocks) > 1:
        return Malformed(reason="several_answers", detail=f"{len(blocks)} fenced blocks")
    try:
        return form.model_validate(decode_json(blocks[0] if blocks else text, what="the answer"))
    except BadRowError as error:
        return Malformed(reason="unreadable_answer", detail=str(error))
    except ValidationError as error:
        return Malformed(reason="answer_of_other_form", detail=first_problem(error, model=form))
