"""Study: seeds, arms and measurements -> all units in order, their work, and the files that the page is made of."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from examples.quickstart.run import phase
from examples.quickstart.training import PROJECT
from examples.study.arms import Arm, ArmKind
from examples.study.claims import Design
from examples.study.domains.known import OUTSIDE
from examples.study.jobs import Job, run_jobs
from examples.study.measurement_units import Measurement, measured, measurements
from examples.study.measures_file import MEASURES, StudyMeasures, write_measures
from examples.study.outcomes import OUTCOMES, ArmSettings, StudyAbout, StudyResults, write_results
from examples.study.page import page
from examples.study.plot import PLOT, plot
from examples.study.units import MEASURED_BY, StudySeed
from examples.units import Unit, differing_settings, finish, gaps
from verl_pivot.engines.server import tied_to_parent


@dataclass(frozen=True, kw_only=True)
class Study:
    """Seeds, arms and measurements that one command runs."""

    design: Design
    seeds: Sequence[StudySeed]
    """Seeds to run."""
    reported: Sequence[StudySeed]
    """All seeds of the study; their outcomes are written, including those of seeds that other commands ran."""
    arms: Sequence[Arm]
    """Arms to run."""
    out: Path
    options: tuple[str, ...]
    """Options of the command, which are passed on to its side-by-side processes."""
    deciding: tuple[str, ...] = ()
    """Options of the command that decide results, without folders of this machine."""
    is_tuned: bool = False
    """Whether learning rates and epochs are those that tuning found."""
    is_measured: bool = True
    """Whether measurements are run too."""

    @property
    def measurements(self) -> list[Measurement]:
        if not self.is_measured:
            return []
        return measurements(self.design.claims, self.arms, has_profile=self._has_profile)

    @property
    def _has_profile(self) -> bool:
        return any(arm.kind in (ArmKind.TURNS, ArmKind.SFT) for arm in self.arms)

    @property
    def stages(self) -> list[list[Unit]]:
        """All units in the order in which they run; those of one stage may run side by side."""
        return [stage for seed in self.seeds for stage in self._stages_of(seed) if stage]

    def _stages_of(self, seed: StudySeed) -> list[list[Unit]]:
        return [
            [] if seed.model.weights else [seed.policy_unit],
            [seed.profile_unit] if self._has_profile else [],
            *([seed.unit(arm) for arm in arms] for arms in self._waves),
            *([seed.measurement_unit(each)] for each in self.measurements),
        ]

    @property
    def kinds(self) -> dict[str, str]:
        """{name of a unit: its kind}; arms that train alike, such as the tries of one arm, are of one kind."""
        names = {unit.arm for stage in self.stages for unit in stage}
        arms = {
            arm.name: f"{arm.kind} {arm.recipe} {arm.step_factor} {arm.num_evaluations} {arm.num_epochs}"
            for arm in self.arms
        }
        return {name: arms.get(name, name) for name in names}

    @property
    def _waves(self) -> list[list[Arm]]:
        """Arms that start from the base policy, and then arms that start from the policy of another arm."""
        return [[arm for arm in self.arms if (arm.after is None) is is_first] for is_first in (True, False)]

    def train_seed(self, seed: StudySeed, num_jobs: int, console: Console) -> None:
        """Run all unfinished units of a seed, except for its measurements."""
        seconds: dict[str, float] = {}
        if seed.model.weights is None:
            with phase("policy", f"Seed {seed.seed}: the base policy", seconds):
                finish(seed.policy_unit, seed.make_policy)
        if self._has_profile:
            with phase("profile", f"Seed {seed.seed}: expert, profile and pivots", seconds):
                finish(seed.profile_unit, seed.make_profile)
        for arms in self._waves:
            if num_jobs > 1:
                run_jobs([self._job(seed, arm) for arm in arms if not is_finished(seed.unit(arm))], num_jobs, console)
            else:
                for arm in arms:
                    self.finish_arm(seed, arm)

    def measure_seed(self, seed: StudySeed) -> None:
        """Run all unfinished measurements of a seed."""
        for each in self.measurements:
            unit = seed.measurement_unit(each)
            if differing_settings(unit) == {MEASURED_BY}:
                shutil.rmtree(unit.folder)  # other code measured it, so it is measured again
            with phase(each.name, f"Seed {seed.seed}: {each.title}", {}):
                finish(unit, partial(seed.measure, each))

    def finish_arm(self, seed: StudySeed, arm: Arm) -> None:
        with phase(arm.name, f"Seed {seed.seed}: {arm.name}, in the stock trainer", {}):
            finish(seed.unit(arm), partial(seed.run, arm))

    def _job(self, seed: StudySeed, arm: Arm) -> Job:
        command = tied_to_parent("examples.study", *self.options, "unit", arm.name, "--of-seed", str(seed.seed))
        return Job(name=f"{arm.name}, seed {seed.seed},", command=command, log=_console(seed, arm))

    @property
    def results(self) -> StudyResults:
        """Outcomes of all finished units, including those that other commands ran."""
        found = [
            evaluation
            for seed in self.reported
            for arm in seed.study.all_arms
            if is_finished(seed.unit(arm))
            for evaluation in seed.results(arm)
        ]
        return StudyResults(digest=self.seeds[0].digest, evaluations=found, about=self.about)

    @property
    def about(self) -> StudyAbout:
        """How the outcomes were made."""
        seed = self.reported[0]
        arms = {
            arm.name: ArmSettings(
                learning_rate=arm.learning_rate,
                num_epochs=arm.num_epochs,
                command=tuple(self._shortened(each, seed) for each in seed.training_of(arm.name).command),
            )
            for arm in seed.study.all_arms
        }
        every = replace(self, arms=seed.study.all_arms)  # also units that other commands ran
        units = [unit for each in self.reported for stage in every._stages_of(each) for unit in stage]
        return StudyAbout(
            policy=seed.model.name,
            is_taught_at_random=seed.model.weights is None and seed.model.on_gpu,
            side_by_side=tuple(
                arm.name for arm in seed.study.all_arms if any(_console(each, arm).is_file() for each in self.reported)
            ),
            is_tuned=self.is_tuned,
            commit=_commit(),
            options=self.deciding,
            arms=arms,
            notes=tuple(note for note in gaps(units) if not note.endswith("not run.")),  # the page lists these
        )

    def _shortened(self, argument: str, seed: StudySeed) -> str:
        """An argument of a launch, with short names for folders of this machine, and SEED for the seed."""
        names = {str(self.out.resolve()): "OUT", str(PROJECT): "."}
        if seed.model.weights is not None:
            names = {str(seed.model.weights): "MODEL", **names}
        for folder, name in names.items():
            argument = argument.replace(folder, name)
        return re.sub(rf"(seed[-=]){seed.seed}\b", r"\1SEED", argument)

    @property
    def measures(self) -> StudyMeasures:
        """Results of all finished measurements."""
        everything = measurements(self.design.claims, self.seeds[0].study.all_arms, has_profile=True)
        found = [
            measured(unit.folder)
            for seed in self.reported
            for each in everything
            if is_finished(unit := seed.measurement_unit(each))
        ]
        about = StudyMeasures(digest=self.seeds[0].digest, measured_by=self.seeds[0].measured_by)
        return about.with_results(found)

    def write(self) -> None:
        """Write outcomes, measures, and the page and the plot that are made of these two files."""
        write_study(self.design, self.results, self.measures, self.out)


def write_study(design: Design, results: StudyResults, measures: StudyMeasures, out: Path) -> None:
    """Write outcomes, measures, and the page and the plot that are made of these two files."""
    write_results(results, out / OUTCOMES)
    write_measures(measures, out / MEASURES)
    (out / "page.md").write_text(page(design, results, measures, OUTSIDE) + "\n")
    plot(results, design.study.seeds, OUTSIDE).savefig(out / PLOT, dpi=110)


def _console(seed: StudySeed, arm: Arm) -> Path:
    """File with the output of an arm that was trained in a process of its own, side by side with others."""
    return seed.own / arm.name / "console.txt"


def _commit() -> str:
    """Commit of the project, followed by `-dirty` if files were changed; empty outside of a repository."""
    try:
        asked = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=PROJECT,
            check=True,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return asked.stdout.strip()


def is_finished(unit: Unit) -> bool:
    """Whether a run finished the unit with these settings."""
    progress = unit.progress
    return progress is not None and progress.seconds is not None and progress.settings == unit.settings
