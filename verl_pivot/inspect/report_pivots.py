"""ReportedProfile with its turns -> the part of a report's page that shows pivots beside their samples."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence

from verl_pivot.inspect.html_text import bounded_html
from verl_pivot.inspect.report_drawing import short_number
from verl_pivot.inspect.report_numbers import ProfiledPivot, ReportedProfile, ReportedRun
from verl_pivot.inspect.report_pieces import cell, cut_note, head_cell, number_cell, run_key, table
from verl_pivot.profiling.stored_samples import StoredTurn
from verl_pivot.types import Message

_PIVOTS_BYTES = 200_000
_MAX_SAMPLES = 6
"""Maximum number of samples of a turn that are shown; equal samples count as one."""
_MAX_TEXT_BYTES = 4_000


def pivot_section(
    profile: ReportedProfile | None, turns: Sequence[StoredTurn], runs: Sequence[ReportedRun]
) -> Iterable[str]:
    """Pieces of HTML; none without a profile.

    Args:
        profile: Numbers of the profile, if there is one.
        turns: [num_pivots] its pivots with their samples.
        runs: [num_runs] the runs of the report.
    """
    if profile is None:
        return
    yield "<h2>Pivots</h2>"
    yield f'<p class="soft">{bounded_html(profile.path, 300)}</p>'
    rows = [[head_cell(name), number_cell(number)] for name, number in profile.outcomes.items() if number]
    yield table(["outcome", "turns"], rows)
    if not turns:
        yield "<p>No mixed turn is shown.</p>"
        return
    yield (
        "<p>Mixed turns and what the policy sampled there before training: first the turns that training saw, the "
        "hardest first, then the others.</p>"
    )
    share = min(_MAX_TEXT_BYTES, _PIVOTS_BYTES // len(turns) // (_MAX_SAMPLES + 2))
    for pivot, stored in zip(profile.pivots, turns, strict=True):
        yield "".join(_pivot(pivot, stored, runs, share))


def _pivot(pivot: ProfiledPivot, stored: StoredTurn, runs: Sequence[ReportedRun], share: int) -> Iterable[str]:
    yield f'<article class="rollout"><h4>{bounded_html(f"Turn {pivot.turn}, {pivot.verifier}", 300)}</h4>'
    yield f"<p>mean score {short_number(pivot.mean_score)} of {pivot.num_samples:,} samples</p>"
    for number, (run, scores) in enumerate(zip(runs, pivot.scores, strict=True)):
        if scores:
            steps = sorted({min(scores), max(scores)})
            course = ", ".join(f"{short_number(scores[step])} in step {step}" for step in steps)
            yield f"<p>{run_key(number, run)}: {course}</p>"
    last = stored.turn.state[-1]
    yield f'<p class="soft">Last message before the turn: {last.role}</p>'
    yield f'<div class="read" dir="ltr">{_action(last, share)}</div><p class="soft">Action of the expert</p>'
    yield f'<div class="text" dir="ltr">{_action(stored.turn.expert, share)}</div>'
    found = Counter((each.sample.text, each.sample.verdict) for each in stored.samples).most_common()
    rows = [
        [number_cell(count), number_cell(verdict.score), cell(verdict.reason), cell(verdict.detail),
         f'<td dir="ltr">{bounded_html(text, share)}</td>']
        for (text, verdict), count in found[:_MAX_SAMPLES]
    ]  # fmt: skip
    yield table(["samples", "score", "reason", "explanation", "text"], rows)
    yield from cut_note(found[_MAX_SAMPLES:], "other samples are left out")
    yield "</article>"


def _action(message: Message, max_bytes: int) -> str:
    calls = [f"{call.name}({json.dumps(call.arguments, ensure_ascii=False)})" for call in message.tool_calls]
    return bounded_html("\n".join(part for part in (message.content, *calls) if part), max_bytes)
