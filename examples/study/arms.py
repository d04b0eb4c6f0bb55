"""arms.yaml -> the study's arms and sizes, checked."""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from verl_pivot.validation import Options

Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0)]
HeldOutCount = Annotated[int, Field(ge=1, le=1000)]
"""Number of held-out tasks of one group; at most 1,000, since the task seeds of two study seeds lie 1,000 apart."""
LearningRate = Annotated[float, Field(gt=0.0, le=1.0)]


class ArmKind(StrEnum):
    """Kind of training of an arm."""

    NONE = "none"
    """No training: the base policy."""
    SFT = "sft"
    """SFT on the expert's trajectories."""
    TURNS = "turns"
    """RL on single turns of the expert's trajectories."""
    TASKS = "tasks"
    """RL on whole tasks, rewarded by their outcome."""


class Rows(StrEnum):
    """Turns that an arm of the kind `turns` trains on."""

    PIVOTS = "pivots"
    RANDOM = "random"
    """Random turns, as many as there are pivots, drawn from all profiled turns."""


class TurnReward(StrEnum):
    """Reward of a single turn."""

    FUNCTIONAL = "functional"
    """Reward of the domain's verifier."""
    STRICT = "strict"
    """1 only for exactly the expert's action (PivotRL, equation 2)."""


class Recipe(StrEnum):
    """How an arm turns rewards into updates."""

    PAPER = "paper"
    """The recipe of `+method=pivotrl` for single turns, and GRPO for whole tasks."""
    PUBLISHED = "published"
    """Single turns without a KL term, as in NVIDIA's public recipes.

    The advantage is the reward minus the mean of the group's other rewards.
    """
    ROC = "roc"
    """Whole tasks by GRPO-RoC: of twice as many rollouts, the update uses half, with the cleanest of the successes."""


class Arm(Options):
    """Settings of one arm."""

    name: Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")]
    kind: ArmKind
    learning_rate: LearningRate | None = None
    num_epochs: Count | None = None
    """Number of passes over the trajectories; for SFT alone."""
    rows: Rows = Rows.PIVOTS
    reward: TurnReward = TurnReward.FUNCTIONAL
    recipe: Recipe = Recipe.PAPER
    after: str | None = None
    """Name of an arm of the kind `turns` whose trained policy this arm starts from; None for the base policy."""
    step_factor: Count = 1
    """Factor of `num_steps` that gives the training steps of the arm."""
    num_evaluations: Count = 1
    """Number of evaluations on the held-out tasks, at equal distances in steps; the last one follows the last step."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.learning_rate is None) is not (self.kind is ArmKind.NONE):
            raise ValueError(f"arm {self.name}: only arms of the kind none have no learning_rate")
        if (self.num_epochs is None) is (self.kind is ArmKind.SFT):
            raise ValueError(f"arm {self.name}: only arms of the kind sft have num_epochs")
        if self.kind is not ArmKind.TURNS and self.model_fields_set & {"rows", "reward"}:
            raise ValueError(f"arm {self.name}: rows and reward are settings of the kind turns, not of {self.kind}")
        of_recipe = {Recipe.PUBLISHED: ArmKind.TURNS, Recipe.ROC: ArmKind.TASKS}.get(self.recipe, self.kind)
        if self.kind is not of_recipe:
            raise ValueError(f"arm {self.name}: the recipe {self.recipe} needs the kind {of_recipe}")
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
            raise ValueError(f"two arms have the same name: {', '.join(names)}")
        if len(set(self.seeds)) < len(self.seeds) or self.tuning_seed in self.seeds:
            raise ValueError("seeds must not repeat, and must not contain tuning_seed")
        of_turns = [arm.name for arm in self.arms if arm.kind is ArmKind.TURNS]
        if wrong := [arm.name for arm in self.all_arms if arm.after is not None and arm.after not in of_turns]:
            raise ValueError(f"arm {wrong[0]}: after must be one of {', '.join(of_turns)}, which run before it")
        if [arm.name for arm in self.arms if arm.kind is ArmKind.NONE] != ["base"]:
            raise ValueError("arms must have exactly one arm of the kind none, with the name base")
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
                raise ValueError("tries of the kind sft need num_epochs, and tries of other kinds must not have it")

    def tried(self, arm: Arm) -> list[Arm]:
        """A copy of the arm for each setting that tuning tries, with its own name and one evaluation, at the end."""
        return [
            arm.model_copy(update={**each.model_dump(), "name": f"{arm.name}_try_{number}", "num_evaluations": 1})
            for number, each in enumerate(self.tries[arm.kind], start=1)
        ]

    def steps_of(self, arm: Arm) -> int:
        """Number of training steps of an arm."""
        return arm.step_factor * self.num_steps

    @property
    def sizes(self) -> dict[str, int]:
        """{name: value} of the sizes that decide which settings are best for an arm."""
        names = ("num_trajectories", "num_steps", "batch_size", "group_size", "num_validation")
        return {name: getattr(self, name) for name in names}

    @property
    def all_arms(self) -> tuple[Arm, ...]:
        return (*self.arms, *self.extra_arms)
