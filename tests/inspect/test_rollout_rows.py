"""Lines that agent loops and replay buffers write -> what `inspect` lists and opens: nothing is lost on the way."""

import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.dumped_runs import read_index, write_run
from verl_pivot.data.rollout_dumps import (
    DumpedOutcome,
    DumpedStep,
    DumpedTurn,
    LeftOut,
    encode_line,
    encode_prompt,
    encode_transcript,
    without_texts,
)
from verl_pivot.data.rollout_records import CallRecord, CallStatus, RolloutRecord, RoutingCost, SearchRecord, StopReason
from verl_pivot.inspect.opened import open_rollout
from verl_pivot.types import ErrorKind

TEXTS = st.text(st.characters(), max_size=12) | st.sampled_from(["\ud800", "\u2028", "\x00", '"', "x" * 250])
COUNTS = st.integers(0, 1 << 40)
SECONDS = st.floats(0, 1e6)
VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
STEPS = st.builds(
    DumpedStep, has_form=st.booleans(), ran=st.booleans(), num_outputs=COUNTS, num_errors=COUNTS,
    step_return=st.none() | SECONDS, is_trimmed=st.booleans(), was_restarted=st.booleans(),
)  # fmt: skip
TURNS = st.builds(
    DumpedTurn, text=TEXTS, num_tokens=COUNTS, ended=st.booleans(),
    observations=st.lists(TEXTS, max_size=2).map(tuple), seconds=st.none() | SECONDS, tool_seconds=st.none() | SECONDS,
    step=st.none() | STEPS,
)  # fmt: skip


@dataclass
class Written:
    """One rollout with everything that its line in the dump is made of."""

    outcome: DumpedOutcome
    record: RolloutRecord
    row: dict[str, Any]
    turns: list[DumpedTurn]
    prompt: list[dict[str, Any]]
    mask: list[int]
    has_texts: bool

    @property
    def line(self) -> bytes:
        """The rollout's line in the dump."""
        ends = [0] * len(self.turns)
        transcript = encode_transcript(self.row, self.record, self.turns, self.mask, ends)
        if self.has_texts:
            return encode_line(self.outcome, transcript, encode_prompt(self.prompt))
        return encode_line(self.outcome, without_texts(transcript))


@st.composite
def records(draw: st.DrawFn, num_turns: int) -> RolloutRecord:
    """A record whose calls belong to its turns."""
    call = st.builds(
        CallRecord, turn=st.integers(0, max(0, num_turns - 1)), name=TEXTS,
        arguments=st.none() | st.dictionaries(TEXTS, VALUES, max_size=2), status=st.sampled_from(CallStatus),
        error_kind=st.none() | st.sampled_from(ErrorKind), seconds=SECONDS, num_tokens=COUNTS, truncated=st.booleans(),
        reward=st.none() | SECONDS, detail=TEXTS,
    )  # fmt: skip
    return RolloutRecord(
        prompt_id=draw(st.text("0123456789abcdef", min_size=16, max_size=16)),
        stop_reason=draw(st.sampled_from(StopReason)),
        calls=tuple(draw(st.lists(call, max_size=3 if num_turns else 0))),
        turn_tokens=tuple(draw(st.lists(COUNTS, min_size=num_turns, max_size=num_turns))),
        prompt_tokens=draw(COUNTS), response_tokens=draw(COUNTS), generate_seconds=draw(SECONDS),
        tool_seconds=draw(SECONDS), num_answers=draw(st.none() | COUNTS), text_differs=draw(st.booleans()),
        journey=draw(st.none() | st.builds(RoutingCost, wait_seconds=SECONDS, num_moves=COUNTS)),
        oldest_weights=draw(st.none() | COUNTS), newest_weights=draw(st.none() | COUNTS), failure=draw(TEXTS),
        answer=draw(st.none() | TEXTS), num_trims=draw(COUNTS),
        search=draw(st.none() | st.builds(SearchRecord, gain=st.none() | SECONDS, extra_tokens=COUNTS)),
    )  # fmt: skip


@st.composite
def rollouts(draw: st.DrawFn) -> Written:
    turns = draw(st.lists(TURNS, max_size=3))
    outcome = DumpedOutcome(
        uid="a_0_0", step=draw(st.none() | st.integers(0, 10**6)), score=draw(st.none() | st.floats(0, 1)),
        verifier=draw(st.none() | TEXTS), reason=draw(TEXTS), detail=draw(TEXTS), is_kept=draw(st.booleans()),
        left_out=draw(st.none() | st.sampled_from(LeftOut)),
        reward_info=draw(st.dictionaries(st.sampled_from(["acc", "mine"]), VALUES)),
    )  # fmt: skip
    row = draw(st.fixed_dictionaries({
        "trajectory_id": st.none() | TEXTS, "turn_index": st.none() | COUNTS, "data_source": st.none() | TEXTS,
    }))  # fmt: skip
    message = st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": TEXTS})
    return Written(
        outcome=outcome, record=draw(records(len(turns))), row=row, turns=turns,
        prompt=draw(st.lists(message, min_size=1, max_size=2)),
        mask=draw(st.lists(st.sampled_from([0, 1]), max_size=6)),
        has_texts=draw(st.booleans()),
    )  # fmt: skip


def listed_id(text: str | None) -> str | None:
    """An id as a column holds it, with escapes in place of lone surrogates; None stays None."""
    return text.encode(errors="backslashreplace").decode() if text is not None else None


def listed_text(text: str | None) -> str | None:
    """The beginning of a text as a column holds it; None stays None."""
    listed = listed_id(text)
    return None if listed is None else listed[:200]


def names(values: list[str]) -> str:
    return ",".join(dict.fromkeys(listed_text(each) or "" for each in values if each))


def plain(value: Any) -> Any:
    return json.loads(json.dumps(msgspec.to_builtins(value)))


@settings(max_examples=60)
@given(rollouts())
def test_every_rollout_that_can_be_written_is_listed_and_opened_with_nothing_lost(written: Written) -> None:
    outcome, record, turns = written.outcome, written.record, written.turns
    with TemporaryDirectory() as folder:
        index = read_index(write_run(Path(folder), {7: [written.line]}))
        (found,) = index.rows([0])
        opened = open_rollout(index, found)
        problems = index.problems

    row = found.row
    assert problems == []
    assert (row.uid, row.group_name, row.step) == ("a_0_0", "a", 7 if outcome.step is None else outcome.step)
    assert (row.score, row.kept, row.left_out) == (outcome.score, outcome.is_kept, outcome.left_out)
    assert (row.verifier, row.reason) == (listed_text(outcome.verifier), listed_text(outcome.reason) or None)
    assert row.detail == (listed_text(outcome.detail) or None)
    assert row.failure == (listed_text(record.failure) or None)
    assert (row.prompt_id, row.stop_reason) == (record.prompt_id, record.stop_reason)
    assert row.trajectory_id == listed_id(written.row["trajectory_id"])
    assert (row.turn_index, row.data_source) == (written.row["turn_index"], listed_text(written.row["data_source"]))
    assert (row.num_turns, row.num_calls, row.num_errors) == (len(turns), record.num_calls, record.num_tool_errors)
    assert row.sampled_tokens == (sum(record.turn_tokens) if turns else None)
    assert (row.prompt_tokens, row.response_tokens) == (record.prompt_tokens, record.response_tokens)
    assert (row.generate_seconds, row.tool_seconds) == (record.generate_seconds, record.tool_seconds)
    assert row.tools == names([call.name for call in record.calls])
    assert row.error_kinds == names([call.error_kind or "" for call in record.calls])

    line = json.loads(written.line)
    shown = {"turns", "calls", "prompt", "sampled_spans", "turn_ends"}
    assert opened.fields == {name: value for name, value in line.items() if name not in shown}
    assert opened.prompt == (written.prompt if written.has_texts else [])
    assert [call for turn in opened.turns for call in turn.calls] == sorted(
        plain(record.calls), key=lambda call: int(call["turn"])
    )
    for each, turn in zip(opened.turns, turns, strict=True):
        assert each.has_text is written.has_texts
        if written.has_texts:
            assert (each.text, each.observations) == (turn.text, list(turn.observations))
        assert (each.num_tokens, each.ended) == (turn.num_tokens, turn.ended)
        assert (each.seconds, each.tool_seconds) == (turn.seconds, turn.tool_seconds)
        assert each.step == (None if turn.step is None else plain(turn.step))
    (tokens,) = opened.rows
    assert (tokens.num_turns, tokens.turn_ends) == (len(turns), [0] * len(turns))
    assert [list(span) for span in tokens.sampled_spans] == line["sampled_spans"]
