"""Overrides of printed launches: values -> texts that Hydra's grammar reads as the same values; common sizes."""

import json
import re

from verl_pivot.types import Json

_PLAIN = re.compile(r"(?!(?:true|false|null|inf|nan)$)[a-z_/.][\w/.:+@?-]*", re.ASCII | re.IGNORECASE)
"""Values that Hydra's grammar reads as a text without quotes."""
_BEFORE_QUOTE = re.compile(r"(?<!\\)(\\*)('|$)")
"""Backslashes before a quote or the end: only these are special in Hydra's quoted texts."""
LARGEST_BATCH = 64
"""Pivots per step of `+method=pivotrl`."""
TOKENS_PER_GPU = 16_384
"""Tokens of a micro-batch in verl's default."""


def override_value(value: Json) -> str:
    """A value as Hydra's grammar of overrides reads it; texts are quoted where the grammar requires it."""
    match value:
        case str():
            if _PLAIN.fullmatch(value):
                return value
            return f"'{_BEFORE_QUOTE.sub(_escaped, value)}'"
        case dict():
            return "{" + ",".join(f"{key}:{override_value(each)}" for key, each in value.items()) + "}"
        case list():
            return "[" + ",".join(map(override_value, value)) + "]"
        case True | False | None:
            return json.dumps(value)
    return str(value)


def model_for_verl(model: str) -> str:
    """A model as verl takes it: a folder without slashes at its end, as completion in a shell writes them."""
    return model.rstrip("/")


def _escaped(found: re.Match[str]) -> str:
    return 2 * found[1] + ("\\'" if found[2] else "")
