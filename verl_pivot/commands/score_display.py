"""Display of `verl-pivot score`: a RescoringReport or RescoredTurn -> tables, or the same as JSON."""

from collections.abc import Iterator

from rich.table import Table

from verl_pivot.commands.tables import printable, table_console
from verl_pivot.profiling.rescoring import RescoredTurn, RescoringReport
from verl_pivot.profiling.summary import TurnOutcome
from verl_pivot.types import JsonObject, Turn, Verdict

_MAX_CHARACTERS = 80
"""Most characters of an action or a detail in a table."""


def print_report(report: RescoringReport, *, is_early_stopped: bool) -> None:
    """Print the changed verdicts, the counts per reason, and the changes of the turns' outcomes."""
    console = table_console()
    if report.num_samples:
        if report.changed:
            console.print(_changed_table(report))
        console.print(_counts(report))
    for line in _remarks(report, is_early_stopped):
        console.print(printable(line), highlight=False, soft_wrap=True)


def print_turn(rescored: RescoredTurn) -> None:
    """Print every sample of one turn with its verdict before and after."""
    table = Table(title=_short(_title(rescored.turn)), title_justify="left")
    for column in ("sample", "before", "after", "detail", "action"):
        table.add_column(column, overflow="fold")
    table.add_row("expert", "", _verdict(rescored.expert), _short(rescored.expert.detail), _action(rescored.turn))
    for number, (old, new) in enumerate(zip(rescored.before, rescored.after, strict=True)):
        table.add_row(
            str(number), _verdict(old.verdict), _verdict(new.verdict), _short(new.verdict.detail), _short(new.text)
        )
    table_console().print(table)


def print_verdict(turn: Turn, verdict: Verdict) -> None:
    """Print the verdict of one action."""
    console = table_console()
    lines = [_title(turn), f"score   {_score(verdict)}", f"reason  {verdict.reason}"]
    for line in (*lines, *([f"detail  {verdict.detail}"] if verdict.detail else [])):
        console.print(printable(line), highlight=False, soft_wrap=True)


def report_as_dict(report: RescoringReport) -> JsonObject:
    """The report as JSON, with every changed verdict."""
    return {
        "num_turns": report.num_turns,
        "num_samples": report.num_samples,
        "num_changed": report.num_changed,
        "changed": [
            {
                "turn": each.turn_id,
                "sample": each.sample,
                "text": each.text,
                "before": verdict_as_dict(each.before),
                "after": verdict_as_dict(each.after),
            }
            for each in report.changed
        ],
        "reasons_before": dict(report.reasons_before.most_common()),
        "reasons_after": dict(report.reasons_after.most_common()),
        "outcomes_before": {member.value: report.outcomes_before[member] for member in TurnOutcome},
        "outcomes_after": {member.value: report.outcomes_after[member] for member in TurnOutcome},
        "now_mixed": list(report.now_mixed),
        "no_longer_mixed": list(report.no_longer_mixed),
        "refused_experts": dict(report.refused_experts.most_common()),
        "refused_expert_examples": dict(report.refused_expert_examples),
    }


def turn_as_dict(rescored: RescoredTurn) -> JsonObject:
    """One turn as JSON."""
    return {
        "turn": rescored.turn.id,
        "verifier": rescored.turn.verifier,
        "expert": verdict_as_dict(rescored.expert),
        "samples": [
            {"text": old.text, "before": verdict_as_dict(old.verdict), "after": verdict_as_dict(new.verdict)}
            for old, new in zip(rescored.before, rescored.after, strict=True)
        ],
    }


def verdict_as_dict(verdict: Verdict) -> JsonObject:
    return {"score": verdict.score, "reason": verdict.reason, "detail": verdict.detail}


def _changed_table(report: RescoringReport) -> Table:
    """Table of the first changed verdicts; equal actions of one turn share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for each in report.changed:
        key = (each.turn_id, f"{_verdict(each.before)} -> {_verdict(each.after)}", each.after.detail, each.text)
        rows.setdefault(key, []).append(str(each.sample))
    title = f"Changed verdicts, {len(report.changed)} of {report.num_changed}"
    table = Table(title=title, title_justify="left")
    for column in ("turn", "samples", "before -> after", "detail", "action"):
        table.add_column(column, overflow="fold")
    for (turn_id, change, detail, text), samples in rows.items():
        table.add_row(_short(turn_id), ",".join(samples), change, _short(detail), _short(text))
    return table


def _counts(report: RescoringReport) -> Table:
    """Counts before and after: samples by reason, most frequent first, and turns by outcome."""
    table = Table(title=f"{report.num_samples} samples of {sum(report.outcomes_before.values())} turns")
    table.title_justify = "left"
    table.add_column("reason of the verdict")
    for column in ("before", "after", "change"):
        table.add_column(column, justify="right")
    for reason, _ in (report.reasons_before + report.reasons_after).most_common():
        table.add_row(*_counts_row(reason, report.reasons_before[reason], report.reasons_after[reason]))
    table.add_section()
    for outcome in TurnOutcome:
        if outcome in report.outcomes_before or outcome in report.outcomes_after:
            before, after = report.outcomes_before[outcome], report.outcomes_after[outcome]
            table.add_row(*_counts_row(f"turns {outcome.value}", before, after))
    return table


def _counts_row(what: str, before: int, after: int) -> tuple[str, str, str, str]:
    return _short(what), str(before), str(after), f"{after - before:+}" if after != before else ""


def _remarks(report: RescoringReport, is_early_stopped: bool) -> Iterator[str]:
    if report.num_samples:
        yield f"{report.num_changed} of {report.num_samples} verdicts change."
        yield (
            f"{len(report.now_mixed)} turns become mixed, so that they can be pivots"
            f"{_some(report.now_mixed)}; {len(report.no_longer_mixed)} are no longer mixed"
            f"{_some(report.no_longer_mixed)}."
        )
        if is_early_stopped:
            yield (
                "The profile was sampled with --early-stop, which followed the stored verdicts; with the new ones some "
                "turns might have got more samples."
            )
    else:
        yield f"{report.num_turns} turns, none with samples: only the experts' own actions were scored."
    num_refused = report.refused_experts.total()
    yield f"The expert's own action gets full score at {report.num_turns - num_refused} of {report.num_turns} turns."
    for reason, count in report.refused_experts.most_common():
        yield f"  {reason}: {count}, such as {report.refused_expert_examples[reason]}"


def _some(turn_ids: list[str]) -> str:
    if not turn_ids:
        return ""
    return f" ({', '.join(turn_ids[:3])}{', ...' if len(turn_ids) > 3 else ''})"


def _title(turn: Turn) -> str:
    return f"Turn {turn.id}, verifier {turn.verifier}"


def _verdict(verdict: Verdict) -> str:
    return _short(f"{_score(verdict)} {verdict.reason}")


def _score(verdict: Verdict) -> str:
    return "undecided" if verdict.score is None else f"{verdict.score:g}"


def _action(turn: Turn) -> str:
    calls = ", ".join(f"{call.name}({call.arguments})" for call in turn.expert.tool_calls)
    return _short(" ".join(part for part in (turn.expert.content, calls) if part))


def _short(text: str) -> str:
    """The text in one line, shortened if it is long."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= _MAX_CHARACTERS else f"{line[: _MAX_CHARACTERS - 4]} ..."
