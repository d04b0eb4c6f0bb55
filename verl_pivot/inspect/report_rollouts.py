"""ChosenRollout with its texts -> the part of a report's page that shows it turn by turn, within a limit of bytes."""

import json
from collections.abc import Callable, Iterable

from verl_pivot.inspect.html_text import bounded_html
from verl_pivot.inspect.opened import OpenedRollout, OpenedTurn
from verl_pivot.inspect.report_drawing import short_number
from verl_pivot.inspect.report_numbers import ChosenRollout, TrainingReport
from verl_pivot.inspect.report_pieces import cut_note, run_key
from verl_pivot.types import JsonObject

_ROLLOUTS_BYTES = 1_200_000
_ROLLOUT_BYTES = 40_000
_TURN_BYTES = 3_000
"""Number of bytes of a rollout's share that allow one more turn to be shown."""
_MAX_TURNS = 20
_MAX_OF_TURN = 3
"""Maximum number of calls of a turn that are shown, of texts that the policy read after it, and of prompt messages."""
_MAX_TEXT_BYTES = 4_000


def rollout_section(
    report: TrainingReport, open_chosen: Callable[[ChosenRollout], OpenedRollout | str]
) -> Iterable[str]:
    if not report.rollouts:
        return
    yield "<h2>Rollouts</h2>"
    yield (
        "<p>The worst and the best rollouts of each run by score, each of a different prompt, the latest steps first. "
        "Notes in brackets say where long texts are cut.</p>"
    )
    share = min(_ROLLOUT_BYTES, _ROLLOUTS_BYTES // len(report.rollouts))
    for number, run in enumerate(report.runs):
        chosen = [each for each in report.rollouts if each.run == number]
        if not chosen:
            continue
        yield f"<h3>{run_key(number, run)}</h3>"
        for each in chosen:
            yield _rollout(each, open_chosen(each), share)
        if not any(each.is_best for each in chosen):
            yield f"<p>No rollout scores more than {short_number(chosen[0].score)}, so no best rollouts are shown.</p>"


def _rollout(chosen: ChosenRollout, opened: OpenedRollout | str, share: int) -> str:
    about = [
        f"score {short_number(chosen.score)}",
        chosen.reason,
        None if chosen.stop_reason is None else f"ended: {chosen.stop_reason}",
        None if chosen.num_turns is None else f"{chosen.num_turns:,} turns",
        f"{chosen.num_calls:,} calls",
        f"{chosen.num_errors:,} calls with errors" if chosen.num_errors else None,
        None if chosen.sampled_tokens is None else f"{chosen.sampled_tokens:,} tokens sampled",
    ]
    kind = "best" if chosen.is_best else "worst"
    step = "" if chosen.step is None else f", step {chosen.step}"
    parts = [
        f'<article class="rollout {kind}"><h4>One of the {kind}, {chosen.part.value}{step}</h4>',
        f"<p>{bounded_html(', '.join(each for each in about if each), 300)}</p>",
        f"<p>{bounded_html(chosen.detail, 300)}</p>" if chosen.detail else "",
        f'<p class="soft">{bounded_html(chosen.file, 300)}, line {chosen.line}</p>',
        f"<p>{bounded_html(opened, 500)}</p>" if isinstance(opened, str) else "".join(_opened(opened, share)),
    ]
    return "".join(parts) + "</article>"


def _opened(opened: OpenedRollout, share: int) -> Iterable[str]:
    max_turns = max(2, min(_MAX_TURNS, share // _TURN_BYTES))
    num_head = len(opened.turns) if len(opened.turns) <= max_turns else -(-max_turns * 2 // 3)
    num_tail = 0 if num_head == len(opened.turns) else max_turns - num_head
    begin_of_tail = len(opened.turns) - num_tail
    shown = [*enumerate(opened.turns[:num_head]), *enumerate(opened.turns[begin_of_tail:], start=begin_of_tail)]
    num_texts = len(opened.prompt[:_MAX_OF_TURN]) + sum(_num_texts(turn) for _, turn in shown)
    text_bytes = min(_MAX_TEXT_BYTES, share * 2 // 5 // max(1, num_texts))
    for message in opened.prompt[:_MAX_OF_TURN]:
        content = message.get("content")
        text = content if isinstance(content, str) else json.dumps(message)
        yield f"<details><summary>Prompt, {len(text):,} characters</summary>{_text(text, text_bytes)}</details>"
    for index, turn in shown:
        if index == begin_of_tail and num_tail:
            yield f'<p class="cut">[{begin_of_tail - num_head:,} turns are left out]</p>'
        yield from _turn(index, turn, text_bytes)


def _num_texts(turn: OpenedTurn) -> int:
    return 1 + len(turn.calls[:_MAX_OF_TURN]) + len(turn.observations[:_MAX_OF_TURN])


def _turn(index: int, turn: OpenedTurn, text_bytes: int) -> Iterable[str]:
    about = [
        f"Turn {index + 1}",
        None if turn.num_tokens is None else f"{turn.num_tokens:,} tokens",
        "cut off" if turn.ended is False else None,
        None if turn.reward is None else f"{'return' if turn.step else 'reward'} {short_number(turn.reward)}",
    ]
    yield f"<h4>{', '.join(each for each in about if each)}</h4>"
    yield _text(turn.text, text_bytes)
    for call in turn.calls[:_MAX_OF_TURN]:
        yield _call(call, text_bytes)
    yield from cut_note(turn.calls[_MAX_OF_TURN:], "calls are left out")
    for text in turn.observations[:_MAX_OF_TURN]:
        yield _text(text, text_bytes, "read")
    yield from cut_note(turn.observations[_MAX_OF_TURN:], "texts that the policy read are left out")


def _call(call: JsonObject, text_bytes: int) -> str:
    status = "" if call.get("status") == "ok" else f", {call.get('error_kind') or call.get('status')}"
    given = call.get("arguments")
    arguments = "unreadable" if given is None else json.dumps(given, ensure_ascii=False)
    return (
        f'<p class="soft">Call of {bounded_html(str(call.get("name") or "no tool"), 100)}'
        f"{bounded_html(status, 100)}</p>{_text(arguments, text_bytes)}"
    )


def _text(text: str, max_bytes: int, kind: str = "text") -> str:
    return f'<div class="{kind}" dir="ltr">{bounded_html(text, max_bytes)}</div>'
