"""Options of the study's command -> the Study that it runs, or a sentence about what cannot be run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import typer
from rich.console import Console

from examples.options import chosen_names
from examples.study.arms import Arm, ArmKind, StudyOptions
from examples.study.claims import FOLDER, TUNED, Design, read_design
from examples.study.jobs import num_cores
from examples.study.models import StudyModel, study_model
from examples.study.study import Study
from examples.study.tuned import check_sizes, scaled_study, tuned_study
from examples.study.units import Evaluated, StudySeed
from verl_pivot.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRequest:
    """Options that the user gave."""

    out: Path
    arms: str | None = None
    seeds: str | None = None
    steps: int | None = None
    tasks: int | None = None
    trajectories: int | None = None
    jobs: int = 1
    model: Path | None = None
    gpu: bool = False
    tuned: Path | None = None

    def check(self) -> None:
        """Refuse more processes than the machine has cores, or several processes on one GPU.

        Raises:
            BadParameter: If `jobs` is larger than the number of cores, or than 1 with a GPU.
        """
        if self.jobs > (cores := num_cores()):
            raise typer.BadParameter(f"--jobs {self.jobs}: this machine has {cores} cores, and each job fills one")
        if self.gpu and self.jobs > 1:
            raise typer.BadParameter(f"--jobs {self.jobs}: with --gpu one training at a time has the GPU")

    @property
    def changes(self) -> Mapping[str, int]:
        """{name of a size in arms.yaml: value that the command gives it}"""
        given = {
            "num_steps": self.steps,
            "num_held_out": self.tasks,
            "num_outside": self.tasks,
            "num_validation": self.tasks,
            "num_trajectories": self.trajectories,
        }
        return {name: value for name, value in given.items() if value is not None}

    @property
    def options(self) -> tuple[str, ...]:
        """The options by which another process runs units of the same study."""
        where = {"out": self.out, "seeds": self.seeds, "arms": self.arms, "model": self.model, "tuned": self.tuned}
        return self._as_options({**where, **self._sizes})

    @property
    def deciding(self) -> tuple[str, ...]:
        """The options that decide results, without folders of this machine."""
        return self._as_options({**self._sizes, "model": None if self.model is None else self.model.name})

    @property
    def _sizes(self) -> Mapping[str, object]:
        return {"steps": self.steps, "tasks": self.tasks, "trajectories": self.trajectories}

    def _as_options(self, values: Mapping[str, object]) -> tuple[str, ...]:
        pairs = (each for name, value in values.items() if value is not None for each in (f"--{name}", str(value)))
        return (*pairs, *(("--gpu",) if self.gpu else ()))

    def study(self, console: Console) -> Study:
        """The study with all reported seeds, or with those that the user names.

        Raises:
            ConfigError: If the design, the model, or the result of tuning cannot be used.
            BadParameter: If a seed or an arm does not exist.
        """
        design, model = read_design(tuned=self.tuned), study_model(self.model, on_gpu=self.gpu)
        study, is_tuned = self._effective(design, model)
        design = design if is_tuned else design.untuned
        names = [str(seed) for seed in study.seeds]
        chosen = names if self.seeds is None else chosen_names(self.seeds, names, kind="seed")
        reported = [
            StudySeed(
                seed=seed,
                folder=self.out,
                study=study,
                digest=self._digest(design, model),
                measured_by=design.measured_by,
                console=console,
                model=model,
            )
            for seed in study.seeds
        ]
        return Study(
            design=design,
            seeds=[each for each in reported if str(each.seed) in chosen],
            reported=reported,
            arms=chosen_arms(study, self.arms),
            out=self.out,
            options=self.options,
            deciding=self.deciding,
            is_tuned=is_tuned,
        )

    def _effective(self, design: Design, model: StudyModel) -> tuple[StudyOptions, bool]:
        """Arms and sizes of this command, and whether they are tuned; tuned rates are used only for the tuned policy.

        Raises:
            ConfigError: If the user names a file that was tuned for another policy, or if a file has other sizes.
        """
        study = scaled_study(design.study.model_copy(update=dict(self.changes)), model.rate_factor)
        if design.tuned is None:
            return study, False
        if design.tuned.policy != model.name:
            if self.tuned is not None:
                raise ConfigError(
                    f"--tuned {self.tuned} was tuned for {design.tuned.policy}, not for {model.name}: run tune with it"
                )
            return study, False
        if design.tuned.sizes != study.sizes:  # a rehearsal may use rates for arms.yaml's sizes or its own
            check_sizes(design.tuned, design.study, self.tuned or FOLDER / TUNED)
        return tuned_study(study, design.tuned), True

    def _digest(self, design: Design, model: StudyModel) -> str:
        """The hash of the design, followed by what the command changes in it."""
        changed = [f"{name}={value}" for name, value in self.changes.items()]
        changed += [f"model={model.name.replace(' ', '_')}"] if model.weights or model.on_gpu else []
        return " ".join([design.digest, *(["with", *changed] if changed else [])])

    def tuning(self, console: Console) -> Study:
        """A study of the tries of all core arms, or of those in `arms`, on the tuning seed and the validation tasks.

        Raises:
            ConfigError: If the design or the model cannot be used.
            BadParameter: If an arm does not exist or is not tuned.
        """
        design, model = read_design(is_tuning=True), study_model(self.model, on_gpu=self.gpu)
        study = scaled_study(design.study.model_copy(update=dict(self.changes)), model.rate_factor)
        arms = tuned_arms(study, self.arms)
        tries = [each for arm in study.arms if arm.kind is not ArmKind.NONE for each in study.tried(arm)]
        seed = StudySeed(
            seed=study.tuning_seed,
            folder=self.out / "tuning",
            study=study.model_copy(update=_only_tries(tries)),
            digest=self._digest(design, model),
            measured_by=design.measured_by,
            console=console,
            model=model,
            evaluated=Evaluated.VALIDATION,
        )
        chosen = {each.name for arm in arms for each in study.tried(arm)}
        return Study(
            design=replace(design, study=study),
            seeds=[seed],
            reported=[seed],
            arms=[each for each in tries if each.name in chosen],
            out=self.out,
            options=self.options,
            deciding=self.deciding,
            is_measured=False,
        )


def _only_tries(tries: Sequence[Arm]) -> Mapping[str, object]:
    """Changes of a study for tuning: the tries are its only arms."""
    return {"arms": tuple(tries), "extra_arms": ()}


def chosen_arms(study: StudyOptions, names: str | None) -> list[Arm]:
    """Arms that the user names, separated by commas; by default those of `arms` in arms.yaml.

    Raises:
        BadParameter: If an arm does not exist, or starts from an arm that is not named.
    """
    if names is None:
        return list(study.arms)
    chosen = chosen_names(names, [arm.name for arm in study.all_arms])
    for arm in study.all_arms:
        if arm.name in chosen and arm.after is not None and arm.after not in chosen:
            raise typer.BadParameter(f"--arms: {arm.name} goes on from {arm.after}; name it too")
    return [arm for arm in study.all_arms if arm.name in chosen]


def tuned_arms(study: StudyOptions, names: str | None) -> list[Arm]:
    """Core arms that are tuned: all that train, or those that the user names.

    Raises:
        BadParameter: If a name is not that of a core arm that trains.
    """
    tunable = [arm for arm in study.arms if arm.kind is not ArmKind.NONE]
    if names is None:
        return tunable
    chosen = chosen_names(names, [arm.name for arm in tunable])
    return [arm for arm in tunable if arm.name in chosen]
