"""A row's chat messages -> the short name of the prompt, by which dumps of rollouts and data files find each other."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence

import numpy


def prompt_id(messages: Iterable[Mapping[str, object]]) -> str:
    """16 hexadecimal digits of the SHA-256 of the messages as JSON: keys sorted, those without a value left out.

    It is the same from pyarrow, pandas, Hugging Face's datasets and plain lists: where one message has a key, parquet
    gives it to all others too, as None.

    Raises:
        TypeError: If a message holds what JSON has no form for, such as an image.
    """
    plain = [_plain(message) for message in messages]
    text = json.dumps(plain, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _plain(value: object) -> object:
    """Lists and dicts of what JSON knows, whoever read them."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items() if each is not None}
    if isinstance(value, numpy.ndarray | Sequence) and not isinstance(value, str | bytes):
        return [_plain(each) for each in value]
    return value.item() if isinstance(value, numpy.generic) else value
