"""RunIndex -> TrainingReport: the numbers of `verl-pivot report`, of one run or of several beside each other."""

import json
import re

from verl_pivot import __version__
from verl_pivot.errors import DataError
from verl_pivot.inspect.opened import OpenedRollout, open_rollout
from verl_pivot.inspect.prompt_changes import prompt_difference
from verl_pivot.inspect.queries import RolloutPlace, RunIndex
from verl_pivot.inspect.report_counts import choose_rollouts, count_outcomes, count_parts
from verl_pivot.inspect.report_numbers import ChosenRollout, ReportedRun, TrainingReport
from verl_pivot.runs.run import RunPart, TrainingRun, differing_settings, run_names

_SECRET = re.compile(
    r"(?:^|[._-])(?:(?:api|access|secret|private|auth|hf)[_-]?(?:key|token)|password|secret|authorization)$|(?:^|\.)token$",
    re.IGNORECASE,
)
"""End of the key of a setting that holds a secret."""
_SECRET_VARIABLE = re.compile(r"(?:^|\.)[A-Z0-9_]*(?:TOKEN|KEY|SECRET|PASSWORD)$")
"""Name of an environment variable that holds a secret."""
_CREDENTIALS = re.compile(r'(?<=://)[^/@\s"]+@')
"""User name and password within a URL."""
_FIELD = re.compile(r'"([\w.-]+)": "(?:[^"\\]|\\.)+"')
"""Field of an object within a value in JSON, whose value is a text that is not empty."""
_HIDDEN = '"(not shown)"'


def make_report(index: RunIndex, *, num_rollouts: int) -> TrainingReport:
    """Read everything that the runs have at present, and compute the numbers of the report.

    Args:
        index: The runs.
        num_rollouts: Number of the best rollouts of each run, and of the worst.

    Raises:
        DataError: If a run has neither settings nor metrics nor rollouts, or too many rollouts to be counted.
    """
    while index.refresh():
        pass
    names = run_names([run.path for run in index.runs])
    summaries = count_parts(index)
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
                f"{each.path} has no settings, metrics or rollouts to report{why}; give the folder of a run that has "
                "sampled a step, or a dump of rollouts"
            )
    differences = [
        prompt_difference(index, part, number)
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
        outcomes=count_outcomes(index),
        differences=differences,
        rollouts=[each for number in range(len(runs)) for each in choose_rollouts(index, number, num_rollouts)],
        problems=index.problems,
    )


def open_chosen(index: RunIndex, chosen: ChosenRollout) -> OpenedRollout | str:
    """A chosen rollout with its texts, or a sentence that says why its dump cannot be read."""
    try:
        found = index.find(RolloutPlace(run=chosen.run, file=chosen.file, line=chosen.line))
        return open_rollout(index, found)
    except DataError as error:
        return str(error)


def _without_secret(key: str, value: str) -> str:
    """The value of a setting as JSON, with a note in place of a secret value or of its secret fields."""
    if _is_secret(key) and value not in ("null", '""'):
        return _HIDDEN
    shown = _FIELD.sub(lambda field: f'"{field[1]}": {_HIDDEN}' if _is_secret(field[1]) else field[0], value)
    return _CREDENTIALS.sub("(not shown)@", shown)


def _is_secret(key: str) -> bool:
    return bool(_SECRET.search(key) or _SECRET_VARIABLE.search(key))


def _versions(run: TrainingRun) -> dict[str, str]:
    """{package: version} that Hydra wrote for the launch, and transformers beside the last checkpoint."""
    found = {"hydra-core": run.hydra_runtime.get("version")}
    try:
        configs = (run.folder / f"global_step_{run.checkpoints[-1]}").glob("**/config.json")
        found["transformers"] = json.loads(min(configs).read_text())["transformers_version"]
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):  # checkpoints are an addition
        pass
    return {package: version for package, version in found.items() if isinstance(version, str)}
