"""TrainingReport -> one HTML file without scripts and requests, which is smaller than 3 MB whatever the runs hold."""

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path

from verl_pivot.inspect.html_text import as_html, bounded_html
from verl_pivot.inspect.opened import OpenedRollout, OpenedTurn
from verl_pivot.inspect.report import (
    MAX_VALUES,
    ChosenRollout,
    OutcomeCounts,
    PartSummary,
    PromptDifference,
    ReportedRun,
    TrainingReport,
)
from verl_pivot.inspect.report_drawing import Point, colour, draw, short_number
from verl_pivot.runs.run import RunPart
from verl_pivot.types import JsonObject

FIRST_METRICS = (
    "critic/score/mean", "critic/rewards/mean", "val-core/*", "pivot/mixed_groups", "pivot/reward_variance",
    "response_length/mean", "rollout/calls_per_trajectory", "rollout/masked_rate", "actor/entropy", "actor/grad_norm",
    "actor/kl_loss", "actor/pg_loss", "actor/lr", "timing_s/step", "timing_s/gen", "perf/throughput",
)  # fmt: skip
"""Metrics that are drawn, as on the page of `verl-pivot inspect`; of a name with a star the first four."""
_CURVES_OF_STAR = 4
_CURVES_WITHOUT_FIRST = 12
"""Curves of runs that have none of these metrics."""
_NUM_STRETCHES = 10
"""Columns of a table over the steps."""
_MAX_CELL_BYTES = 160
_TABLE_BYTES = 150_000
_OUTCOME_BYTES = 40_000
_ROLLOUTS_BYTES = 1_200_000
_ROLLOUT_BYTES = 40_000
_TURN_BYTES = 3_000
"""Bytes of the rollouts' share for each turn that is shown."""
_MAX_TURNS = 20
_MAX_OF_TURN = 3
"""Calls of a turn that are shown, and texts that the policy read after it."""
_MAX_TEXT_BYTES = 4_000
_PARTS = {RunPart.TRAINING: "training", RunPart.VALIDATION: "validation"}
_TITLES = {
    "reason": "reasons of verdicts",
    "end": "ends of rollouts",
    "error kind": "rollouts with mistakes of the policy in calls, by their kinds",
    "left out": "reasons for which the update did not see rollouts",
}


def report_page(report: TrainingReport, open_chosen: Callable[[ChosenRollout], OpenedRollout | str]) -> str:
    """The text of the file.

    Args:
        report: The numbers.
        open_chosen: Gives a rollout with its texts, or a sentence that says why it cannot be read.
    """
    style = (Path(__file__).parent / "report.css").read_text()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    names = ", ".join(run.name for run in report.runs)
    body = chain(
        [f"<h1>{bounded_html(names, 500)}</h1>"],
        (f'<p class="problem">{bounded_html(each, 500)}</p>' for each in report.problems[:20]),
        _cut(report.problems[20:], "problems more"),
        _runs(report.runs),
        _metrics(report.runs),
        _prompts(report),
        _outcomes(report),
        _settings(report),
        _rollouts(report, open_chosen),
        [f"<footer>Written by verl-pivot {as_html(report.version)}.</footer>"],
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{digest}'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{as_html(names[:200])}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


# ---- runs and their metrics


def _runs(runs: Sequence[ReportedRun]) -> Iterable[str]:
    yield "<h2>Runs</h2>"
    yield _table(
        ["run", "method", "checkpoints", "versions", "folder"],
        [
            [
                _named(number, run),
                _cell(run.method or ""),
                _cell(", ".join(map(str, run.checkpoints))),
                _cell(", ".join(f"{package} {version}" for package, version in run.versions.items())),
                _cell(run.path),
            ]
            for number, run in enumerate(runs)
        ],
    )
    yield from _seeds(runs)
    parts = [(number, run, part) for number, run in enumerate(runs) for part in run.parts]
    if not parts:
        yield "<p>There are no rollouts: a launch writes them with trainer.rollout_data_dir.</p>"
        return
    yield _table(
        ["run", "rollouts of", "steps", "rollouts", "prompts", "mean score", "undecided", "system failed",
         "seen by the update", "tokens sampled", "calls"],
        [[_named(number, run), *_summary(part)] for number, run, part in parts],
    )  # fmt: skip


def _seeds(runs: Sequence[ReportedRun]) -> Iterable[str]:
    """Settings of a seed that a run gives, of data, rollouts and the like."""
    given = {key for run in runs for key, value in run.settings.items() if key.endswith("seed") and value != "null"}
    if given:
        rows = [[_head_cell(key), *(_cell(run.settings.get(key, "")) for run in runs)] for key in sorted(given)]
        yield _table(["seed", *(run.name for run in runs)], rows)


def _summary(part: PartSummary) -> Iterable[str]:
    yield f"<td>{_PARTS[part.part]}</td>"
    yield f"<td>{_span(sorted(part.scores))}</td>"
    for value in (part.num_rollouts, part.num_prompts, part.mean_score, part.num_undecided, part.num_masked,
                  part.num_kept, part.mean_tokens, part.mean_calls):  # fmt: skip
        yield _numbercell(value)


def _metrics(runs: Sequence[ReportedRun]) -> Iterable[str]:
    yield "<h2>Metrics</h2>"
    if len(runs) > 1:
        yield f"<p>{' &nbsp; '.join(_key(number, run) for number, run in enumerate(runs))}</p>"
    drawings = list(_drawings(runs))
    if drawings:
        yield f'<div class="curves">{"".join(drawings)}</div>'
    names = sorted({name for run in runs for name in run.metrics})
    if not names:
        yield "<p>There are no metrics: they are read from metrics.jsonl, the file of verl's file logger, or a log.</p>"
        return
    rows = [[_head_cell(name), *(_course(run.metrics.get(name)) for run in runs)] for name in names]
    yield f"<details><summary>All {len(names)} metrics: first and last value, and their range</summary>"
    yield _table(["metric", *(run.name for run in runs)], rows)
    yield "</details>"


def _drawings(runs: Sequence[ReportedRun]) -> Iterable[str]:
    for part in RunPart:
        scores = [
            [Point(*point) for of_run in run.parts if of_run.part is part for point in of_run.scores.items()]
            for run in runs
        ]
        if any(len(points) > 1 for points in scores):
            yield draw(f"mean score of rollouts of {_PARTS[part]}", scores)
    for name in _first({name for run in runs for name in run.metrics}):
        yield draw(name[:200], [[Point(*point) for point in run.metrics.get(name, [])] for run in runs])


def _first(names: Iterable[str]) -> list[str]:
    ordered = sorted(names)
    found = []
    for pattern in FIRST_METRICS:
        if pattern.endswith("*"):
            found += [name for name in ordered if name.startswith(pattern[:-1])][:_CURVES_OF_STAR]
        elif pattern in ordered:
            found.append(pattern)
    return found or ordered[:_CURVES_WITHOUT_FIRST]


def _course(points: Sequence[tuple[int, float]] | None) -> str:
    if not points:
        return "<td></td>"
    values = [value for _, value in points]
    first, last, least, greatest = map(short_number, (values[0], values[-1], min(values), max(values)))
    return f"<td>{first}</td>" if least == greatest else f"<td>{first} to {last} ({least} to {greatest})</td>"


# ---- comparisons


def _prompts(report: TrainingReport) -> Iterable[str]:
    if len(report.runs) < 2:
        return
    first = report.runs[0].name
    yield "<h2>The same prompts</h2>"
    if not report.differences:
        yield "<p>The runs have no rollouts of the same part of training, so that they share no prompts.</p>"
        return
    compared = [each for each in report.differences if each.num_paired]
    if compared:
        yield (
            f"<p>Score minus that of {bounded_html(first, 300)}, mean over the prompts that both have, with a 95 % "
            "interval of a paired bootstrap over prompts. Another seed may change more than the interval says.</p>"
        )
        yield _table(
            ["run", "rollouts of", "steps", "prompts", "score", "score of the first", "difference", "95 % interval",
             "higher on", "lower on"],
            [[_named(each.run, report.runs[each.run]), *_compared(each)] for each in compared],
        )  # fmt: skip
    for each in report.differences:
        names = f"{bounded_html(report.runs[each.run].name, 300)} and {bounded_html(first, 300)}"
        if not each.steps:
            yield f"<p>{names} have no step of {_PARTS[each.part]} in common, so that no prompts are compared.</p>"
        elif not each.num_shared:
            yield f"<p>{names} share no prompts with a score in {_PARTS[each.part]}{_why_none(report, each)}.</p>"
        elif each.num_paired < each.num_shared:
            yield f"<p>{names} share {each.num_shared:,} prompts; {each.num_paired:,} of them are compared.</p>"


def _why_none(report: TrainingReport, difference: PromptDifference) -> str:
    parts = [part for run in (0, difference.run) for part in report.runs[run].parts if part.part is difference.part]
    return "" if all(part.num_prompts for part in parts) else ": dumps of verl's own do not name their prompts"


def _compared(each: PromptDifference) -> Iterable[str]:
    yield f"<td>{_PARTS[each.part]}</td>"
    yield f"<td>{_span(each.steps)}</td>"
    for value in (each.num_paired, each.mean, each.first_mean, each.difference):
        yield _numbercell(value)
    yield "<td>too few prompts</td>" if each.low is None else f"<td>{_interval(each)}</td>"
    yield _numbercell(each.num_higher)
    yield _numbercell(each.num_lower)


def _interval(each: PromptDifference) -> str:
    return f"{short_number(each.low)} to {short_number(each.high)}"


def _outcomes(report: TrainingReport) -> Iterable[str]:
    if not report.outcomes:
        return
    yield "<h2>Outcomes over the steps</h2>"
    for part in RunPart:
        for what, title in _TITLES.items():
            found = [each for each in report.outcomes if each.part is part and each.what == what]
            if found:
                yield _outcome_table(f"{_PARTS[part].capitalize()}: {title}, by steps", report.runs, found)


def _outcome_table(caption: str, runs: Sequence[ReportedRun], found: Sequence[OutcomeCounts]) -> str:
    """Number of rollouts of each value and run, by stretches of steps."""
    steps = sorted({step for each in found for of_value in (*each.counts.values(), each.others) for step in of_value})
    stretches = _stretches(steps)
    totals: dict[str, int] = {}
    for each in found:
        for value, of_value in each.counts.items():
            totals[value] = totals.get(value, 0) + sum(of_value.values())
    rows = [
        [_head_cell(value), _named(each.run, runs[each.run]), *_counted(each.counts[value], stretches)]
        for value in sorted(totals, key=lambda name: (-totals[name], name))
        for each in found
        if value in each.counts
    ]
    rows += [
        [_head_cell(f"all but the {MAX_VALUES} most frequent"), _named(each.run, runs[each.run]),
         *_counted(each.others, stretches)]
        for each in found
        if each.others
    ]  # fmt: skip
    head = ["", "run", *map(_span, stretches), "all"]
    return _table(head, rows, caption=caption, max_bytes=_OUTCOME_BYTES)


def _stretches(steps: Sequence[int]) -> list[Sequence[int]]:
    length = -(-len(steps) // _NUM_STRETCHES)
    return [steps[begin : begin + length] for begin in range(0, len(steps), length)]


def _counted(of_value: dict[int, int], stretches: Sequence[Sequence[int]]) -> Iterable[str]:
    for stretch in stretches:
        yield _numbercell(sum(of_value.get(step, 0) for step in stretch))
    yield _numbercell(sum(of_value.values()))


def _settings(report: TrainingReport) -> Iterable[str]:
    runs = [run for run in report.runs if run.settings]
    if not runs:
        yield "<h2>Settings</h2>"
        yield "<p>No run has a .hydra/config.yaml that can be read; a launch writes it.</p>"
        return
    yield "<h2>Settings</h2>"
    differing = report.differing_settings
    if len(report.runs) > 1:
        rows = [
            [_head_cell(key), *(_cell("not set" if value is None else value) for value in values)]
            for key, values in differing.items()
        ]
        yield f"<p>{len(rows) or 'No'} settings differ.</p>"
        if rows:
            yield _table(["setting", *(run.name for run in report.runs)], rows)
    rows = [[_head_cell(key), _cell(value)] for key, value in runs[0].settings.items() if key not in differing]
    yield f"<details><summary>{len(rows)} settings{' that are the same' if len(report.runs) > 1 else ''}</summary>"
    yield _table(["setting", "value"], rows)
    yield "</details>"


# ---- rollouts


def _rollouts(report: TrainingReport, open_chosen: Callable[[ChosenRollout], OpenedRollout | str]) -> Iterable[str]:
    if not report.rollouts:
        return
    yield "<h2>Rollouts</h2>"
    yield (
        "<p>The worst and the best of each run by their score, of different prompts, the latest steps first. "
        "Long ones are cut where it is said.</p>"
    )
    share = min(_ROLLOUT_BYTES, _ROLLOUTS_BYTES // len(report.rollouts))
    for number, run in enumerate(report.runs):
        chosen = [each for each in report.rollouts if each.run == number]
        if not chosen:
            continue
        yield f"<h3>{_key(number, run)}</h3>"
        for each in chosen:
            yield _rollout(each, open_chosen(each), share)
        if not any(each.is_best for each in chosen):
            yield f"<p>No rollout scores more than {short_number(chosen[0].score)}, so that there are no best ones.</p>"


def _rollout(chosen: ChosenRollout, opened: OpenedRollout | str, share: int) -> str:
    about = [
        f"score {short_number(chosen.score)}",
        chosen.reason,
        None if chosen.stop_reason is None else f"ended: {chosen.stop_reason}",
        None if chosen.num_turns is None else f"{chosen.num_turns:,} turns",
        f"{chosen.num_calls:,} calls",
        f"{chosen.num_errors:,} of them wrong" if chosen.num_errors else None,
        None if chosen.sampled_tokens is None else f"{chosen.sampled_tokens:,} tokens sampled",
    ]
    kind = "best" if chosen.is_best else "worst"
    step = "" if chosen.step is None else f", step {chosen.step}"
    parts = [
        f'<article class="rollout {kind}"><h4>One of the {kind}, {_PARTS[chosen.part]}{step}</h4>',
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
    yield from _cut(turn.calls[_MAX_OF_TURN:], "calls are left out")
    for text in turn.observations[:_MAX_OF_TURN]:
        yield _text(text, text_bytes, "read")
    yield from _cut(turn.observations[_MAX_OF_TURN:], "texts that the policy read are left out")


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


# ---- pieces


def _table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str = "", max_bytes: int = _TABLE_BYTES
) -> str:
    """A table; rows that would make it longer than so many bytes are left out, and a note says how many.

    Args:
        head: Text of each column.
        rows: [num_rows, num_columns] cells in HTML.
        caption: Text above it.
        max_bytes: Bytes of its rows.
    """
    lines: list[str] = []
    room = max_bytes
    for cells in rows:
        line = f"<tr>{''.join(cells)}</tr>"
        room -= len(line.encode())
        if room < 0:
            break
        lines.append(line)
    title = f"<caption>{as_html(caption)}</caption>" if caption else ""
    columns = "".join(f'<th scope="col">{bounded_html(each, _MAX_CELL_BYTES)}</th>' for each in head)
    return (
        f'<div class="scrolled"><table>{title}<thead><tr>{columns}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
        f"{''.join(_cut(rows[len(lines) :], 'rows are left out'))}</div>"
    )


def _cut(left: Sequence[object], what: str) -> Iterable[str]:
    if left:
        yield f'<p class="cut">[{len(left):,} {what}]</p>'


def _cell(text: str) -> str:
    return f"<td>{bounded_html(text, _MAX_CELL_BYTES)}</td>"


def _head_cell(text: str) -> str:
    return f'<th scope="row">{bounded_html(text, _MAX_CELL_BYTES)}</th>'


def _numbercell(value: float | None) -> str:
    return f'<td class="number">{short_number(value)}</td>'


def _named(run: int, of: ReportedRun) -> str:
    return f"<td>{_key(run, of)}</td>"


def _key(run: int, of: ReportedRun) -> str:
    return f'<span class="key {colour(run)}"></span>&nbsp;{bounded_html(of.name, _MAX_CELL_BYTES)}'


def _span(steps: Sequence[int]) -> str:
    """The first and the last of some steps in order."""
    return "" if not steps else str(steps[0]) if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
