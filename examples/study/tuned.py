"""Tries of each arm on the tuning seed -> the settings with the best validation, and tuned.yaml, which keeps them."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from examples.study.arms import Arm, StudyOptions, Try
from verl_pivot.data.files import replacing
from verl_pivot.errors import ConfigError
from verl_pivot.validation import Options, validated

_HEAD = """\
# What `python -m examples.study tune` found; of each arm the try that solved most validation tasks counts.
# Beside arms.yaml in examples/study, this file replaces learning rates and epochs there.
"""


class TriedSettings(Try):
    """One try of one arm."""

    arm: str
    solved: float
    """Mean over domains of the share of validation tasks that it solved after its last step."""


class TunedRates(Options):
    """Contents of tuned.yaml."""

    policy: str
    """Name of the policy that was tuned, as `examples.study.models` gives it; the rates apply to no other."""
    seed: int
    """The tuning seed, which is not reported."""
    sizes: dict[str, int]
    """{name: value} of the sizes that the tries had; the rates do not apply to other sizes."""
    design: str
    """Hash of the design of the tries, without this file, followed by what the command changed in it."""
    tries: tuple[TriedSettings, ...]

    def best(self, arm: str) -> TriedSettings | None:
        """The try that solved most; among equal ones, that with the lowest learning rate, then the fewest epochs."""
        tries = [each for each in self.tries if each.arm == arm]
        return max(tries, key=lambda each: (each.solved, -each.learning_rate, -(each.num_epochs or 0)), default=None)


def scaled_study(study: StudyOptions, factor: float) -> StudyOptions:
    """The study with all learning rates multiplied by a factor, including those of tries."""
    arms, extra = (
        tuple(_with_rate(arm, arm.learning_rate and arm.learning_rate * factor) for arm in several)
        for several in (study.arms, study.extra_arms)
    )
    tries = {
        kind: tuple(each.model_copy(update={"learning_rate": each.learning_rate * factor}) for each in several)
        for kind, several in study.tries.items()
    }
    return study.model_copy(update={"arms": arms, "extra_arms": extra, "tries": tries})


def check_sizes(tuned: TunedRates, study: StudyOptions, path: Path) -> None:
    """Refuse rates that were tuned with other sizes, such as those of a rehearsal.

    Raises:
        ConfigError: If sizes differ; the message names them.
    """
    differing = [
        f"{name} {tuned.sizes.get(name)}, not {value}"
        for name, value in study.sizes.items()
        if tuned.sizes.get(name) != value
    ]
    if differing:
        raise ConfigError(
            f"{path} was tuned with {', '.join(differing)}: run tune with the sizes of arms.yaml, or remove the file"
        )


def tuned_study(study: StudyOptions, tuned: TunedRates) -> StudyOptions:
    """The study in which each tuned arm has the settings of its best try.

    Raises:
        ConfigError: If an arm of a try does not exist, or does not take its settings, or if a core arm has no tries.
    """
    known = {arm.name for arm in study.all_arms}
    if wrong := sorted({each.arm for each in tuned.tries} - known):
        raise ConfigError(f"tuned.yaml names the arm {wrong[0]}, which arms.yaml does not have: run tune again")
    tried = {each.arm for each in tuned.tries}
    if missing := [arm.name for arm in study.arms if arm.learning_rate is not None and arm.name not in tried]:
        raise ConfigError(f"tuned.yaml has no tries of the arm {missing[0]}: run tune to its end")
    arms, extra = (tuple(_tuned(arm, tuned) for arm in several) for several in (study.arms, study.extra_arms))
    return study.model_copy(update={"arms": arms, "extra_arms": extra})


def _tuned(arm: Arm, tuned: TunedRates) -> Arm:
    best = tuned.best(arm.name)
    if best is None:
        return arm
    changed = {"learning_rate": best.learning_rate, "num_epochs": best.num_epochs}
    return validated(Arm, {**arm.model_dump(exclude_unset=True), **changed}, "tuned.yaml")


def _with_rate(arm: Arm, rate: float | None) -> Arm:
    return arm.model_copy(update={"learning_rate": rate})


def write_tuned(tuned: TunedRates, path: Path) -> None:
    with replacing(path) as unfinished:
        content = tuned.model_dump(exclude_none=True)
        unfinished.write_text(_HEAD + yaml.safe_dump({**content, "tries": list(content["tries"])}, sort_keys=False))


def read_tuned(path: Path) -> TunedRates:
    """Read what `write_tuned` wrote.

    Raises:
        ConfigError: If the file is missing or wrong.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"{path} cannot be read as YAML ({error}): run `python -m examples.study tune` again, or remove the file"
        ) from error
    return validated(TunedRates, content, path.name)


def tuning_lines(tuned: TunedRates, arms: Sequence[str]) -> list[str]:
    """A line for each try; the best of each arm is marked, also if its rate is the lowest or highest that was tried."""
    lines = []
    for arm in arms:
        best, tries = tuned.best(arm), [each for each in tuned.tries if each.arm == arm]
        for each in tries:
            epochs = "" if each.num_epochs is None else f", {each.num_epochs} epochs"
            mark = f", the best{_edges(each, tries)}" if each == best else ""
            lines.append(f"{arm}: learning rate {each.learning_rate:g}{epochs}: {100 * each.solved:.1f} %{mark}")
    return lines


def _edges(best: TriedSettings, tries: Sequence[TriedSettings]) -> str:
    """Note if the best rate is the lowest or highest that was tried, since a better one may lie beyond; else empty."""
    rates = [each.learning_rate for each in tries]
    edges = [name for name, edge in (("lowest", min(rates)), ("highest", max(rates))) if best.learning_rate == edge]
    return f", with the {' and '.join(edges)} learning rate that was tried" if edges else ""
