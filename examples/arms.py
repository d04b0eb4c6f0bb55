"""Arms of a study, trained one after the other for each seed; and `ToolArm`, an arm by GRPO on rollouts with tools."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from examples.evaluated_training import EvaluatedTraining, train_and_evaluate
from examples.machine import machine_overrides
from examples.quickstart.policy import MAX_NEW_TOKENS, MAX_PROMPT_TOKENS, SftConfig
from examples.quickstart.run import FIRST_EXPERT_SEED
from examples.tool_rollout.training import MAX_RESPONSE_TOKENS, MAX_TURNS, TOOLS, write_tasks
from examples.units import Unit, finish, gaps
from verl_pivot.commands.tables import table_console
from verl_pivot.types import JsonObject

_NUM_TASKS = 2000
"""Number of training tasks for each seed."""
console = table_console()


class Lengths(NamedTuple):
    """Limits of a trajectory."""

    max_turns: int
    prompt: int
    """Tokens of the prompt."""
    turn: int
    """Tokens of one turn."""
    response: int
    """Tokens after the prompt, observations included."""


WHOLE_TASKS = Lengths(max_turns=MAX_TURNS, prompt=MAX_PROMPT_TOKENS, turn=MAX_NEW_TOKENS, response=MAX_RESPONSE_TOKENS)
"""Limits for whole tasks in the shop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolArm(EvaluatedTraining):
    """One arm with one seed: GRPO on trajectories with tools, and evaluations of its policy on held-out rows."""

    project: str
    """Name of the study."""
    overrides: tuple[str, ...]
    """Overrides that this arm has and other arms may lack; the method comes first."""
    is_base: bool
    """Whether the arm is the base policy, which is evaluated but not trained."""
    lengths: Lengths = WHOLE_TASKS
    evaluated_every: int | None = None
    """Steps between two evaluations; None: one evaluation, at the end."""
    saved_every: int | None = None
    """Steps between two checkpoints, from which an interrupted training resumes; None: one checkpoint, at the end."""

    @property
    def is_trained(self) -> bool:
        return not self.is_base

    @property
    def test_freq(self) -> int:
        return self.evaluated_every or self.num_steps

    @property
    def save_freq(self) -> int:
        return self.saved_every or self.num_steps

    @property
    def command(self) -> list[str]:
        return [
            *("python", "-m", "verl.trainer.main_ppo"),
            *self.overrides,
            *machine_overrides(),
            f"pivot.rollout.tools={self.tools}",
            f"pivot.rollout.max_turns={self.lengths.max_turns}",
            f"pivot.rollout.max_turn_tokens={self.lengths.turn}",
            *self.sizes,
            f"data.max_prompt_length={self.lengths.prompt}",
            f"data.max_response_length={self.lengths.response}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={self.batch_size}",
            *self.dumps_and_evaluation,
            f"trainer.project_name={self.project}",
        ]


def shop_arm(
    name: str,
    policy: Path,
    folder: Path,
    seed: int,
    *,
    project: str,
    overrides: Sequence[str],
    is_base: bool,
    num_steps: int,
    num_held_out: int,
    evaluated_every: int | None = None,
) -> ToolArm:
    """An arm on whole tasks in the shop; all arms of a seed start from one policy and see the same tasks.

    Args:
        name: Name of the arm.
        policy: The base policy.
        folder: Folder of the seed.
        seed: The seed.
        project: Name of the study.
        overrides: Overrides that this arm has and other arms may lack; the method comes first.
        is_base: Whether the arm is the base policy, which is evaluated but not trained.
        num_steps: Number of training steps.
        num_held_out: Number of held-out tasks in an evaluation.
        evaluated_every: Steps between two evaluations; None: one evaluation, at the end.
    """
    first = FIRST_EXPERT_SEED * (seed + 1)
    return ToolArm(
        name=name,
        model=policy,
        rows=write_tasks(folder / "tasks.parquet", range(first, first + _NUM_TASKS)),
        held_out=write_tasks(folder / "held_out.parquet", range(num_held_out), held_out=True),
        tools=TOOLS,
        folder=folder / name,
        seed=seed,
        num_steps=num_steps,
        learning_rate=2e-4,
        batch_size=16,
        group_size=8,
        project=project,
        overrides=tuple(overrides),
        is_base=is_base,
        evaluated_every=evaluated_every,
    )


ArmT = TypeVar("ArmT", bound=EvaluatedTraining)


class TrainedArm(NamedTuple, Generic[ArmT]):
    """An arm that has been trained and evaluated."""

    arm: ArmT
    missing: list[str]
    """One sentence for each unit so far that is unfinished, or that was not finished in one run."""


def train_arms(
    names: Sequence[str],
    seeds: Iterable[int],
    out: Path,
    *,
    about_policy: str,
    sft_config: Callable[[int], SftConfig],
    make_policy: Callable[[Path, SftConfig], Path],
    make_arm: Callable[[str, Path, Path, int], ArmT],
    train: Callable[[ArmT], None] | None = None,
    settings: Callable[[ArmT], JsonObject] = lambda arm: {},
) -> Iterator[TrainedArm[ArmT]]:
    """Train the arms of each seed, all from its base policy, and yield each once it is evaluated.

    A unit is one arm with one seed: a finished unit is not repeated, and an interrupted one is continued.

    Args:
        names: Names of the arms.
        seeds: The seeds.
        out: Folder of the study; each seed has its own subfolder.
        about_policy: Description of the base policy for the printed heading.
        sft_config: Settings of the base policy of a seed.
        make_policy: Makes the base policy in a folder.
        make_arm: Makes an arm by its name, the policy, the folder of the seed and the seed.
        train: Trains and evaluates an arm; None: only run its command, which does both.
        settings: Gives settings of an arm that decide its result but are not in its command, such as contents of files.
    """
    units: list[Unit] = []
    work = train or (lambda arm: train_and_evaluate(arm, console))
    for seed in seeds:
        folder = out / f"seed-{seed}"
        console.rule(f"Seed {seed}: {about_policy}", align="left")
        policy = make_policy(folder / "policy", sft_config(seed))
        for name in names:
            arm = make_arm(name, policy, folder, seed)
            own = {**arm.settings, "sft": asdict(sft_config(seed)), **settings(arm)}
            units.append(Unit(arm=name, seed=seed, folder=arm.folder, settings=own))
            console.rule(f"Seed {seed}: {name}, in the stock trainer", align="left")
            finish(units[-1], partial(work, arm))
            yield TrainedArm(arm, gaps(units))
