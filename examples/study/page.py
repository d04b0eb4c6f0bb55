"""Outcomes of the study -> its tables and verdicts in Markdown, with seeds, hash and gaps."""

import math
from collections.abc import Collection, Sequence
from statistics import fmean

from examples.study.claims import TUNED_OTHERWISE, Design
from examples.study.commands_page import commands_lines
from examples.study.costs import UNBOUNDED
from examples.study.domains.protocol import family_of
from examples.study.measures_file import StudyMeasures
from examples.study.measures_page import measures_lines
from examples.study.outcomes import StudyResults, UnitEvaluation, accuracy
from examples.study.paper_page import paper_lines
from examples.study.plot import PLOT
from examples.study.verdicts import JudgedClaim, JudgedPart, judge
from verl_pivot.statistics import Interval

_NOTHING = "-"
_PLOTTED = "Tasks of the domains solved over the turns of training, and in the domains against outside of them"
_NO_BOUND = UNBOUNDED / 10
"""Smallest logarithm of a ratio that is shown as unbounded, also for a mean over seeds; known ratios are far below."""


def page(design: Design, results: StudyResults, measures: StudyMeasures, outside: Collection[str]) -> str:
    """The whole page; all of our numbers in it come from `results` and `measures`."""
    seeds = design.study.seeds
    claims = judge(design.claims, results, seeds, outside)
    return "\n".join(
        [
            "# Verdicts of the study",
            "",
            *_head(design, results, measures),
            *_section("Claims", [*_claims_table(claims, len(seeds)), *_notes(claims), "", f"![{_PLOTTED}]({PLOT})"]),
            *_section("The paper's figures beside ours", paper_lines(results, seeds, outside)),
            *_section("Measures without a verdict", measures_lines(design.claims, measures, seeds)),
            *_section("Percent of the held-out tasks solved after the last step", _accuracies(results, seeds, outside)),
            *_section("Share solved of each family's tasks", _families(results, seeds)),
            *_section("Over training", _curves(results, seeds, outside)),
            *_section("Gaps", _gaps(design, results)),
            *_section("How it was made", commands_lines(results)),
        ]
    )


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return ["", f"## {title}", "", *lines]


def _head(design: Design, results: StudyResults, measures: StudyMeasures) -> list[str]:
    policy = f" Policy: {results.about.policy}." if results.about.policy else ""
    commit = f" Commit: {results.about.commit}." if results.about.commit else ""
    lines = [f"Design {results.digest}; seeds {', '.join(map(str, design.study.seeds))}.{policy}{commit}"]
    if results.about.is_taught_at_random:
        lines += ["", "**The policy began with random weights: this only shows that the launches work, and how fast.**"]
    if arms := results.about.side_by_side:
        shown = ", ".join(f"`{arm}`" for arm in arms)
        lines += ["", f"**{shown} were trained beside others: their seconds are not those of a training alone.**"]
    if results.digest.split()[:1] != [design.digest]:
        lines += ["", f"**These outcomes are not of the present design, {design.digest}.**"]
    elif results.digest != design.digest:
        lines += ["", "**Options of the command changed the design; the changes are listed after its hash.**"]
    if design.is_tuned_otherwise:
        lines += ["", f"**{TUNED_OTHERWISE}**"]
    if measures.digest != results.digest:
        lines += ["", f"**The measures without a verdict are of another run, {measures.digest}.**"]
    if measures.measured_by not in ("", design.measured_by):
        lines += ["", "**The measures without a verdict were taken by other code than the present code.**"]
    return lines


def _claims_table(claims: Sequence[JudgedClaim], num_seeds: int) -> list[str]:
    lines = [
        "| claim | paper | here | over tasks, 95 % | over trainings, 95 % | seeds | p | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for judged in claims:
        lines.append(
            f"| {judged.claim.text} | {judged.claim.paper} | | | | | {judged.adjusted_p:.2g} | **{judged.verdict}** |"
        )
        lines += [_part_row(part, num_seeds, "") for part in judged.parts]
        lines += [_part_row(part, num_seeds, ", no part of the verdict") for part in judged.shown]
    return lines


def _part_row(judged: JudgedPart, num_seeds: int, note: str) -> str:
    part = judged.part
    name = f"{part.measure.replace('_', ' ')}, {part.tasks}: `{part.arm}` beside `{part.baseline}`{note}"
    seeds = f"{len(judged.seeds)} of {num_seeds}"
    if judged.low is None or judged.high is None:
        return f"| {name} | {_wanted(judged)} | {_NOTHING} | {_NOTHING} | {_NOTHING} | {seeds} | {_NOTHING} | |"
    by_seed = zip(judged.low.by_seed, judged.high.by_seed, strict=True)
    values = ", ".join(_between(judged, *ends) for ends in by_seed)
    cells = [
        f"{_between(judged, judged.low.value, judged.high.value)} ({values})",
        _interval(judged, judged.over_tasks),
        _interval(judged, judged.over_trainings),
        seeds,
        f"{judged.p:.2g}",
    ]
    return f"| {name} | {_wanted(judged)} | {' | '.join(cells)} | |"


def _between(judged: JudgedPart, low: float, high: float) -> str:
    """A value, or the bounds between which it lies."""
    if low == high:
        return _shown(judged, low)
    has_low, has_high = low > -_NO_BOUND, high < _NO_BOUND
    if has_low and has_high:
        return f"{_shown(judged, low)} to {_shown(judged, high)}"
    if has_low:
        return f"at least {_shown(judged, low)}"
    return f"at most {_shown(judged, high)}" if has_high else "not known"


def _wanted(judged: JudgedPart) -> str:
    part = judged.part
    low, high = (None if bound is None else _plain(judged, bound) for bound in (part.above, part.below))
    return " and ".join([*([] if low is None else [f"above {low}"]), *([] if high is None else [f"below {high}"])])


def _plain(judged: JudgedPart, bound: float) -> str:
    return f"{bound:g}" if judged.part.measure.is_ratio else f"{100 * bound:+g}"


def _shown(judged: JudgedPart, value: float) -> str:
    """A value as a ratio, or as a difference in points."""
    return f"{math.exp(value):.2f}" if judged.part.measure.is_ratio else f"{100 * value:+.1f}"


def _interval(judged: JudgedPart, interval: Interval | None) -> str:
    if interval is None:
        return _NOTHING
    low, high = ("no bound" if abs(end) >= _NO_BOUND else _shown(judged, end) for end in interval)
    return f"[{low}, {high}]"


def _notes(claims: Sequence[JudgedClaim]) -> list[str]:
    """Reasons why verdicts are missing, and evaluations that do not count."""
    notes = dict.fromkeys(text for each in claims for text in (*each.missing, *each.left_out))
    return ["", *(f"- {text}" for text in notes)] if notes else []


def _accuracies(results: StudyResults, seeds: Sequence[int], outside: Collection[str]) -> list[str]:
    """Percent of the tasks solved after the last step, for each arm and seed; units that were not run show `-`."""
    groups = sorted({group for each in results.evaluations for group in each.solved}, key=lambda g: (g in outside, g))
    names = [f"{group}, outside" if group in outside else group for group in groups]
    lines = [f"| arm | seed | {' | '.join(names)} | unknown |", f"|---|---|{'---|' * len(groups)}---|"]
    for arm in dict.fromkeys(each.arm for each in results.evaluations):
        for seed in seeds:
            final = results.final(arm, seed)
            cells = [_NOTHING] * (len(groups) + 1) if final is None else [*_percents(final, groups), _unknown(final)]
            lines.append(f"| `{arm}` | {seed} | {' | '.join(cells)} |")
    return lines


def _families(results: StudyResults, seeds: Sequence[int]) -> list[str]:
    """Share of the tasks of each family that an arm solves after its last step, over all seeds together."""
    arms = list(dict.fromkeys(each.arm for each in results.evaluations))
    solved: dict[tuple[str, str], dict[str, list[bool]]] = {}
    for final in filter(None, (results.final(arm, seed) for arm in arms for seed in seeds)):
        for group, tasks in final.solved.items():
            for task, outcome in tasks.items():
                of_family = solved.setdefault((group, family_of(task)), {}).setdefault(final.arm, [])
                of_family += [] if outcome is None else [outcome]
    lines = [f"| | family | {' | '.join(f'`{arm}`' for arm in arms)} |", f"|---|---|{'---|' * len(arms)}"]
    for (group, family), by_arm in sorted(solved.items()):
        known = (by_arm.get(arm) for arm in arms)
        cells = (f"{100 * fmean(each):.0f} % of {len(each)}" if each else _NOTHING for each in known)
        lines.append(f"| {group} | {family} | {' | '.join(cells)} |")
    return lines


def _percents(evaluation: UnitEvaluation, groups: Sequence[str]) -> list[str]:
    shares = [accuracy(evaluation, [group]) for group in groups]
    return [_NOTHING if share is None else f"{100 * share:.1f}" for share in shares]


def _unknown(evaluation: UnitEvaluation) -> str:
    """Number of tasks at which the system failed."""
    return str(sum(solved is None for tasks in evaluation.solved.values() for solved in tasks.values()))


def _curves(results: StudyResults, seeds: Sequence[int], outside: Collection[str]) -> list[str]:
    lines = ["| arm | seed | step | turns | with the profile's | seconds | domains |", "|---|---|---|---|---|---|---|"]
    for arm in dict.fromkeys(each.arm for each in results.evaluations):
        for seed in seeds:
            for each in results.curve(arm, seed):
                share = accuracy(each, sorted(set(each.solved) - set(outside)))
                shown = _NOTHING if share is None else f"{100 * share:.1f}"
                costs = f"{each.turns} | {each.turns + each.profile_turns} | {each.seconds:.0f}"
                lines.append(f"| `{arm}` | {seed} | {each.step} | {costs} | {shown} |")
    return lines


def _gaps(design: Design, results: StudyResults) -> list[str]:
    missing = {
        arm.name: [seed for seed in design.study.seeds if results.final(arm.name, seed) is None]
        for arm in design.study.arms
    }
    lines = [
        f"- `{arm}`, {'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}: not run"
        for arm, seeds in missing.items()
        if seeds
    ]
    notes = [f"- {note}" for note in results.about.notes]
    return [*(lines or ["All units were run."]), *(["", *notes] if notes else [])]
