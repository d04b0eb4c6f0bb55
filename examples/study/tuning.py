"""Finished tries of a tuning study -> TunedRates, with a sentence for each arm whose tries are not all finished."""

from typing import NamedTuple

from examples.study.outcomes import UnitEvaluation, accuracy
from examples.study.study import Study, is_finished
from examples.study.tuned import TriedSettings, TunedRates
from examples.study.verdicts import LEAST_KNOWN
from verl_pivot.errors import DataError


class TuningOutcome(NamedTuple):
    """Results of tuning so far."""

    rates: TunedRates
    missing: list[str]
    """A sentence for each arm that is left out, since one of its tries is not finished."""


def tuning_outcome(tuning: Study) -> TuningOutcome:
    """The tries of each arm whose tries are all finished, including those that other commands ran.

    Raises:
        DataError: If too many outcomes of a finished try are unknown.
    """
    (seed,), study = tuning.seeds, tuning.design.study
    tries: list[TriedSettings] = []
    missing: list[str] = []
    for arm in study.arms:
        tried = study.tried(arm) if arm.kind in study.tries else []
        unfinished = [each.name for each in tried if not is_finished(seed.unit(each))]
        if unfinished:
            missing.append(f"{arm.name} is not tuned: {', '.join(unfinished)} not finished.")
            continue
        for each in tried:
            assert each.learning_rate is not None, each
            solved = share_solved(seed.results(each)[-1])
            tries.append(
                TriedSettings(arm=arm.name, learning_rate=each.learning_rate, num_epochs=each.num_epochs, solved=solved)
            )
    rates = TunedRates(
        policy=seed.model.name,
        seed=seed.seed,
        sizes=study.sizes,
        design=seed.digest,
        tries=tuple(tries),
    )
    return TuningOutcome(rates, missing)


def share_solved(evaluation: UnitEvaluation) -> float:
    """Share of solved tasks, of those whose outcome is known, averaged over the domains.

    Raises:
        DataError: If too few outcomes are known, so that failures of the system would decide which try is chosen.
    """
    for group, tasks in evaluation.solved.items():
        num_unknown = sum(solved is None for solved in tasks.values())
        if num_unknown > (1.0 - LEAST_KNOWN) * len(tasks):
            raise DataError(
                f"{evaluation.arm} does not know the outcomes of {num_unknown} of {len(tasks)} {group} tasks: remove "
                "its folder, and run tune again on a machine that is less busy"
            )
    share = accuracy(evaluation, sorted(evaluation.solved))
    assert share is not None, evaluation.arm  # each domain has tasks, of which some are known
    return share
