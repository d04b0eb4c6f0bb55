"""RunIndex -> the counts of rollouts in a report, and the rollouts that it shows."""

import math

import msgspec

from verl_pivot.inspect.prompt_changes import IS_DECIDED
from verl_pivot.inspect.queries import RunIndex
from verl_pivot.inspect.report_numbers import ChosenRollout, OutcomeCounts, PartSummary
from verl_pivot.runs.run import RunPart

MAX_VALUES = 12
"""Number of the most frequent reasons, ends or kinds of errors that have a count of their own; the rest share one."""
_MAX_VALUE = 80
"""Maximum number of characters of a reason, end or kind of error."""
_COUNTED = {
    "reason": "reason",
    "end": "stop_reason",
    "error kind": "unnest(string_split(error_kinds, ','))",
    "left out": "left_out",
}
"""{what is counted over the steps: its column}"""
_OF_ROW = tuple(name for name in ChosenRollout.__struct_fields__ if name not in ("run", "is_best", "part", "file"))
"""Fields of ChosenRollout that are columns of the table `rollouts` too."""


def count_parts(index: RunIndex) -> list[list[PartSummary]]:
    """[num_runs] summaries of the parts that have rollouts."""
    scores: dict[tuple[int, str], dict[int, float]] = {}
    for run, part, step, score in index.count(
        f"SELECT run, part, step, avg(score) FROM rollouts WHERE {IS_DECIDED} AND step IS NOT NULL "
        "GROUP BY ALL ORDER BY ALL",
    ):
        if math.isfinite(score):
            scores.setdefault((run, part), {})[step] = score
    summaries: list[list[PartSummary]] = [[] for _ in index.runs]
    for run, part, *numbers in index.count(
        "SELECT run, part, count(*), count(DISTINCT prompt_id), count(*) FILTER (score IS NULL), "
        "count(*) FILTER (stop_reason IN ('tool_failure', 'engine_failure')), "
        "CASE WHEN count(kept) > 0 THEN count(*) FILTER (kept) END, "
        f"avg(score) FILTER ({IS_DECIDED}), avg(sampled_tokens), avg(num_calls) "
        "FROM rollouts GROUP BY ALL ORDER BY ALL",
    ):
        num_rollouts, num_prompts, num_undecided, num_masked, num_kept, *means = numbers
        mean_score, mean_tokens, mean_calls = map(_finite, means)
        summaries[run].append(
            PartSummary(
                part=RunPart(part),
                num_rollouts=num_rollouts,
                num_prompts=num_prompts,
                num_undecided=num_undecided,
                num_masked=num_masked,
                num_kept=num_kept if part == RunPart.TRAINING else None,
                mean_score=mean_score,
                mean_tokens=mean_tokens,
                mean_calls=mean_calls or 0.0,
                scores=scores.get((run, part), {}),
            )
        )
    return summaries


def count_outcomes(index: RunIndex) -> list[OutcomeCounts]:
    found: dict[tuple[int, str, str], OutcomeCounts] = {}
    for what, column in _COUNTED.items():
        rows = index.count(
            f"WITH named AS (SELECT run, part, step, left(value, {_MAX_VALUE}) AS value FROM "
            f"(SELECT run, part, step, {column} AS value FROM rollouts) WHERE value <> '' AND step IS NOT NULL), "
            "frequent AS (SELECT run, part, value, count(*) AS num_all FROM named GROUP BY run, part, value "
            f"QUALIFY row_number() OVER (PARTITION BY run, part ORDER BY num_all DESC, value) <= {MAX_VALUES}) "
            "SELECT named.run, named.part, frequent.value, named.step, count(*), num_all FROM named "
            "LEFT JOIN frequent ON named.run = frequent.run AND named.part = frequent.part "
            "AND named.value = frequent.value GROUP BY ALL ORDER BY named.run, named.part, "
            "num_all DESC NULLS LAST, frequent.value, named.step",
        )
        for run, part, value, step, number, _ in rows:
            of_part = found.setdefault(
                (run, part, what), OutcomeCounts(run=run, part=RunPart(part), what=what, counts={}, others={})
            )
            (of_part.others if value is None else of_part.counts.setdefault(value, {}))[step] = number
    return list(found.values())


def choose_rollouts(index: RunIndex, run: int, num_rollouts: int) -> list[ChosenRollout]:
    """The worst and the best rollouts of different prompts, late ones first; those of training if there are any."""
    for part in RunPart:
        if worst := _ranked(index, run, part, "score, step DESC NULLS LAST, num_errors DESC, id", num_rollouts):
            best = _ranked(index, run, part, "score DESC, step DESC NULLS LAST, num_errors, id", num_rollouts)
            above = [each for each in best if each.score > worst[0].score]
            return [*worst, *(msgspec.structs.replace(each, is_best=True) for each in above)]
    return []


def _ranked(index: RunIndex, run: int, part: RunPart, order: str, number: int) -> list[ChosenRollout]:
    ids = [
        each
        for (each,) in index.count(
            f"SELECT id FROM rollouts WHERE run = ? AND part = ? AND {IS_DECIDED} QUALIFY row_number() OVER "
            f"(PARTITION BY coalesce(prompt_id, group_name, CAST(id AS VARCHAR)) ORDER BY {order}) = 1 "
            f"ORDER BY {order} LIMIT ?",
            run, part.value, number,
        )
    ]  # fmt: skip
    by_id = {each.id: each for each in index.rows(ids)}
    return [
        ChosenRollout(
            run=run,
            is_best=False,
            part=part,
            file=by_id[each].file_name,
            **{name: getattr(by_id[each].row, name) for name in _OF_ROW},
        )
        for each in ids
    ]


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
