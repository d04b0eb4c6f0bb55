"""Chat messages of a row -> prompt_id, a short digest that links dumps of rollouts to rows of data files."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence

import numpy


def prompt_id(messages: Iterable[Mapping[str, object]]) -> str:
    """16 hexadecimal digits of the SHA-256 of the messages as JSON: keys sorted, keys without a value left out.

    pyarrow, pandas, Hugging Face's datasets and plain lists all give the same id, although parquet gives every
    message the keys of all others, with None as the value.

    Raises:
        TypeError: If a message holds something that JSON cannot hold, such as an image.
    """
    plain = [_plain(message) for message in messages]
    text = json.dumps(plain, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _plain(value: object) -> object:
    """The value with plain lists, dicts and numbers instead of numpy's, and without keys whose value is None."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items() if each is not None}
    if isinstance(value, numpy.ndarray | Sequence) and not isinstance(value, str | bytes):
        return [_plain(each) for each in value]
    return value.item() if isinstance(value, numpy.generic) else value
