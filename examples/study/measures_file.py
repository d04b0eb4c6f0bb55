"""Measures without a verdict <-> measures.json, from which the page can be made again."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from examples.study.measures import has_signal
from verl_pivot.data.files import replacing
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.validation import Options, validated

MEASURES = "measures.json"
"""Name of the file in a study's folder."""


class SignalCount(Options):
    """Turns of one domain in the profile of a seed, and how strict match judges their samples."""

    seed: int
    domain: str
    num_samples: int
    """K, the number of samples of each turn."""
    num_turns: int
    """Turns with at least one sample that the verifier could decide."""
    num_without_signal: int
    """Turns of these whose decided samples all have the same reward."""
    num_accepted: int
    """Samples with the verifier's full score."""
    num_missed: int
    """Accepted samples that strict match refuses, since they are not exactly the expert's action."""


class StepVariance(Options):
    """Rewards of one training step."""

    arm: str
    seed: int
    step: int
    within_groups: float
    """Variance of the rewards within a group, averaged over the groups."""
    of_batch: float
    """Variance of all rewards of the step."""


class TurnGain(Options):
    """One update on one turn."""

    seed: int
    turn: str
    domain: str
    num_answers: int
    """Answers of the update that the verifier could decide."""
    deviation: float | None
    """Population standard deviation of the rewards of these answers; None if it could not be measured."""
    gain: float | None
    """Mean reward after the update minus that before; None if it could not be measured."""

    @property
    def is_measured(self) -> bool:
        return self.deviation is not None and self.gain is not None

    @property
    def has_signal(self) -> bool:
        """Whether the answers differed in reward."""
        return self.deviation is not None and has_signal((0.0, self.deviation))


class OutsideKl(Options):
    """How far a trained policy moved from the base policy on the prompts of one kind outside of the domains."""

    arm: str
    seed: int
    group: str
    num_tokens: int
    """Tokens that the trained policy sampled."""
    nats: float
    """Sum of KL(trained || base) over these tokens, in nats."""


class StudyMeasures(Options):
    """Contents of measures.json."""

    digest: str
    """Hash of the design, as in the outcomes that were measured."""
    measured_by: str = ""
    """Hash of the options and files that decide the measures (`examples.study.digests`); empty in files of units."""
    signals: tuple[SignalCount, ...] = ()
    variances: tuple[StepVariance, ...] = ()
    gains: tuple[TurnGain, ...] = ()
    kls: tuple[OutsideKl, ...] = ()

    def with_results(self, results: "Iterable[StudyMeasures]") -> "StudyMeasures":
        """These measures, followed by those of single units."""
        every = [self, *results]
        return StudyMeasures(
            digest=self.digest,
            measured_by=self.measured_by,
            signals=_joined(each.signals for each in every),
            variances=_joined(each.variances for each in every),
            gains=_joined(each.gains for each in every),
            kls=_joined(each.kls for each in every),
        )


RowT = TypeVar("RowT")


def _joined(rows: Iterable[Sequence[RowT]]) -> tuple[RowT, ...]:
    return tuple(row for several in rows for row in several)


def write_measures(measures: StudyMeasures, path: Path) -> None:
    """Write measures.json with one row per line."""
    fields = [f'"{name}": {json.dumps(getattr(measures, name))}' for name in ("digest", "measured_by")]
    for name in ("signals", "variances", "gains", "kls"):
        rows = ",\n".join(json.dumps(row.model_dump()) for row in getattr(measures, name))
        fields.append(f'"{name}": [\n{rows}\n]' if rows else f'"{name}": []')
    with replacing(path) as unfinished:
        unfinished.write_text("{" + ",\n".join(fields) + "}\n")


def read_measures(path: Path) -> StudyMeasures:
    """Read what `write_measures` wrote.

    Raises:
        DataError: If the file is missing, or does not hold the measures of a study.
    """
    remedy = "name the measures.json that the study wrote, or run `python -m examples.study` again"
    try:
        return validated(StudyMeasures, json.loads(path.read_text()), path.name)
    except ConfigError as error:
        raise DataError(f"{path} holds no measures of a study ({error}): {remedy}") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as JSON ({error}): {remedy}") from error
