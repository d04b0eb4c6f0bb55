"""Rounds of `synthesize --rounds`: the input of each round, and the training between two rounds.

LoopTool (arXiv:2511.09148, section 3) trains the policy on the output of a round, and gives both to the next round.
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
    """One round, with its own output folder."""

    number: int
    """Number of the round, counted from 1."""
    out: Path
    trajectories: Path | None
    """Trajectories of the previous round; None in the first round, which reads the trajectories of the command."""
    model: Path | None
    """Policy from the previous training; None in the first round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBetween:
    """The training between two rounds, for which the loop waits."""

    number: int
    """Number of the round before the training."""
    trajectories: Path
    pivots: Path
    """File of the training rows."""
    checkpoints: Path
    """Folder in which verl saves the policy (`trainer.default_local_dir`)."""
    model: str
    """Policy from which the training begins."""


def next_of_loop(out: Path, num_rounds: int, policy: WriterSettings) -> LoopRound | TrainingBetween | None:
    """The next round or training of a loop; None if all rounds are done.

    The policy that a training saved is written to the folder `model` of the round before it, unless the folder exists.

    Args:
        out: Folder of the loop.
        num_rounds: Number of rounds of the loop.
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
        ConfigError: If the recipe does not work on trajectories, or the policy is not given as a checkpoint to train.
    """
    if recipe.source is not ItemSource.TRAJECTORIES:
        raise ConfigError(
            f"--rounds passes the trajectories of each round to the next one, but {recipe.name} works on "
            f"{recipe.source}: use a method that works on trajectories, such as closed_loop"
        )
    policy = writers.get(POLICY)
    if policy is None or policy.model is None or policy.openai is not None:
        raise ConfigError(
            f"--rounds starts the servers of the policy itself: name its checkpoint in --writers, as `{POLICY}: "
            "{model: CHECKPOINT}` without openai"
        )
    return policy
