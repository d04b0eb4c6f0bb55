"""An arm with one seed -> the stock command that trains it and plays the held-out tasks at several steps."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import pyarrow.parquet

from examples.arms import Lengths
from examples.evaluated_training import EvaluatedTraining
from examples.quickstart.training import kept_steps
from examples.study.arms import ArmKind, Recipe
from examples.study.outcomes import UnitEvaluation
from verl_pivot.data.rollout_dumps import FOLDER, DumpedRollout, read_rollouts
from verl_pivot.errors import DataError
from verl_pivot.sandbox.lane.interpreters import KILL_REASONS

_RECIPES: Mapping[Recipe, tuple[str, ...]] = {
    Recipe.PAPER: (  # the KL term of +method=pivotrl, also for whole tasks, which verl trains without one
        "actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.actor.kl_loss_coef=0.001",
    ),
    Recipe.PUBLISHED: ("algorithm.adv_estimator=rloo", "actor_rollout_ref.actor.use_kl_loss=False"),
    Recipe.ROC: (
        "pivot.resampling.equal_rewards=keep",  # so that its updates are as large as those of other arms
        "pivot.rollout.format_tag=null",  # the tasks do not ask for a tag
        "actor_rollout_ref.actor.optim.lr_warmup_steps=0",  # as in the other arms
    ),
}
"""{recipe: overrides in which an arm differs from others of its kind}"""
_TIME_LIMITS = ("it did not end within its time limit", KILL_REASONS["timeout"])
"""What the policy reads of a command that ran into its time limit."""
_SAVED_EVERY = 6
"""Largest number of steps between two checkpoints, from which an interrupted training continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTraining(EvaluatedTraining):
    """One arm with one seed in the stock trainer; arms that the trainer does not train are only evaluated."""

    kind: ArmKind
    recipe: Recipe
    num_evaluations: int
    """Number of evaluations on the held-out tasks; the last one follows the last step."""
    machine: tuple[str, ...]
    """Overrides for the machine that the launch runs on."""
    lengths: Lengths
    pass_size: int | None = None
    """Number of rollouts in one pass through the model; None means two groups."""

    @property
    def micro_batch_size(self) -> int:
        return self.pass_size or 2 * self.group_size

    @property
    def is_trained(self) -> bool:
        return self.kind in (ArmKind.TURNS, ArmKind.TASKS)

    @property
    def save_freq(self) -> int:
        return min(_SAVED_EVERY, self.test_freq)

    @property
    def test_freq(self) -> int:
        return ceil(self.num_steps / self.num_evaluations)

    @property
    def _method(self) -> str:
        if self.recipe is Recipe.ROC:
            return "grpo_roc"
        return "pivotrl" if self.kind is ArmKind.TURNS else "tool_rollout"

    @property
    def command(self) -> list[str]:
        is_turns, lengths = self.kind is ArmKind.TURNS, self.lengths
        add = "+" if is_turns else ""
        return [
            *("python", "-m", "verl.trainer.main_ppo", f"+method={self._method}"),
            *self.machine,
            *_RECIPES[self.recipe],
            f"{add}pivot.rollout.tools={self.tools}",
            f"{add}pivot.rollout.max_turns={lengths.max_turns}",
            f"{add}pivot.rollout.max_turn_tokens={lengths.turn}",
            *((f"pivot.max_turn_tokens={lengths.turn}",) if is_turns else ()),
            "actor_rollout_ref.rollout.agent.default_agent_loop=pivot_tools",
            *self.sizes,
            f"data.max_prompt_length={lengths.prompt}",
            f"data.max_response_length={lengths.response}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={self.batch_size}",
            f"actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu={self.micro_batch_size}",
            *self.dumps_and_evaluation,
            "actor_rollout_ref.rollout.val_kwargs.do_sample=False",
            "actor_rollout_ref.rollout.val_kwargs.temperature=0",
            "trainer.project_name=study",
        ]


def evaluations(
    training: StudyTraining, seed: int, profile_turns: int, before: UnitEvaluation | None = None
) -> list[UnitEvaluation]:
    """Evaluations of a finished unit, in the order of their steps.

    Args:
        training: The unit's training.
        seed: The unit's seed.
        profile_turns: Number of turns that the profile sampled; 0 if the unit does not use the profile.
        before: Last evaluation of the arm from whose policy the unit started; its turns and seconds are added. None if
            there is no such arm.

    Raises:
        DataError: If an outcome names no task, or if a step, its rollouts or an evaluation is missing.
    """
    seconds = {int(step["step"]): _seconds(step) for step in kept_steps(training)} if training.is_trained else {}
    turns = {step: _num_turns(training.rollouts / FOLDER / f"{step}.jsonl") for step in _steps(training)}
    _check_whole(training, seconds, turns)
    spent_turns, spent_seconds = (before.turns, before.seconds) if before else (0, 0.0)
    return [
        UnitEvaluation(
            arm=training.name,
            seed=seed,
            step=step,
            turns=spent_turns + sum(number for each, number in turns.items() if each <= step),
            profile_turns=profile_turns,
            seconds=spent_seconds + sum(number for each, number in seconds.items() if each <= step),
            solved=_solved(training.evaluation(step)),
        )
        for step in training.evaluated_steps
    ]


def _check_whole(training: StudyTraining, seconds: Collection[int], turns: Collection[int]) -> None:
    """Refuse a unit that lacks files or steps, since its costs or its final accuracy would be wrong.

    An evaluation during training may lack tasks; their outcomes count as unknown, as if the system had failed at them.

    Args:
        training: The unit's training.
        seconds: Steps whose seconds are known.
        turns: Steps whose rollouts are known.
    """
    steps = range(1, training.num_steps + 1) if training.is_trained else ()
    lost = [
        *(f"the seconds of step {step}" for step in steps if step not in seconds),
        *(f"the rollouts of step {step}" for step in steps if step not in turns),
        *(f"the evaluation after step {each}" for each in training.evaluated_steps if not _is_whole(training, each)),
    ]
    if lost:
        raise DataError(f"{training.folder} lacks {', '.join(lost[:3])}: remove the folder, and run the command again")


def _is_whole(training: StudyTraining, step: int) -> bool:
    """Whether an evaluation exists; the one after the last step must also have all tasks of the played file."""
    path = training.evaluation(step)
    if not path.is_file() or not training.held_out.is_file():
        return False
    if path != training.evaluated:
        return True
    tasks = pyarrow.parquet.read_table(training.held_out, columns=["trajectory_id"])["trajectory_id"].to_pylist()
    return {rollout.trajectory_id for rollout in read_rollouts(path)} >= {*tasks}


def _steps(training: StudyTraining) -> list[int]:
    return sorted(int(path.stem) for path in (training.rollouts / FOLDER).glob("*.jsonl"))


def _num_turns(dump: Path) -> int:
    """Number of turns that a step sampled, including those of rollouts that the update did not use."""
    return sum(max(1, len(rollout.turns)) for rollout in read_rollouts(dump))


def _seconds(step: Mapping[str, float]) -> float:
    """Seconds of training in a step; verl's timer of a step includes saving, but not evaluation."""
    return step["timing_s/step"] - step.get("timing_s/save_checkpoint", 0.0)


def _solved(dump: Path) -> dict[str, dict[str, bool | None]]:
    solved: dict[str, dict[str, bool | None]] = {}
    for rollout in read_rollouts(dump):
        if rollout.data_source is None or rollout.trajectory_id is None:
            raise DataError(f"{dump}: a rollout names no task; remove the folder of the unit, and run it again")
        solved.setdefault(rollout.data_source, {})[rollout.trajectory_id] = _outcome(rollout)
    return solved


def _outcome(rollout: DumpedRollout) -> bool | None:
    """Whether the task was solved; None if the system failed.

    A task that is not solved after a command that ran into its time limit counts as a failure of the system: the
    commands of these tasks take milliseconds, and only a machine that is too busy makes them take seconds.
    """
    is_masked = rollout.record is not None and rollout.record.is_masked
    if is_masked or rollout.score is None:
        return None
    if rollout.score == 1.0:
        return True
    return None if _ran_out_of_time(rollout) else False


def _ran_out_of_time(rollout: DumpedRollout) -> bool:
    """Whether the policy was told that a command ran into its time limit."""
    told = (text for turn in rollout.turns for text in turn.observations)
    return any(limit in text for text in told for limit in _TIME_LIMITS)
