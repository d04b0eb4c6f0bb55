"""Checkpoint of the stock trainer -> a run's folder at step 0, in which verl goes on with weights and optimizer."""

import shutil
from pathlib import Path

from verl_pivot.errors import DataError
from verl_pivot.exports.checkpoints import TRACKER, ActorCheckpoint, linked, new_folder, rank_files

_OF_THE_OLD_RUN = ("data.pt", "transfer_queue")
"""Files with the position in the data and with unfinished rollouts; the next stage begins without them."""


def carry_run(actor: ActorCheckpoint, out: Path) -> None:
    """Make `out` a run of verl that has taken no step yet, and has the checkpoint's weights, optimizer and schedule.

    The files are hard links if the file system allows them.

    Raises:
        ConfigError: If `out` exists already, or cannot be written.
        DataError: If the checkpoint has no state of the optimizer.
    """
    check_optimizer(actor.actor)
    with new_folder(out) as folder:
        step = folder / "global_step_0"
        shutil.copytree(
            actor.step_folder, step, copy_function=_link_or_copy, ignore=shutil.ignore_patterns(*_OF_THE_OLD_RUN)
        )
        (folder / TRACKER).write_text("0", encoding="utf-8")


def check_optimizer(actor: Path) -> None:
    """Refuse a checkpoint without the optimizer's state; Megatron keeps it in one folder with the weights.

    Raises:
        DataError: If files are missing; the message says how to save them.
    """
    if (actor / "model" / "dist_ckpt").is_dir():
        return
    for part in ("model", "optim", "extra_state"):
        files = rank_files(actor, part)
        if missing := [file.name for file in files if not file.is_file()]:
            raise DataError(
                f"{actor} lacks {len(missing)} of the {len(files)} files {part}_*.pt that the optimizer needs to "
                f"continue ({missing[0]}): save with "
                "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra], and copy the files of every "
                "node into this folder"
            )


def _link_or_copy(source: str, target: str) -> None:
    if not linked(Path(source), Path(target)):
        shutil.copyfile(source, target)
