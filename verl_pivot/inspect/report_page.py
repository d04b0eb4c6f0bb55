"""TrainingReport -> one HTML file without scripts and requests, which is smaller than 3 MB whatever the runs hold."""

import base64
import hashlib
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path

from verl_pivot.inspect.html_text import as_html, bounded_html
from verl_pivot.inspect.opened import OpenedRollout
from verl_pivot.inspect.report_counts import MAX_VALUES
from verl_pivot.inspect.report_drawing import Point, draw, short_number
from verl_pivot.inspect.report_numbers import (
    ChosenRollout,
    OutcomeCounts,
    PartSummary,
    PromptDifference,
    ReportedRun,
    TrainingReport,
)
from verl_pivot.inspect.report_pieces import (
    cell,
    cut_note,
    head_cell,
    number_cell,
    run_cell,
    run_key,
    step_range,
    table,
)
from verl_pivot.inspect.report_pivots import pivot_section
from verl_pivot.inspect.report_rollouts import rollout_section
from verl_pivot.profiling.stored_samples import StoredTurn
from verl_pivot.runs.run import RunPart

FIRST_METRICS = (
    "critic/score/mean", "critic/rewards/mean", "val-core/*", "pivot/mixed_groups", "pivot/reward_variance",
    "response_length/mean", "rollout/calls_per_trajectory", "rollout/masked_rate", "actor/entropy", "actor/grad_norm",
    "actor/kl_loss", "actor/pg_loss", "actor/lr", "timing_s/step", "timing_s/gen", "perf/throughput",
)  # fmt: skip
"""Metrics that are drawn, as on the page of `verl-pivot inspect`; for a name with a star, the first four that match."""
_CURVES_OF_STAR = 4
_CURVES_WITHOUT_FIRST = 12
"""Maximum number of curves if the runs have none of these metrics."""
_NUM_STRETCHES = 10
"""Maximum number of columns of a table over the steps."""
_OUTCOME_BYTES = 40_000
_TITLES = {
    "reason": "reasons of verdicts",
    "end": "how rollouts ended",
    "error kind": "rollouts with mistakes of the policy in tool calls, by kind",
    "left out": "why the update did not see rollouts",
}


def report_page(
    report: TrainingReport,
    open_chosen: Callable[[ChosenRollout], OpenedRollout | str],
    pivots: Sequence[StoredTurn] = (),
) -> str:
    """The text of the file.

    Args:
        report: The numbers.
        open_chosen: Gives a rollout with its texts, or a sentence that says why it cannot be read.
        pivots: [num_pivots] turns of the report's profile with their samples.
    """
    style = (Path(__file__).parent / "report.css").read_text()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    names = ", ".join(run.name for run in report.runs)
    body = chain(
        [f"<h1>{bounded_html(names, 500)}</h1>"],
        (f'<p class="problem">{bounded_html(each, 500)}</p>' for each in report.problems[:20]),
        cut_note(report.problems[20:], "more problems"),
        _runs(report.runs),
        _metrics(report.runs),
        _prompts(report),
        _outcomes(report),
        _settings(report),
        rollout_section(report, open_chosen),
        pivot_section(report.profile, pivots, report.runs),
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
    yield table(
        ["run", "method", "checkpoints", "versions", "folder"],
        [
            [
                run_cell(number, run),
                cell(run.method or ""),
                cell(", ".join(map(str, run.checkpoints))),
                cell(", ".join(f"{package} {version}" for package, version in run.versions.items())),
                cell(run.path),
            ]
            for number, run in enumerate(runs)
        ],
    )
    yield from _seeds(runs)
    parts = [(number, run, part) for number, run in enumerate(runs) for part in run.parts]
    if not parts:
        yield "<p>There are no dumps of rollouts: set trainer.rollout_data_dir in the launch.</p>"
        return
    yield table(
        ["run", "part", "steps", "rollouts", "prompts", "mean score", "undecided", "system failures",
         "seen by the update", "mean tokens sampled", "mean calls"],
        [[run_cell(number, run), *_summary(part)] for number, run, part in parts],
    )  # fmt: skip


def _seeds(runs: Sequence[ReportedRun]) -> Iterable[str]:
    """Table of the seeds that the runs set, such as those of data and rollouts."""
    given = {key for run in runs for key, value in run.settings.items() if key.endswith("seed") and value != "null"}
    if given:
        rows = [[head_cell(key), *(cell(run.settings.get(key, "")) for run in runs)] for key in sorted(given)]
        yield table(["seed", *(run.name for run in runs)], rows)


def _summary(part: PartSummary) -> Iterable[str]:
    yield f"<td>{part.part.value}</td>"
    yield f"<td>{step_range(sorted(part.scores))}</td>"
    for value in (part.num_rollouts, part.num_prompts, part.mean_score, part.num_undecided, part.num_masked,
                  part.num_kept, part.mean_tokens, part.mean_calls):  # fmt: skip
        yield number_cell(value)


def _metrics(runs: Sequence[ReportedRun]) -> Iterable[str]:
    yield "<h2>Metrics</h2>"
    if len(runs) > 1:
        yield f"<p>{' &nbsp; '.join(run_key(number, run) for number, run in enumerate(runs))}</p>"
    drawings = list(_drawings(runs))
    if drawings:
        yield f'<div class="curves">{"".join(drawings)}</div>'
    names = sorted({name for run in runs for name in run.metrics})
    if not names:
        yield "<p>There are no metrics: they are read from metrics.jsonl, the file of verl's file logger, or a log.</p>"
        return
    rows = [[head_cell(name), *(_course(run.metrics.get(name)) for run in runs)] for name in names]
    yield f"<details><summary>All {len(names)} metrics: first and last value, and their range</summary>"
    yield table(["metric", *(run.name for run in runs)], rows)
    yield "</details>"


def _drawings(runs: Sequence[ReportedRun]) -> Iterable[str]:
    for part in RunPart:
        scores = [
            [Point(*point) for of_run in run.parts if of_run.part is part for point in of_run.scores.items()]
            for run in runs
        ]
        if any(len(points) > 1 for points in scores):
            yield draw(f"mean score of {part.value} rollouts", scores)
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
        yield "<p>The runs have no part (training or validation) in common, so no prompts are compared.</p>"
        return
    compared = [each for each in report.differences if each.num_paired]
    if compared:
        yield (
            f"<p>Mean score minus that of {bounded_html(first, 300)}, over the prompts that both runs have, with a "
            "95 % interval of a paired bootstrap over prompts. Another seed may change more than the interval says.</p>"
        )
        yield table(
            ["run", "part", "steps", "prompts", "score", "score of first run", "difference", "95 % interval",
             "prompts higher", "prompts lower"],
            [[run_cell(each.run, report.runs[each.run]), *_compared(each)] for each in compared],
        )  # fmt: skip
    for each in report.differences:
        names = f"{bounded_html(report.runs[each.run].name, 300)} and {bounded_html(first, 300)}"
        if not each.steps:
            yield f"<p>{names} have no step of {each.part.value} in common, so no prompts are compared.</p>"
        elif not each.num_shared:
            yield f"<p>{names} share no prompts with a score in {each.part.value}{_why_none(report, each)}.</p>"
        elif each.num_paired < each.num_shared:
            yield f"<p>{names} share {each.num_shared:,} prompts; {each.num_paired:,} of them are compared.</p>"


def _why_none(report: TrainingReport, difference: PromptDifference) -> str:
    parts = [part for run in (0, difference.run) for part in report.runs[run].parts if part.part is difference.part]
    return "" if all(part.num_prompts for part in parts) else ": verl's own dumps do not name their prompts"


def _compared(each: PromptDifference) -> Iterable[str]:
    yield f"<td>{each.part.value}</td>"
    yield f"<td>{step_range(each.steps)}</td>"
    for value in (each.num_paired, each.mean, each.first_mean, each.difference):
        yield number_cell(value)
    low, high = short_number(each.low), short_number(each.high)
    yield "<td>too few prompts</td>" if each.low is None else f"<td>{low} to {high}</td>"
    yield number_cell(each.num_higher)
    yield number_cell(each.num_lower)


def _outcomes(report: TrainingReport) -> Iterable[str]:
    if not report.outcomes:
        return
    yield "<h2>Outcomes over the steps</h2>"
    for part in RunPart:
        for what, title in _TITLES.items():
            found = [each for each in report.outcomes if each.part is part and each.what == what]
            if found:
                yield _outcome_table(f"{part.value.capitalize()}: {title}, by steps", report.runs, found)


def _outcome_table(caption: str, runs: Sequence[ReportedRun], found: Sequence[OutcomeCounts]) -> str:
    """Number of rollouts of each value and run, by stretches of steps."""
    steps = sorted({step for each in found for of_value in (*each.counts.values(), each.others) for step in of_value})
    stretches = _stretches(steps)
    totals: dict[str, int] = {}
    for each in found:
        for value, of_value in each.counts.items():
            totals[value] = totals.get(value, 0) + sum(of_value.values())
    rows = [
        [head_cell(value), run_cell(each.run, runs[each.run]), *_counted(each.counts[value], stretches)]
        for value in sorted(totals, key=lambda name: (-totals[name], name))
        for each in found
        if value in each.counts
    ]
    rows += [
        [head_cell(f"all but the {MAX_VALUES} most frequent"), run_cell(each.run, runs[each.run]),
         *_counted(each.others, stretches)]
        for each in found
        if each.others
    ]  # fmt: skip
    head = ["", "run", *map(step_range, stretches), "all"]
    return table(head, rows, caption=caption, max_bytes=_OUTCOME_BYTES)


def _stretches(steps: Sequence[int]) -> list[Sequence[int]]:
    length = -(-len(steps) // _NUM_STRETCHES)
    return [steps[begin : begin + length] for begin in range(0, len(steps), length)]


def _counted(of_value: dict[int, int], stretches: Sequence[Sequence[int]]) -> Iterable[str]:
    for stretch in stretches:
        yield number_cell(sum(of_value.get(step, 0) for step in stretch))
    yield number_cell(sum(of_value.values()))


def _settings(report: TrainingReport) -> Iterable[str]:
    runs = [run for run in report.runs if run.settings]
    yield "<h2>Settings</h2>"
    if not runs:
        yield "<p>No run has a .hydra/config.yaml that can be read; a launch writes it.</p>"
        return
    differing = report.differing_settings
    if len(report.runs) > 1:
        rows = [
            [head_cell(key), *(cell("not set" if value is None else value) for value in values)]
            for key, values in differing.items()
        ]
        yield f"<p>{len(rows) or 'No'} settings differ.</p>"
        if rows:
            yield table(["setting", *(run.name for run in report.runs)], rows)
    rows = [[head_cell(key), cell(value)] for key, value in runs[0].settings.items() if key not in differing]
    yield f"<details><summary>{len(rows)} settings{' that are the same' if len(report.runs) > 1 else ''}</summary>"
    yield table(["setting", "value"], rows)
    yield "</details>"
