"""Result of a call -> whether it reports an error."""

import re
from typing import Annotated

from pydantic import AfterValidator

from verl_pivot.data.json_values import BadRowError, decode_json
from verl_pivot.types import Message


def _check_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    return pattern


Pattern = Annotated[str, AfterValidator(_check_pattern)]
"""Regular expression, checked when options are read."""

ERROR_PATTERN = r"(?i)^\s*(error|exception|traceback)\b"
_FAILURES = {"error": True, "errors": True, "is_error": True, "isError": True, "success": False, "ok": False}
"""{key by which a JSON result shows success or failure: whether a true value means failure}."""


def reports_error(result: Message, pattern: str) -> bool:
    """Whether a result reports an error: it matches the pattern, or is a JSON object with a key that says so."""
    return bool(re.search(pattern, result.content)) or _is_failed_object(result.content)


def _is_failed_object(text: str) -> bool:
    if not text.lstrip().startswith("{") or not any(f'"{key}"' in text for key in _FAILURES):
        return False
    try:
        value = decode_json(text)
    except BadRowError:  # the text only looks like JSON
        return False
    assert isinstance(value, dict), value
    return any(bool(value[key]) == failing for key, failing in _FAILURES.items() if key in value)
