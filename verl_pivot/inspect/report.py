"""RunIndex -> TrainingReport: the numbers of `verl-pivot report`, of one run or of several beside each other."""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from verl_pivot import __version__
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.inspect.opened import OpenedRollout, open_rollout
from verl_pivot.inspect.queries import RolloutPlace, RunIndex
from verl_pivot.inspect.rollout_table import LIMITS, MAX_SECONDS
from verl_pivot.inspect.texts import RowPlace
from verl_pivot.runs.run import RunPart, TrainingRun, differing_settings
from verl_pivot.statistics import paired_difference

MAX_VALUES = 12
"""Most frequent reasons, ends or kinds of errors of a run's part that are counted each; all others are one number."""
MIN_PAIRED = 10
"""Fewest prompts with which an interval is told; that of a bootstrap over fewer is too narrow."""
MAX_PAIRED = 2_000
"""Prompts of which a difference is told; the bootstrap takes 10,000 numbers for each."""
_MAX_VALUE = 80
"""Characters of a reason, end or kind."""
_COUNTED = {
    "reason": "reason",
    "end": "stop_reason",
    "error kind": "unnest(string_split(error_kinds, ','))",
    "left out": "left_out",
}
"""{what is counted over the steps: its column}"""
_SECRET = re.compile(
    r"(?:^|[._-])(?:(?:api|access|secret|private|auth|hf)[_-]?(?:key|token)|password|secret|authorization)$|(?:^|\.)token$",
    re.IGNORECASE,
)
"""End of the key of a setting that holds a secret."""
_FIELD = re.compile(r'"([\w.-]+)": "(?:[^"\\]|\\.)+"')
"""Field of an object within a value in JSON, whose value is a text that is not empty."""
_HIDDEN = '"(not shown)"'
_IS_DECIDED = "isfinite(score) AND coalesce(stop_reason, '') NOT IN ('tool_failure', 'engine_failure')"
"""Condition of the rollouts that say something about the policy."""


class PartSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Rollouts of one part of a run."""

    part: RunPart
    num_rollouts: int
    num_prompts: int
    """Prompts that the dumps name."""
    num_undecided: int
    """Rollouts without a score."""
    num_masked: int
    """Rollouts that failed through the system's fault."""
    num_kept: int | None
    """Rollouts that the update saw; None of validation, and if the dumps do not say."""
    mean_score: float | None
    mean_tokens: float | None
    """Tokens that the policy sampled per rollout."""
    mean_calls: float
    scores: dict[int, float]
    """{step: mean score of its rollouts}"""


class ReportedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    name: str
    """Shortest end of its path that no other run of the report has."""
    path: str
    method: str | None
    versions: dict[str, str]
    """{package: version} of those that the run's files name."""
    checkpoints: list[int]
    settings: dict[str, str]
    """{key with dots: value as JSON}, without values of secrets"""
    metrics: dict[str, list[tuple[int, float]]]
    """{metric: [num_points] step and value}"""
    parts: list[PartSummary]


class OutcomeCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How often rollouts of a part of a run had each reason, each end or each kind of error."""

    run: int
    """Number of the run, from 0."""
    part: RunPart
    what: str
    counts: dict[str, dict[int, int]]
    """{value: {step: rollouts}}, the most frequent value first."""
    others: dict[int, int]
    """{step: rollouts} of all rarer values together."""


class PromptDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Scores of a run minus those of the first run, on the prompts that both have."""

    run: int
    """Number of the run, from 1."""
    part: RunPart
    steps: list[int]
    """Steps that both runs have, whose rollouts are compared; of validation the last one."""
    num_shared: int
    """Prompts of these steps that both runs have a score for."""
    num_paired: int = 0
    """Prompts that are compared: all, or the first 2,000 by their digest."""
    num_higher: int = 0
    """Prompts on which the run scores higher than the first one."""
    num_lower: int = 0
    first_mean: float | None = None
    mean: float | None = None
    difference: float | None = None
    low: float | None = None
    """Lower end of the 95 % interval of a bootstrap over prompts; None if fewer than 10 prompts are compared."""
    high: float | None = None


class ChosenRollout(msgspec.Struct, frozen=True, kw_only=True):
    """One of the best or worst rollouts of a run."""

    run: int
    is_best: bool
    part: RunPart
    file: str
    """Path of its dump below the run's folder."""
    line: int
    step: int | None
    uid: str | None
    prompt_id: str | None
    score: float
    reason: str | None
    detail: str | None
    """The first 200 characters of the explanation."""
    stop_reason: str | None
    num_turns: int | None
    num_calls: int
    num_errors: int
    sampled_tokens: int | None


class TrainingReport(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a report."""

    version: str
    """Version of verl-pivot that wrote the report."""
    runs: list[ReportedRun]
    differing_settings: dict[str, list[str | None]]
    """{key: [num_runs] values} of the settings that are not the same in all runs; None where a run has no such key."""
    outcomes: list[OutcomeCounts]
    differences: list[PromptDifference]
    rollouts: list[ChosenRollout]
    problems: list[str]
    """Sentences about what could not be read."""

    def as_json(self) -> str:
        """All numbers as one JSON object."""
        return json.dumps(msgspec.to_builtins(self, str_keys=True), allow_nan=False, indent=2)


def make_report(index: RunIndex, *, num_rollouts: int) -> TrainingReport:
    """Read all that the runs have at present, and count it.

    Args:
        index: The runs.
        num_rollouts: Number of the best rollouts of each run, and of the worst.

    Raises:
        DataError: If a run has neither settings nor metrics nor rollouts, or too many rollouts to be counted.
    """
    while index.refresh():
        pass
    names = run_names([run.path for run in index.runs])
    summaries = _summaries(index)
    runs = [
        ReportedRun(
            name=name,
            path=str(run.path),
            method=run.method,
            versions=_versions(run),
            checkpoints=run.checkpoints,
            settings={key: _without_secret(key, value) for key, value in run.settings.items()},
            metrics={metric: points for metric in series.names if (points := series.points(metric))},
            parts=parts,
        )
        for name, run, series, parts in zip(names, index.runs, index.metrics, summaries, strict=True)
    ]
    for each in runs:
        if not (each.settings or each.metrics or each.parts):
            why = f": {index.problems[0]}" if index.problems else ""
            raise DataError(
                f"{each.path} has nothing to report, neither settings nor metrics nor rollouts{why}; give the folder "
                "of a run that has sampled a step, or a dump of rollouts"
            )
    differences = [
        _difference(index, part, number)
        for number in range(1, len(runs))
        for part in RunPart
        if any(each.part is part for each in runs[0].parts) and any(each.part is part for each in runs[number].parts)
    ]
    return TrainingReport(
        version=__version__,
        runs=runs,
        differing_settings={
            key: [None if value is None else _without_secret(key, value) for value in values]
            for key, values in differing_settings(dict(zip(names, index.runs, strict=True))).items()
        },
        outcomes=_outcomes(index),
        differences=differences,
        rollouts=[each for number in range(len(runs)) for each in _chosen(index, number, num_rollouts)],
        problems=index.problems,
    )


def open_chosen(index: RunIndex, chosen: ChosenRollout) -> OpenedRollout | str:
    """A chosen rollout with its texts, or the sentence why its dump cannot be read any more."""
    try:
        found = index.find(RolloutPlace(run=chosen.run, file=chosen.file, line=chosen.line))
        place = RowPlace(found.id, index.dump(found.file).path, found.row.byte_offset, found.row.num_bytes)
        return open_rollout(place, found.row.group_name)
    except DataError as error:
        return str(error)


def run_names(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths, of the same number of parts, that differ.

    Example:
        run_names([Path("seed-0/grpo"), Path("seed-1/grpo")])  # ["seed-0/grpo", "seed-1/grpo"]
    """
    parts = [path.resolve().parts[1:] for path in paths]
    ends = ([each[-length:] for each in parts] for length in range(1, max(map(len, parts)) + 1))
    return ["/".join(each) for each in next((found for found in ends if len(set(found)) == len(found)), parts)]


def _without_secret(key: str, value: str) -> str:
    """The value of a setting, as JSON, with a note in place of it or its fields where they are given secrets."""
    if _SECRET.search(key) and value not in ("null", '""'):
        return _HIDDEN
    return _FIELD.sub(lambda field: f'"{field[1]}": {_HIDDEN}' if _SECRET.search(field[1]) else field[0], value)


def _versions(run: TrainingRun) -> dict[str, str]:
    """{package: version} that Hydra wrote for the launch, and transformers beside the last checkpoint."""
    found = {}
    try:
        hydra = yaml.safe_load((run.folder / ".hydra" / "hydra.yaml").read_text())
        found["hydra-core"] = hydra["hydra"]["runtime"]["version"]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError, RecursionError):  # the file is an addition
        pass
    try:
        configs = (run.folder / f"global_step_{run.checkpoints[-1]}").glob("**/config.json")
        found["transformers"] = json.loads(min(configs).read_text())["transformers_version"]
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):  # so are checkpoints
        pass
    return {package: version for package, version in found.items() if isinstance(version, str)}


def _summaries(index: RunIndex) -> list[list[PartSummary]]:
    """[num_runs] parts that have rollouts."""
    scores: dict[tuple[int, str], dict[int, float]] = {}
    for run, part, step, score in _rows(
        index,
        f"SELECT run, part, step, avg(score) FROM rollouts WHERE {_IS_DECIDED} AND step IS NOT NULL "
        "GROUP BY ALL ORDER BY ALL",
    ):
        if math.isfinite(score):
            scores.setdefault((run, part), {})[step] = score
    summaries: list[list[PartSummary]] = [[] for _ in index.runs]
    for run, part, *numbers in _rows(
        index,
        "SELECT run, part, count(*), count(DISTINCT prompt_id), count(*) FILTER (score IS NULL), "
        "count(*) FILTER (stop_reason IN ('tool_failure', 'engine_failure')), "
        "CASE WHEN count(kept) > 0 THEN count(*) FILTER (kept) END, "
        f"avg(score) FILTER ({_IS_DECIDED}), avg(sampled_tokens), avg(num_calls) "
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


def _outcomes(index: RunIndex) -> list[OutcomeCounts]:
    found: dict[tuple[int, str, str], OutcomeCounts] = {}
    for what, column in _COUNTED.items():
        rows = _rows(
            index,
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


def _difference(index: RunIndex, part: RunPart, run: int) -> PromptDifference:
    """The difference of a run from the first one."""
    steps = [
        step
        for (step,) in _rows(
            index,
            "SELECT step FROM rollouts WHERE part = ? AND run = 0 AND step IS NOT NULL INTERSECT "
            "SELECT step FROM rollouts WHERE part = ? AND run = ? ORDER BY 1",
            part.value, part.value, run,
        )
    ]  # fmt: skip
    if part is RunPart.VALIDATION:
        steps = steps[-1:]
    pairs = _rows(
        index,
        "WITH scores AS (SELECT run, prompt_id, avg(score) AS score FROM rollouts WHERE part = ? AND run IN (0, ?) "
        f"AND step IN (SELECT unnest(?::BIGINT[])) AND prompt_id IS NOT NULL AND {_IS_DECIDED} GROUP BY ALL) "
        "SELECT one.score, other.score FROM scores one JOIN scores other ON one.prompt_id = other.prompt_id "
        "WHERE one.run = 0 AND other.run = ? AND isfinite(one.score) AND isfinite(other.score) ORDER BY one.prompt_id",
        part.value, run, steps, run,
    )  # fmt: skip
    if not pairs:
        return PromptDifference(run=run, part=part, steps=steps, num_shared=0)
    first, own = zip(*pairs[:MAX_PAIRED], strict=True)
    value, interval = paired_difference(first, own)
    return PromptDifference(
        run=run,
        part=part,
        steps=steps,
        num_shared=len(pairs),
        num_paired=len(own),
        num_higher=sum(mine > theirs for theirs, mine in zip(first, own, strict=True)),
        num_lower=sum(mine < theirs for theirs, mine in zip(first, own, strict=True)),
        first_mean=_finite(sum(first) / len(first)),
        mean=_finite(sum(own) / len(own)),
        difference=_finite(value),
        low=_finite(interval.low) if len(own) >= MIN_PAIRED else None,
        high=_finite(interval.high) if len(own) >= MIN_PAIRED else None,
    )


def _chosen(index: RunIndex, run: int, num_rollouts: int) -> list[ChosenRollout]:
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
        for (each,) in _rows(
            index,
            f"SELECT id FROM rollouts WHERE run = ? AND part = ? AND {_IS_DECIDED} QUALIFY row_number() OVER "
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


_OF_ROW = tuple(name for name in ChosenRollout.__struct_fields__ if name not in ("run", "is_best", "part", "file"))


def _rows(index: RunIndex, query: str, *values: Any) -> list[tuple[Any, ...]]:
    """The rows that answer a query.

    Raises:
        DataError: If that takes longer, or more memory, than the table allows.
    """
    try:
        found = index.ask(query, *values)
    except ConfigError as error:
        raise DataError(
            f"the rollouts are too many to be counted within {MAX_SECONDS:g} s and {LIMITS['memory_limit']}: give "
            "fewer runs, or a dump of one step"
        ) from error
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True))


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
