"""Rounds of `synthesize --rounds`: what a round works on, and the training between two of them.

LoopTool (arXiv:2511.09148, section 3) trains the policy on what a round made, and gives both to the next round.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from verl_pivot.errors import ConfigError
from verl_pivot.exports.checkpoints import TRACKER, find_actor, write_model
from verl_pivot.synthesis.outputs import is_finished
from verl_pivot.synthesis.recipes import ItemSource, Recipe
from verl_pivot.synthesis.rollouts import POLICY
from verl_pivot.synthesis.writer_settings import WriterSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopRound:
    """One round, whose output is a folder of its own."""

    number: int
    """Number of the round, from 1."""
    out: Path
    trajectories: Path | None
    """Rows that it works on; None in the first round, which takes those of the command."""
    model: Path | None
    """Policy that the training before it made; None in the first round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBetween:
    """The training that a loop waits for."""

    number: int
    """Number of the round before it."""
    trajectories: Path
    pivots: Path
    """Rows of the training."""
    checkpoints: Path
    """Folder in which verl saves the policy (`trainer.default_local_dir`)."""
    model: str
    """Policy from which the training begins."""


def next_of_loop(out: Path, num_rounds: int, policy: WriterSettings) -> LoopRound | TrainingBetween | None:
    """What a loop does next; None if all of its rounds are done.

    The policy that a training saved is written to the folder `model` of the round before it, unless that is there.

    Args:
        out: Folder of the loop.
        num_rounds: Rounds of the loop.
        policy: Policy of the first round.

    Raises:
        DataError: If a checkpoint holds no policy, or only a part of it.
        ConfigError: If a folder cannot be written, or a round kept no trajectory to train on.
    """
    model: Path | None = None
    trajectories: Path | None = None
    for number in range(1, num_rounds + 1):
        folder = out / f"round-{number}"
        if not is_finished(folder):
            return LoopRound(number=number, out=folder, trajectories=trajectories, model=model)
        trajectories = folder / "trajectories.jsonl"
        if number == num_rounds:
            break
        if not trajectories.is_file():
            raise ConfigError(f"round {number} kept no trajectory to train on; rejected.jsonl in {folder} says why")
        begun_with, model, checkpoints = model, folder / "model", folder / "checkpoints"
        if model.is_dir():
            continue
        if not (checkpoints / TRACKER).is_file():
            return TrainingBetween(
                number=number,
                trajectories=trajectories,
                pivots=folder / "pivots.parquet",
                checkpoints=checkpoints,
                model=str(begun_with or policy.model),
            )
        write_model(find_actor(checkpoints), model, trust_remote_code=False)
    return None


def check_loop(recipe: Recipe, writers: Mapping[str, WriterSettings]) -> WriterSettings:
    """The policy of a loop's first round.

    Raises:
        ConfigError: If the recipe does not work on trajectories, or no checkpoint is named that could be trained.
    """
    if recipe.source is not ItemSource.TRAJECTORIES:
        raise ConfigError(
            f"--rounds gives what a round made to the next one, and {recipe.name} works on {recipe.source}: use a "
            "method that works on trajectories, such as closed_loop"
        )
    policy = writers.get(POLICY)
    if policy is None or policy.model is None or policy.openai is not None:
        raise ConfigError(
            f"--rounds serves the policy of each training itself: name it in --writers, as `{POLICY}: {{model: "
            "CHECKPOINT}` without openai"
        )
    return policy
