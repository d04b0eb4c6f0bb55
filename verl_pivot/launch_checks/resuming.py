"""Checkpoints that verl would resume from, and steps of a launch -> an error if some steps would not be trained."""

import json
from math import ceil
from pathlib import Path

from verl_pivot.errors import ConfigError

_TRACKER = "latest_checkpointed_iteration.txt"
_STEP_FOLDER = "global_step_"


def resumed_folder(mode: str, local_dir: str, path: str | None) -> Path | None:
    """Folder of the checkpoint that verl would resume from; None if it would begin anew.

    Args:
        mode: `trainer.resume_mode`.
        local_dir: `trainer.default_local_dir`.
        path: `trainer.resume_from_path`.

    Raises:
        ConfigError: If the mode is unknown, or the named checkpoint does not exist or is not named as verl reads it.
    """
    if mode == "disable":
        return None
    if mode == "auto":
        return latest_folder(Path(local_dir))
    if mode != "resume_path":
        raise ConfigError(f"trainer.resume_mode={mode}: must be auto, disable or resume_path")
    step = (path or "").rstrip("/").rpartition(_STEP_FOLDER)[2]
    if path is None or not step.isdigit():
        raise ConfigError(
            f"trainer.resume_mode=resume_path needs trainer.resume_from_path to end in "
            f"{_STEP_FOLDER}<number>, got {path}"
        )
    if path.endswith("/"):
        raise ConfigError(
            f"trainer.resume_from_path={path} ends in a slash, behind which verl finds no number of a step: write "
            f"trainer.resume_from_path={path.rstrip('/')}"
        )
    if "://" not in path and not Path(path).is_dir():
        raise ConfigError(f"trainer.resume_from_path={path} is not a folder: give the folder of a checkpoint")
    return Path(path)


def step_of(folder: Path | None) -> int:
    """Step of a checkpoint; 0 for that of a run that has taken no step yet, and without a checkpoint."""
    return 0 if folder is None else int(folder.name.rpartition(_STEP_FOLDER)[2])


def check_resume(step: int, total_steps: int | None, local_dir: str) -> None:
    """Refuse a launch that would resume at or after its last step, since verl ends it at once with exit code 0.

    Args:
        step: Step of the checkpoint; 0 if there is none.
        total_steps: Last step of the launch; None if it is not known.
        local_dir: `trainer.default_local_dir`.

    Raises:
        ConfigError: With the three remedies.
    """
    if step and total_steps is not None and step >= total_steps:
        raise ConfigError(
            f"{local_dir} holds a checkpoint of step {step} and the launch ends at step {total_steps}, so that it "
            "would resume and train no step: raise trainer.total_training_steps (or trainer.total_epochs), begin anew "
            "with trainer.resume_mode=disable, or name another trainer.default_local_dir"
        )


def check_total_steps(total_steps: int | None, steps_per_epoch: int, num_epochs: int) -> None:
    """Refuse more steps than the epochs have: verl would end after the epochs with exit code 0.

    It would save no last checkpoint, and its learning rate would be that of the larger number of steps.

    Args:
        total_steps: `trainer.total_training_steps`; None for all steps of the epochs.
        steps_per_epoch: Steps of one epoch.
        num_epochs: `trainer.total_epochs`.

    Raises:
        ConfigError: With the number of epochs that suffices.
    """
    if total_steps is not None and total_steps > steps_per_epoch * num_epochs:
        raise ConfigError(
            f"trainer.total_training_steps={total_steps} is more than the {steps_per_epoch * num_epochs} steps of "
            f"trainer.total_epochs={num_epochs} ({steps_per_epoch} in each epoch), after which verl would end without "
            f"its last checkpoint and validation: raise trainer.total_epochs to {ceil(total_steps / steps_per_epoch)} "
            "or more"
        )


def check_critic(folder: Path | None) -> None:
    """Refuse to resume from a checkpoint without a critic, which verl would only find out after all models are up.

    Args:
        folder: Folder of the checkpoint; None if there is none.

    Raises:
        ConfigError: Naming the folder.
    """
    if folder is not None and folder.is_dir() and not (folder / "critic").is_dir():
        raise ConfigError(
            f"{folder} holds no critic, and the launch trains one: resume from a checkpoint that a launch with a "
            "critic saved, or begin anew with trainer.resume_mode=disable, and with its policy as "
            "actor_rollout_ref.model.path"
        )


def check_num_gpus(folder: Path | None, num_gpus: int) -> None:
    """Refuse to resume shards of FSDP with another number of GPUs: verl asks for files with that number in their names.

    Args:
        folder: Folder of the checkpoint; None if there is none.
        num_gpus: GPUs that the launch trains on.

    Raises:
        ConfigError: Naming both numbers.
    """
    if folder is None or not (facts := folder / "actor" / "fsdp_config.json").is_file():
        return
    saved_by = json.loads(facts.read_text()).get("world_size")
    if saved_by not in (None, num_gpus):
        raise ConfigError(
            f"{folder} was saved by {saved_by} GPUs, and verl cannot resume it on the {num_gpus} GPUs of the launch "
            f"(trainer.nnodes x trainer.n_gpus_per_node): use {saved_by} GPUs, or begin anew with "
            "trainer.resume_mode=disable and the policy that `verl-pivot next-stage` writes from it"
        )


def noted_at(local_dir: str) -> int | None:
    """Time at which verl noted its latest checkpoint in a folder, in nanoseconds since 1970; None without a note."""
    tracker = Path(local_dir) / _TRACKER
    return tracker.stat().st_mtime_ns if tracker.is_file() else None


def latest_folder(local_dir: Path) -> Path | None:
    """Folder of the checkpoint that verl noted as the latest one; None without a note, or without that folder."""
    tracker = local_dir / _TRACKER
    if not tracker.is_file():
        return None
    text = tracker.read_text().strip()
    folder = local_dir / f"{_STEP_FOLDER}{text}"
    return folder if text.isdigit() and folder.exists() else None
