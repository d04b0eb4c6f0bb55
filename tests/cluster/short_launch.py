"""Method -> a short launch of it like that of `verl-pivot smoke`, with further settings of a test."""

from pathlib import Path
from subprocess import CompletedProcess

from tests.support.launching import launch, step_metrics
from verl_pivot.smoke.composing import compose, texts_of, this_machine
from verl_pivot.smoke.methods import case_of
from verl_pivot.smoke.smoke_run import complaint_of
from verl_pivot.smoke.tiny_model import write_writing_model

SECONDS = 900.0
"""Time limit of one launch."""


def short_launch(folder: Path, method: str, *overrides: str, num_workers: int) -> list[str]:
    """Overrides of a launch with tiny rows and a tiny policy that calls tools; `overrides` come last."""
    case = case_of(method)
    model = write_writing_model(folder / "model", turns=case.turns, corpus=texts_of(case))
    return [*compose(method, case, folder, model, this_machine(num_workers), services=None), *overrides]


def steps_of(method: str, done: CompletedProcess[str]) -> dict[int, dict[str, float]]:
    """{step: {metric: value}} of a launch, which must have succeeded; step 0 is the validation before training."""
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    steps = step_metrics(done.stdout)
    assert complaint_of(case_of(method), [steps[number] for number in steps if number]) is None
    return steps


def run_short_launch(folder: Path, method: str, *overrides: str, num_workers: int) -> dict[int, dict[str, float]]:
    """Launch a method; returns {step: {metric: value}}."""
    words = short_launch(folder, method, *overrides, num_workers=num_workers)
    return steps_of(method, launch(folder, *words, timeout_seconds=SECONDS))
