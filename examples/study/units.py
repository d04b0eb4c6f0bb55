"""The design of a study -> its units, each a folder, and the work that finishes one."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from rich.console import Console

from examples.arms import Lengths
from examples.evaluated_training import train_and_evaluate
from examples.study.arms import Arm, ArmKind, StudyOptions
from examples.study.domains.known import DOMAINS, OUTSIDE
from examples.study.domains.protocol import StudyTask
from examples.study.measurement_units import Measurement
from examples.study.models import StudyModel, study_model
from examples.study.outcomes import UnitEvaluation
from examples.study.recording import (
    expert_seeds,
    held_out_tasks,
    record_all,
    tasks_of,
    validation_tasks,
    write_tasks,
    write_trajectories,
)
from examples.study.rows import ProfiledTurns, find_pivots, profiled_turns, rows_of
from examples.study.sft import SftSettings, train_sft
from examples.study.training import StudyTraining, evaluations
from examples.units import Unit
from verl_pivot.engines.server import sglang_server
from verl_pivot.errors import ConfigError

MEASURED_BY = "measured_by"
"""Key in the settings of a measurement's unit, for the hash of the code that measures."""
_TOOLS = Path(__file__).parent / "tools.yaml"


class Evaluated(StrEnum):
    """Tasks that the arms of a seed play."""

    HELD_OUT = "held_out"
    """Held-out tasks, whose outcomes the study reports."""
    VALIDATION = "validation"
    """Validation tasks of tuning: of the domains alone, neither held out nor used in any training."""


@dataclass(frozen=True, kw_only=True)
class StudySeed:
    """All units of one seed: its policy, its profile, its arms and its measurements."""

    seed: int
    folder: Path
    """Folder of the whole study."""
    study: StudyOptions
    digest: str
    """Hash of the design, followed by what the command changed in it, as the outcomes carry it."""
    measured_by: str
    """Hash of the options and files that decide measures without a verdict."""
    console: Console
    model: StudyModel = field(default_factory=lambda: study_model(None, on_gpu=False))
    evaluated: Evaluated = Evaluated.HELD_OUT

    @cached_property
    def own(self) -> Path:
        return self.folder.resolve() / f"seed-{self.seed}"  # the trainer's processes have other working directories

    @property
    def policy(self) -> Path:
        return self.model.weights or self.own / "policy"

    @property
    def lengths(self) -> Lengths:
        return self.model.lengths

    @property
    def on_gpu(self) -> bool:
        return self.model.on_gpu

    @property
    def num_measured_turns(self) -> int:
        return self.study.num_measured_turns

    @property
    def files(self) -> ProfiledTurns:
        return profiled_turns(self.own)

    @property
    def trajectories(self) -> Path:
        return self.own / "trajectories.jsonl"

    @property
    def policy_unit(self) -> Unit:
        return self._unit("policy", "policy-unit", {**self.model.settings(self.seed), "design": self.digest})

    @property
    def profile_unit(self) -> Unit:
        settings = {"num_trajectories": self.study.num_trajectories, "design": self.digest, "model": self.model.name}
        return self._unit("profile", "profile-unit", settings)

    def measurement_unit(self, measurement: Measurement) -> Unit:
        about = {MEASURED_BY: self.measured_by, "arms": ",".join(measurement.arms)}
        settings = {**about, "design": self.digest, "model": self.model.name}
        return self._unit(measurement.name, f"measured-{measurement.name}", settings)

    def unit(self, arm: Arm) -> Unit:
        about = {"model": self.model.name, "design": self.digest, "arm": arm.model_dump_json(exclude_defaults=True)}
        return self._unit(arm.name, arm.name, {**self._training(arm).settings, **about})

    def _unit(self, name: str, folder: str, settings: Mapping[str, object]) -> Unit:
        plain = {key: value if isinstance(value, int | float) else str(value) for key, value in settings.items()}
        return Unit(arm=name, seed=self.seed, folder=self.own / folder, settings={**plain})

    def make_policy(self) -> None:
        self.model.make(self.policy, self.seed)

    def make_profile(self) -> None:
        """Record the expert's trajectories, and profile every turn of them."""
        self.own.mkdir(parents=True, exist_ok=True)
        write_trajectories(self.trajectories, asyncio.run(record_all(tasks_of(list(DOMAINS), self._expert_seeds))))
        with sglang_server(str(self.policy), log=self.own / "server.log", seed=self.seed, console=self.console) as url:
            find_pivots(self.trajectories, self.policy, url, self.files, self.seed, self.lengths)

    def run(self, arm: Arm) -> None:
        """Train one arm and play the evaluation tasks, continuing from what earlier runs left."""
        if arm.after is not None and not self._start_of(arm).is_dir():
            raise ConfigError(
                f"{arm.name} goes on from {self._start_of(arm)}, which is not there: run {arm.after} again"
            )
        training = self._training(arm)
        training.folder.mkdir(parents=True, exist_ok=True)
        write_tasks(training.held_out, self._evaluation_tasks())
        if arm.kind is ArmKind.TURNS:
            rows_of(arm, self.files, training.rows, self.seed)
        elif arm.kind is ArmKind.TASKS:
            write_tasks(training.rows, tasks_of(list(DOMAINS), self._expert_seeds))
        elif arm.kind is ArmKind.SFT:
            assert arm.num_epochs is not None, arm
            assert arm.learning_rate is not None, arm
            settings = SftSettings(
                learning_rate=arm.learning_rate, num_epochs=arm.num_epochs, seed=self.seed, on_gpu=self.on_gpu
            )
            train_sft(self.policy, self.trajectories, settings, training.folder)
        train_and_evaluate(training, self.console)
        self.results(arm)  # raises if the unit lacks something

    def results(self, arm: Arm) -> list[UnitEvaluation]:
        """Evaluations of a finished arm."""
        before = None if arm.after is None else self.results(self._arm(arm.after))[-1]
        uses_profile = arm.kind is ArmKind.TURNS or before is not None
        profile_turns = self.files.num_sampled if uses_profile else 0
        return evaluations(self._training(arm), self.seed, profile_turns, before)

    def measure(self, measurement: Measurement) -> None:
        """Run a measurement, continuing from what earlier runs left."""
        measurement.run(self, self.measurement_unit(measurement).folder)

    def training_of(self, arm: str) -> StudyTraining:
        return self._training(self._arm(arm))

    def trained_policy(self, arm: str) -> Path:
        """Folder of the policy with which an arm ended."""
        training = self.training_of(arm)
        return training.trained if training.is_trained else training.model

    def _arm(self, name: str) -> Arm:
        return next(arm for arm in self.study.all_arms if arm.name == name)

    def _start_of(self, arm: Arm) -> Path:
        """Folder of the policy that the stock trainer starts from, or only evaluates."""
        if arm.after is not None:
            return self._training(self._arm(arm.after)).trained
        return self.own / arm.name / "policy" if arm.kind is ArmKind.SFT else self.policy

    def _training(self, arm: Arm) -> StudyTraining:
        folder, held_out = self.own / arm.name, self.own / f"{self.evaluated}.parquet"
        trains = arm.kind in (ArmKind.TURNS, ArmKind.TASKS)
        return StudyTraining(
            name=arm.name,
            kind=arm.kind,
            recipe=arm.recipe,
            model=self._start_of(arm),
            rows=folder / "rows.parquet" if trains else held_out,
            held_out=held_out,
            tools=_TOOLS,
            folder=folder,
            seed=self.seed,
            num_steps=self.study.steps_of(arm),
            learning_rate=arm.learning_rate or 1e-6,  # verl needs a rate even if nothing is trained
            batch_size=self.study.batch_size,
            group_size=self.study.group_size,
            num_evaluations=arm.num_evaluations,
            machine=self.model.overrides,
            lengths=self.lengths,
            pass_size=self.model.pass_size,
        )

    def _evaluation_tasks(self) -> list[StudyTask]:
        if self.evaluated is Evaluated.VALIDATION:
            return [task for domain in DOMAINS for task in validation_tasks(domain, self.study.num_validation)]
        numbers = {**dict.fromkeys(DOMAINS, self.study.num_held_out), **dict.fromkeys(OUTSIDE, self.study.num_outside)}
        return [task for group, number in numbers.items() for task in held_out_tasks(group, number, self.seed)]

    @property
    def _expert_seeds(self) -> range:
        return expert_seeds(self.seed, self.study.num_trajectories)
