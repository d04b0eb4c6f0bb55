"""Results of calls -> whether they report an error."""

import re
from typing import Annotated

from pydantic import AfterValidator

from verl_pivot.data.json_values import BadRowError, decode_json
from verl_pivot.types import Message


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    return pattern


Pattern = Annotated[str, AfterValidator(_compiles)]

ERROR_PATTERN = r"(?i)^\s*(error|exception|traceback)\b"
_FAILURES = {"error": True, "errors": True, "is_error": True, "isError": True, "success": False, "ok": False}
"""Keys of a JSON result that say what came of a call -> whether a true value there means failure."""


class ErrorSigns:
    """Tells results that report an error: by their text, or by a key of the JSON object that they are."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern)

    def are_in(self, result: Message) -> bool:
        text = result.content
        return bool(self._pattern.search(text)) or _object_fails(text)


def _object_fails(text: str) -> bool:
    if not text.lstrip().startswith("{") or not any(f'"{key}"' in text for key in _FAILURES):
        return False
    try:
        value = decode_json(text)
    except BadRowError:  # the text only looks like JSON
        return False
    assert isinstance(value, dict), value
    return any(bool(value[key]) == failing for key, failing in _FAILURES.items() if key in value)
