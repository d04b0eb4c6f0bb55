"""The study's options and files -> the hashes that outcomes and measurements carry; verdicts have none."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from examples.quickstart.training import PROJECT
from examples.study.arms import StudyOptions
from examples.study.tuned import TunedRates
from verl_pivot.errors import ConfigError

OUTCOME_SOURCES = (
    "examples/study/domains/*.py",
    "examples/study/environment.py",
    "examples/study/policy.py",
    "examples/study/recording.py",
    "examples/study/rows.py",
    "examples/study/sft.py",
    "examples/study/tools.yaml",
    "examples/quickstart/policy.py",
    "examples/quickstart/shop.py",
    "examples/quickstart/tasks.py",
    "examples/world/*.py",
)
"""Files of the project that decide outcomes and do not show in the settings of a unit: tasks and clerks, the policy,
SFT, and the rows of each arm. A unit's settings hold its exact launch; for verl-pivot, the page names the commit."""
MEASUREMENT_SOURCES = tuple(
    f"examples/study/{name}.py"
    for name in ("measurement_units", "measures", "outside_kl", "signals", "torch_policy", "turn_gains")
)
"""Files that decide measures without a verdict, in addition to those that decide outcomes."""
_OF_NO_OUTCOME = frozenset({"seeds", "tuning_seed", "tries", "num_measured_turns"})
"""Keys of arms.yaml that do not affect the outcome of a unit: they say which units there are, and what is measured."""


def outcomes_digest(
    study: StudyOptions, tuned: TunedRates | None, *, is_tuning: bool = False, project: Path = PROJECT
) -> str:
    """12 hexadecimal digits of the SHA-256 of the options and files that decide outcomes.

    Args:
        study: Contents of arms.yaml.
        tuned: Contents of tuned.yaml; None if there is no such file.
        is_tuning: Whether the outcomes are those of tries, on validation tasks.
        project: Folder of the project.
    """
    unplayed = {"num_held_out", "num_outside"} if is_tuning else {"num_validation"}
    options = study.model_dump(mode="json", exclude={*_OF_NO_OUTCOME, *unplayed}, exclude_defaults=True)
    rates = None if tuned is None else tuned.model_dump(mode="json", exclude_defaults=True)
    return _digest([options, rates], OUTCOME_SOURCES, project)


def measurements_digest(study: StudyOptions, *, project: Path = PROJECT) -> str:
    """The same kind of hash for measures without a verdict, of what decides them in addition to the outcomes."""
    return _digest([study.num_measured_turns], MEASUREMENT_SOURCES, project)


def _digest(options: object, patterns: Iterable[str], project: Path) -> str:
    texts = [json.dumps(options, sort_keys=True), *(file_text(path) for path in source_files(patterns, project))]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def source_files(patterns: Iterable[str], project: Path = PROJECT) -> list[Path]:
    """Files that a hash covers, in a fixed order."""
    return [path for pattern in patterns for path in sorted(project.glob(pattern))]


def file_text(path: Path) -> str:
    """Text of a file of the project.

    Raises:
        ConfigError: If it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): restore it, it belongs to the study") from error
