"""A method, or a user's launch -> SmokeResult: two steps with a tiny policy, and whether their metrics show a fault."""

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from verl_pivot.data.rollout_records import StopReason
from verl_pivot.errors import ConfigError
from verl_pivot.smoke.composing import SmokeMachine, compose, needs_services, texts_of
from verl_pivot.smoke.given_settings import given_settings
from verl_pivot.smoke.methods import SmokeCase, case_of
from verl_pivot.smoke.shortening import MODEL, shortened
from verl_pivot.smoke.stand_ins import standing_in
from verl_pivot.smoke.tiny_model import write_like, write_writing_model
from verl_pivot.smoke.trial_launch import LaunchOutcome, run_launch

_STAMP = ".smoke"


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeResult:
    """Result of two steps of a method."""

    method: str
    complaint: str | None
    """Why the method does not work here; None: it works."""
    seconds: float
    """Wall time of the launch."""
    phases: Mapping[str, float]
    """{phase: seconds}, in their order."""
    metrics: Mapping[str, float]
    """{metric: value} of the last step; empty if there was none."""
    overrides: Sequence[str]
    log: Path


def smoke(
    method: str, folder: Path, machine: SmokeMachine, model: str | None, say: Callable[[str], None]
) -> SmokeResult:
    """Run two steps of a method.

    Args:
        method: Name of the method.
        folder: Folder for its files; emptied first.
        machine: Machine on which it runs.
        model: Checkpoint whose architecture and tokenizer the policy takes; None: the tiny one that calls tools.
        say: Called with each line about what happens.

    Raises:
        ConfigError: If the model cannot be read.
    """
    case, folder = case_of(method), _emptied(folder)
    say(f"{method}: writing the policy and its rows")
    if model is None:
        policy = write_writing_model(folder / "model", turns=case.turns, corpus=texts_of(case))
    else:
        policy = write_like(model, folder / "model")
    with standing_in(folder) if needs_services(case) else nullcontext() as services:
        overrides = compose(method, case, folder, policy, machine, services)
        outcome = run_launch(folder, overrides, say)
    steps = outcome.metrics.values()  # a policy with random weights hardly ever calls a tool
    complaint = outcome.cause or (complaint_of(case, steps) if model is None else failure_of(steps))
    return _result(method, outcome, overrides, complaint)


def smoke_launch(
    launch: Sequence[str], folder: Path, machine: SmokeMachine, model: str | None, say: Callable[[str], None]
) -> SmokeResult:
    """Run two steps of a user's launch, with a tiny model of the same architecture.

    Args:
        launch: Overrides of the launch.
        folder: Folder for its files; emptied first.
        machine: Machine on which it runs.
        model: Checkpoint whose architecture and tokenizer the policy takes; None: the one that the launch names.
        say: Called with each line about what happens.

    Raises:
        ConfigError: If the launch names no model, or it cannot be read.
    """
    given, folder = given_settings(launch), _emptied(folder)
    source = model or given.get(MODEL)
    if source is None:
        raise ConfigError(f"the launch has no {MODEL}: add it, or give --model")
    short = shortened(launch, folder, folder / "model", machine)
    for replacement in short.replacements:
        say(f"  {replacement}")
    write_like(source, folder / "model")
    outcome = run_launch(folder, short.overrides, say, place=Path.cwd())
    complaint = outcome.cause or failure_of(outcome.metrics.values())
    return _result(given.get("method", "verl"), outcome, short.overrides, complaint)


def _emptied(folder: Path) -> Path:
    """A folder for a smoke, without what an earlier one left in it.

    Raises:
        ConfigError: If it holds something else.
    """
    folder = folder.absolute()
    if folder.exists() and not (folder / _STAMP).is_file():
        raise ConfigError(f"{folder} exists and is not the folder of an earlier smoke: give another --out")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / _STAMP).touch()
    return folder


def _result(method: str, outcome: LaunchOutcome, overrides: Sequence[str], complaint: str | None) -> SmokeResult:
    return SmokeResult(
        method=method,
        complaint=complaint,
        seconds=outcome.seconds,
        phases=outcome.phases,
        metrics=outcome.metrics[max(outcome.metrics)] if outcome.metrics else {},
        overrides=tuple(overrides),
        log=outcome.log,
    )


def complaint_of(case: SmokeCase, steps: Collection[Mapping[str, float]]) -> str | None:
    """Fault that the metrics show of a method whose policy calls tools; None if they show none.

    Args:
        case: Case of the method.
        steps: [num_steps] {metric: value}
    """
    if failure := failure_of(steps):
        return failure
    if case.tools is not None and not any(metrics.get("rollout/calls_per_trajectory") for metrics in steps):
        return "no rollout called a tool, though the policy writes calls"
    return None


def failure_of(steps: Collection[Mapping[str, float]]) -> str | None:
    """Sentence about rollouts in which the system failed, from the metrics; None if it failed in none.

    Args:
        steps: [num_steps] {metric: value}
    """
    for metrics in steps:
        if share := metrics.get("rollout/masked_rate", 0.0):
            masking = [f"rollout/stop_reason/{reason}" for reason in StopReason if reason.is_masked]
            reasons = [name for name in masking if metrics.get(name)] or ["their agent loop raised an error"]
            return f"{share:.0%} of the rollouts were masked, since the system failed in them: {', '.join(reasons)}"
        if number := metrics.get("pivot/undecided_rows", 0.0):
            return f"the rewards of {number:.0f} rollouts could not be decided"
    return None
