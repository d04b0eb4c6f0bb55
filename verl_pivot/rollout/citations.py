"""Last turn of a rollout and the results of its calls -> how many ids it cites, and how many of them tools showed."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from verl_pivot.data.rollout_records import CallRecord, CallStatus

_CITED = re.compile(r"<cite\s+id=[\"']([^\"'<>]{1,200})[\"']\s*>", re.IGNORECASE)
_WORD = re.compile(r"[\w-]+")


class CitableTurn(NamedTuple):
    """Calls of one turn, with what the policy read after them."""

    calls: Sequence[CallRecord]
    results: Sequence[str]
    """[num_calls] texts, without the template around them."""


class CitedIds(NamedTuple):
    """Numbers of the different ids that a last turn cites."""

    num_cited: int
    num_shown: int
    """Number of those that the result of a call showed before."""


def cited_ids(last_turn: str, turns: Sequence[CitableTurn]) -> CitedIds:
    """Count the ids in `<cite id="a,b">` of the last turn.

    An id counts as shown if it stands as a word in the result of a call that did not fail, and no argument of that
    call, of one beside it or of an earlier one had named it: results repeat what a call says. An id that was shown
    stays so if the policy names it afterwards.

    Args:
        last_turn: Text of the last turn.
        turns: Calls of the turns before the last.
    """
    cited = {name.strip() for ids in _CITED.findall(last_turn) for name in ids.split(",") if name.strip()}
    open_ids, num_shown = set(cited), 0
    for turn in turns:
        arguments = [text for call in turn.calls for text in _texts_in(call.arguments)]
        open_ids -= _named_in(open_ids, arguments)
        results = [
            result for call, result in zip(turn.calls, turn.results, strict=False) if call.status is CallStatus.OK
        ]
        shown = _named_in(open_ids, results)
        num_shown += len(shown)
        open_ids -= shown
    return CitedIds(len(cited), num_shown)


def _named_in(names: set[str], texts: Sequence[str]) -> set[str]:
    """Names, of these, that a text holds as a word.

    A pattern for each of thousands of names would take seconds: a name without blanks and signs is looked up among the
    words of the texts.
    """
    if not names:
        return set()
    found = names & {word for text in texts for word in _WORD.findall(text)}
    return found | {name for name in names if not _WORD.fullmatch(name) and any(_is_in(name, text) for text in texts)}


def _is_in(name: str, text: str) -> bool:
    return name in text and re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) is not None


def _texts_in(value: Any) -> Iterator[str]:
    """Texts and numbers of a JSON value, names of keys included."""
    if isinstance(value, dict):
        yield from value
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(each)
    elif value is not None:
        yield str(value)
