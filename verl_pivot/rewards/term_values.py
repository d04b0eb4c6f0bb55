"""Facts about a finished rollout -> the values that terms of a reward may have, and the range of each value."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from verl_pivot.data.rollout_records import CallStatus, RolloutRecord, StopReason
from verl_pivot.rewards.compose import TermValue
from verl_pivot.rewards.process_record import ProcessRecord
from verl_pivot.rewards.reward_sums import ValueRange
from verl_pivot.types import ErrorKind

_UNREADABLE = frozenset({ErrorKind.MALFORMED_CALL, ErrorKind.NO_ACTION})
_SHARE = ValueRange(0.0, 1.0)
_ANY = ValueRange(-math.inf, math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFacts:
    """Facts about a rollout that was not masked."""

    record: RolloutRecord
    outcome: TermValue | None = None
    """Score by environment, verifier or reward function; None where no term reads it."""
    compared: TermValue | None = None
    """Score by comparison with the others of its prompt; None without `pivot.ruler`."""
    rubric: TermValue | None = None
    """Score by its criteria; None without `pivot.rubrics`."""
    process: ProcessRecord | TermValue | None = None
    """Judge's scores of its turns, or the undecided value of a judge that failed; None without `pivot.process`."""


class ValueLimits(NamedTuple):
    """Limits of every rollout of a launch."""

    max_turns: int
    max_calls: int
    max_tokens: int


class RolloutValue(NamedTuple):
    """One value that a term may have."""

    of: Callable[[RolloutFacts], TermValue]
    range: Callable[[ValueLimits], ValueRange]
    """Range of the value, given the limits of a launch."""
    meaning: str


def _num_repeated(facts: RolloutFacts) -> int:
    """Calls whose tool and arguments are those of an earlier call."""
    named = [
        f"{call.name} {json.dumps(call.arguments, sort_keys=True)}"
        for call in facts.record.made_calls
        if call.arguments is not None
    ]
    return len(named) - len(set(named))


def _num_errors(facts: RolloutFacts) -> int:
    return sum(call.status is CallStatus.TOOL_ERROR for call in facts.record.made_calls)


def _format(facts: RolloutFacts) -> TermValue:
    """1 if every turn could be read and the last turn was not cut off, else 0."""
    record = facts.record
    unreadable = next((call for call in record.calls if call.error_kind in _UNREADABLE), None)
    if unreadable is not None:
        return TermValue(value=0.0, reason=f"turn {unreadable.turn + 1}: {unreadable.error_kind}")
    if record.unread is not None:
        return TermValue(value=0.0, reason=f"turn {len(record.turn_tokens)}: {record.unread}")
    if record.is_cut_off:
        return TermValue(value=0.0, reason=f"cut off: {record.stop_reason.value}")
    return TermValue(value=1.0)


def _recovery(facts: RolloutFacts) -> TermValue:
    """Share of the failed calls after which a call of a later turn succeeded; 1 if no call failed, 0 without calls."""
    failed = [call.turn for call in facts.record.made_calls if call.status is CallStatus.TOOL_ERROR]
    last_right = max((call.turn for call in facts.record.made_calls if call.status is CallStatus.OK), default=-1)
    recovered = sum(turn < last_right for turn in failed)
    if not facts.record.made_calls:
        return TermValue(value=0.0, reason="no calls")
    return TermValue(value=recovered / len(failed) if failed else 1.0, reason=f"{recovered} of {len(failed)} errors")


def _of_calls(number: Callable[[RolloutFacts], int], what: str) -> Callable[[RolloutFacts], TermValue]:
    """Share of the calls that `number` does not count; 0 without calls, since such a rollout shows nothing."""

    def value(facts: RolloutFacts) -> TermValue:
        if not (num_calls := len(facts.record.made_calls)):
            return TermValue(value=0.0, reason="no calls")
        counted = number(facts)
        return TermValue(value=1.0 - counted / num_calls, reason=f"{counted} of {num_calls} calls {what}")

    return value


def _count(number: Callable[[RolloutFacts], int]) -> Callable[[RolloutFacts], TermValue]:
    return lambda facts: TermValue(value=float(number(facts)))


def _given(value: Callable[[RolloutFacts], TermValue | None], what: str) -> Callable[[RolloutFacts], TermValue]:
    return lambda facts: value(facts) or TermValue(value=None, reason="no_value", detail=f"the rollout has no {what}")


def _process(facts: RolloutFacts) -> TermValue:
    """Mean of the judge's scores of the turns before the last."""
    if isinstance(facts.process, TermValue):
        return facts.process
    if facts.process is None:
        return TermValue(value=None, reason="no_value", detail="the rollout's turns were not judged")
    scores = [score for score in facts.process.scores if score is not None]
    if facts.process.scores and not scores:
        return TermValue(value=None, reason="no_valid_answer", detail="; ".join(facts.process.reasons[:1]))
    if not scores:
        return TermValue(value=0.0, reason="no turn before the last")
    return TermValue(value=math.fsum(scores) / len(scores), reason=f"{len(scores)} turns")


def _citations(facts: RolloutFacts) -> TermValue:
    """Share of the ids cited in the last turn that tools showed before; 0 without a citation."""
    num_cited, num_shown = facts.record.num_citations, facts.record.num_shown_citations
    if not num_cited:
        return TermValue(value=0.0, reason="nothing cited")
    return TermValue(value=num_shown / num_cited, reason=f"{num_shown} of {num_cited} cited ids were shown by tools")


def _answered(facts: RolloutFacts) -> TermValue:
    return TermValue(value=float(facts.record.stop_reason is StopReason.ANSWERED), reason=facts.record.stop_reason)


VALUES: Mapping[str, RolloutValue] = {
    "outcome": RolloutValue(
        _given(lambda facts: facts.outcome, "outcome"), lambda _: _ANY,
        "score by the environment, the row's verifier or the reward function",
    ),
    "ruler": RolloutValue(
        _given(lambda facts: facts.compared, "score by comparison, which pivot.ruler gives"), lambda _: _SHARE,
        "score by comparison with the other rollouts of the prompt (`pivot.ruler`)",
    ),
    "rubric": RolloutValue(
        _given(lambda facts: facts.rubric, "score by criteria, which pivot.rubrics gives"), lambda _: _ANY,
        "score by the row's criteria (`pivot.rubrics`)",
    ),
    "process": RolloutValue(
        _process, lambda _: _SHARE, "mean of the judge's scores of the turns before the last (`pivot.process`)"
    ),
    "turns": RolloutValue(
        _count(lambda facts: len(facts.record.turn_tokens)), lambda limits: ValueRange(1.0, limits.max_turns),
        "turns of the policy",
    ),
    "calls": RolloutValue(
        _count(lambda facts: len(facts.record.made_calls)), lambda limits: ValueRange(0.0, limits.max_calls),
        "calls of tools, also those that failed",
    ),
    "tokens": RolloutValue(
        _count(lambda facts: sum(facts.record.turn_tokens)), lambda limits: ValueRange(0.0, limits.max_tokens),
        "tokens that the policy sampled",
    ),
    "repeated_calls": RolloutValue(
        _count(_num_repeated), lambda limits: ValueRange(0.0, max(limits.max_calls - 1, 0)),
        "calls with the tool and the arguments of an earlier call",
    ),
    "tool_errors": RolloutValue(
        _count(_num_errors), lambda limits: ValueRange(0.0, limits.max_calls), "calls that the policy got wrong"
    ),
    "format": RolloutValue(
        _format, lambda _: _SHARE, "1 if every turn could be read and the last was not cut off, else 0"
    ),
    "answered": RolloutValue(_answered, lambda _: _SHARE, "1 if the policy ended the rollout with an answer, else 0"),
    "effective_calls": RolloutValue(
        _of_calls(_num_errors, "failed"), lambda _: _SHARE, "share of the calls that did not fail; 0 without calls"
    ),
    "fresh_calls": RolloutValue(
        _of_calls(_num_repeated, "repeated"), lambda _: _SHARE,
        "share of the calls that repeat no earlier one; 0 without calls",
    ),
    "recovery": RolloutValue(
        _recovery, lambda _: _SHARE,
        "share of the failed calls after which a call of a later turn succeeded; 1 without errors, 0 without calls",
    ),
    "citations": RolloutValue(
        _citations, lambda _: _SHARE,
        'share of the ids that the last turn cites, as in `<cite id="a,b">`, which tools showed before; else 0',
    ),
}  # fmt: skip
"""{name: value} of all values that a term may have, apart from a verifier's score."""
