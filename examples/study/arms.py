"""arms.yaml -> the study's arms and sizes, checked."""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from verl_pivot.validation import Options

Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0)]
HeldOutCount = Annotated[int, Field(ge=1, le=1000)]
"""Held-out tasks of one group; those of the next seed lie 1,000 further."""
LearningRate = Annotated[float, Field(gt=0.0, le=1.0)]


class ArmKind(StrEnum):
    """What an arm trains on."""

    NONE = "none"
    """Nothing: the base policy."""
    SFT = "sft"
    """The expert's trajectories, by their likelihood."""
    TURNS = "turns"
    """Single turns of the expert's trajectories."""
    TASKS = "tasks"
    """Whole tasks, by their outcome."""


class Rows(StrEnum):
    """Which turns an arm of single turns trains on."""

    PIVOTS = "pivots"
    RANDOM = "random"
    """As many turns as there are pivots, of all that were profiled."""


class TurnReward(StrEnum):
    """Reward of a single turn."""

    FUNCTIONAL = "functional"
    """The verifier's of the domain."""
    STRICT = "strict"
    """1 for the expert's action to the letter (PivotRL, equation 2)."""


class Recipe(StrEnum):
    """How an arm turns rewards into updates."""

    PAPER = "paper"
    """That of `+method=pivotrl` for single turns, and GRPO for whole tasks."""
    PUBLISHED = "published"
    """Single turns without a KL term, each reward against the mean of the others, as in NVIDIA's public recipes."""
    ROC = "roc"
    """Whole tasks by GRPO-RoC: twice as many rollouts, of which the update sees the cleanest successes."""


class Arm(Options):
    """What one arm does."""

    name: Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")]
    kind: ArmKind
    learning_rate: LearningRate | None = None
    num_epochs: Count | None = None
    """Passes over the trajectories, of SFT."""
    rows: Rows = Rows.PIVOTS
    reward: TurnReward = TurnReward.FUNCTIONAL
    recipe: Recipe = Recipe.PAPER
    after: str | None = None
    """Name of an arm of single turns from whose policy this one goes on; None for the base policy."""
    step_factor: Count = 1
    """Times `num_steps` that it trains."""
    num_evaluations: Count = 1
    """Times that it plays the held-out tasks, equal numbers of steps apart, the last time behind its last step."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.learning_rate is None) is not (self.kind is ArmKind.NONE):
            raise ValueError(f"arm {self.name}: every kind but none needs a learning_rate, and none takes none")
        if (self.num_epochs is None) is (self.kind is ArmKind.SFT):
            raise ValueError(f"arm {self.name}: the kind sft needs num_epochs, and no other kind takes it")
        if self.kind is not ArmKind.TURNS and self.model_fields_set & {"rows", "reward"}:
            raise ValueError(f"arm {self.name}: rows and reward are those of the kind turns, not of {self.kind}")
        of_recipe = {Recipe.PUBLISHED: ArmKind.TURNS, Recipe.ROC: ArmKind.TASKS}.get(self.recipe, self.kind)
        if self.kind is not of_recipe:
            raise ValueError(f"arm {self.name}: the recipe {self.recipe} is one of the kind {of_recipe}")
        if self.kind not in (ArmKind.TURNS, ArmKind.TASKS) and self.model_fields_set & {
            "step_factor",
            "num_evaluations",
        }:
            raise ValueError(
                f"arm {self.name}: the kind {self.kind} has no steps, so no step_factor or num_evaluations"
            )
        if self.after is not None and self.kind is not ArmKind.TASKS:
            raise ValueError(f"arm {self.name}: only the kind tasks goes on after another arm")
        return self


class Try(Options):
    """Settings that tuning tries with an arm."""

    learning_rate: LearningRate
    num_epochs: Count | None = None


class StudyOptions(Options):
    """Contents of arms.yaml."""

    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)]
    tuning_seed: Seed
    num_trajectories: Count
    num_held_out: HeldOutCount
    num_outside: HeldOutCount
    num_steps: Count
    batch_size: Count
    group_size: Annotated[int, Field(ge=2)]
    num_measured_turns: Count
    num_validation: Annotated[int, Field(ge=1, le=50_000)]
    tries: dict[ArmKind, Annotated[tuple[Try, ...], Field(min_length=1)]]
    arms: Annotated[tuple[Arm, ...], Field(min_length=1)]
    extra_arms: tuple[Arm, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [arm.name for arm in self.all_arms]
        if len(set(names)) < len(names):
            raise ValueError(f"two arms have one name: {', '.join(names)}")
        if len(set(self.seeds)) < len(self.seeds) or self.tuning_seed in self.seeds:
            raise ValueError("each seed stands once among seeds, and the tuning seed is not among them")
        of_turns = [arm.name for arm in self.arms if arm.kind is ArmKind.TURNS]
        if wrong := [arm.name for arm in self.all_arms if arm.after is not None and arm.after not in of_turns]:
            raise ValueError(f"arm {wrong[0]}: after must be one of {', '.join(of_turns)}, which run before it")
        if [arm.name for arm in self.arms if arm.kind is ArmKind.NONE] != ["base"]:
            raise ValueError("the arms need one of the kind none, whose name is base")
        self._check_tries()
        return self

    def _check_tries(self) -> None:
        trained = {arm.kind for arm in self.arms if arm.kind is not ArmKind.NONE}
        if self.tries.keys() != trained:
            raise ValueError(f"tries need a list for each of {', '.join(sorted(trained))}, and for no other kind")
        if len({len(tries) for tries in self.tries.values()}) > 1:
            raise ValueError("all kinds of arms need the same number of tries")
        for kind, tries in self.tries.items():
            if any((each.num_epochs is None) is (kind is ArmKind.SFT) for each in tries):
                raise ValueError("tries of the kind sft need num_epochs, and no others take it")

    def tried(self, arm: Arm) -> list[Arm]:
        """The arm with each of the settings that tuning tries, under names of their own, evaluated at its end alone."""
        return [
            arm.model_copy(update={**each.model_dump(), "name": f"{arm.name}_try_{number}", "num_evaluations": 1})
            for number, each in enumerate(self.tries[arm.kind], start=1)
        ]

    def steps_of(self, arm: Arm) -> int:
        """Steps that an arm trains."""
        return arm.step_factor * self.num_steps

    @property
    def sizes(self) -> dict[str, int]:
        """{size: value} of those that decide which settings are the best ones for an arm."""
        names = ("num_trajectories", "num_steps", "batch_size", "group_size", "num_validation")
        return {name: getattr(self, name) for name in names}

    @property
    def all_arms(self) -> tuple[Arm, ...]:
        return (*self.arms, *self.extra_arms)
