"""The design of a study -> its units, each a folder, and the work that finishes one."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from rich.console import Console

from examples.evaluated_training import train_and_evaluate
from examples.study.arms import Arm, ArmKind, StudyOptions
from examples.study.domains.known import DOMAINS, OUTSIDE
from examples.study.domains.protocol import StudyTask
from examples.study.outcomes import UnitEvaluation
from examples.study.policy import make_policy, sft_config
from examples.study.recording import held_out_tasks, record_all, write_tasks, write_trajectories
from examples.study.rows import ProfiledTurns, find_pivots, profiled_turns, rows_of
from examples.study.sft import train_sft
from examples.study.training import StudyTraining, evaluations
from examples.units import Unit
from verl_pivot.engines.server import sglang_server
from verl_pivot.errors import ConfigError, DataError

_FIRST_EXPERT_SEED = 100_000
"""First seed of the expert's tasks of a study's seed; those of other seeds lie as far behind it."""
_TOOLS = Path(__file__).parent / "tools.yaml"
_NUM_TRAINING_TASKS = 2000
"""Whole tasks that `end_to_end` draws from."""


@dataclass(frozen=True, kw_only=True)
class StudySeed:
    """All units of one seed: its policy, the profile, and an arm each."""

    seed: int
    folder: Path
    """Folder of the whole study."""
    study: StudyOptions
    digest: str
    """What the results carry: the hash of the design, and what the command changed in it."""
    console: Console

    @cached_property
    def own(self) -> Path:
        return self.folder.resolve() / f"seed-{self.seed}"  # the trainer's processes run elsewhere

    @property
    def policy(self) -> Path:
        return self.own / "policy"

    @property
    def files(self) -> ProfiledTurns:
        return profiled_turns(self.own)

    @property
    def trajectories(self) -> Path:
        return self.own / "trajectories.jsonl"

    @property
    def policy_unit(self) -> Unit:
        return self._unit("policy", "policy-unit", {**asdict(sft_config(self.seed)), "design": self.digest})

    @property
    def profile_unit(self) -> Unit:
        settings = {"num_trajectories": self.study.num_trajectories, "design": self.digest}
        return self._unit("profile", "profile-unit", settings)

    def unit(self, arm: Arm) -> Unit:
        settings = self._training(arm).settings
        return self._unit(arm.name, arm.name, {**settings, "design": self.digest, "arm": arm.model_dump_json()})

    def _unit(self, name: str, folder: str, settings: Mapping[str, object]) -> Unit:
        plain = {key: value if isinstance(value, int | float) else str(value) for key, value in settings.items()}
        return Unit(arm=name, seed=self.seed, folder=self.own / folder, settings={**plain})

    def make_policy(self) -> None:
        make_policy(self.policy, sft_config(self.seed))

    def make_profile(self) -> None:
        """Record the expert and profile every turn of it."""
        first = _FIRST_EXPERT_SEED * (self.seed + 1)
        seeds = range(first, first + self.study.num_trajectories)
        write_trajectories(self.trajectories, asyncio.run(record_all(list(DOMAINS), seeds)))
        with sglang_server(str(self.policy), log=self.own / "server.log", seed=self.seed, console=self.console) as url:
            find_pivots(self.trajectories, self.policy, url, self.files, self.seed)

    def run(self, arm: Arm) -> None:
        """Train one arm and play the held-out tasks, going on from whatever is there."""
        if arm.after is not None and not self._start_of(arm).is_dir():
            raise ConfigError(
                f"{arm.name} goes on from {self._start_of(arm)}, which is not there: run {arm.after} again"
            )
        training = self._training(arm)
        training.folder.mkdir(parents=True, exist_ok=True)
        self._write_held_out(training.held_out)
        if arm.kind is ArmKind.TURNS:
            rows_of(arm, self.files, training.rows, self.seed)
        elif arm.kind is ArmKind.TASKS:
            write_tasks(training.rows, self._training_tasks())
        elif arm.kind is ArmKind.SFT:
            train_sft(arm, self.policy, self.trajectories, sft_config(self.seed), training.folder)
        train_and_evaluate(training, self.console)

    def results(self, arm: Arm) -> list[UnitEvaluation]:
        """What a finished unit gave."""
        before = None if arm.after is None else self._end_of(self._arm(arm.after))
        uses_profile = arm.kind is ArmKind.TURNS or before is not None
        profile_turns = self.files.num_sampled if uses_profile else 0
        return evaluations(self._training(arm), self.seed, profile_turns, before)

    def _end_of(self, arm: Arm) -> UnitEvaluation:
        found = self.results(arm)
        if not found:
            raise DataError(
                f"{self.own / arm.name} has no evaluation any more, and another arm went on from it: "
                f"run {arm.name} again"
            )
        return found[-1]

    def _arm(self, name: str) -> Arm:
        return next(arm for arm in self.study.all_arms if arm.name == name)

    def _start_of(self, arm: Arm) -> Path:
        """Folder of the policy that an arm trains or plays with."""
        if arm.after is not None:
            return self._training(self._arm(arm.after)).trained
        return self.own / arm.name / "policy" if arm.kind is ArmKind.SFT else self.policy

    def _training(self, arm: Arm) -> StudyTraining:
        folder, held_out = self.own / arm.name, self.own / "held_out.parquet"
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
            num_steps=self.study.num_steps,
            learning_rate=arm.learning_rate or 1e-6,  # verl wants one where nothing is trained, too
            batch_size=self.study.batch_size,
            group_size=self.study.group_size,
            test_every=min(self.study.test_every, self.study.num_steps),
        )

    def _write_held_out(self, path: Path) -> None:
        numbers = {**dict.fromkeys(DOMAINS, self.study.num_held_out), **dict.fromkeys(OUTSIDE, self.study.num_outside)}
        write_tasks(path, [task for group, number in numbers.items() for task in held_out_tasks(group, number)])

    def _training_tasks(self) -> list[StudyTask]:
        first, names = _FIRST_EXPERT_SEED * (self.seed + 1), list(DOMAINS)
        seeds = range(first, first + _NUM_TRAINING_TASKS)
        return [DOMAINS[names[seed % len(names)]].make_task(seed, held_out=False) for seed in seeds]
