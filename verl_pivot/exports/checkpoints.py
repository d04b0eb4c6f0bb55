"""Checkpoint of the stock trainer -> a Hugging Face model folder, from which the next training stage starts."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from verl_pivot.data.files import unwritable
from verl_pivot.engines.server import tied_to_parent
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.local.environment import cpu_engine_variables

TRACKER = "latest_checkpointed_iteration.txt"
_STEP = re.compile(r"global_step_(\d+)")
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_CONTENTS = "actor_rollout_ref.actor.checkpoint.save_contents"
_KILLED = -9
"""Exit code of a process that got SIGKILL, which the kernel sends when memory is short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorCheckpoint:
    """Folders of the policy that verl saved at one training step."""

    step_folder: Path
    """Folder `global_step_N`."""
    huggingface: Path
    """Folder with the config, the tokenizer and, with `hf_model` among the saved contents, the weights."""
    backend: Literal["fsdp", "megatron"] | None
    """Backend whose shards have to be merged; None if the folder `huggingface` holds the whole weights."""

    @property
    def actor(self) -> Path:
        """Folder that verl's merger takes as `--local_dir`."""
        return self.step_folder / "actor"


def find_actor(checkpoint: Path) -> ActorCheckpoint:
    """The policy in a run's last checkpoint, or in one step's checkpoint.

    Args:
        checkpoint: Folder of a run (`trainer.default_local_dir`), or a folder `global_step_N` in it.

    Raises:
        DataError: If the checkpoint holds no policy, or only a part of it.
    """
    step_folder = _step_folder(checkpoint)
    actor = step_folder / "actor"
    if not actor.is_dir():
        raise DataError(
            f"{step_folder} holds no folder 'actor' but {_listed(step_folder)}; steps with an actor are "
            f"{_steps_with_actor(step_folder.parent)} (trainer.max_actor_ckpt_to_keep removes older ones): give one of "
            "them"
        )
    _refuse_adapter(actor)
    for huggingface in (actor / "huggingface", actor / "model" / "huggingface"):
        if not _weight_problem(huggingface):
            return ActorCheckpoint(step_folder=step_folder, huggingface=huggingface, backend=None)
    if (actor / "fsdp_config.json").is_file():
        _check_shards(actor)
        return ActorCheckpoint(step_folder=step_folder, huggingface=actor / "huggingface", backend="fsdp")
    if (actor / "model" / "dist_ckpt").is_dir():
        return ActorCheckpoint(step_folder=step_folder, huggingface=actor / "model" / "huggingface", backend="megatron")
    raise DataError(
        f"{actor} holds neither Hugging Face weights nor shards of FSDP (fsdp_config.json) or Megatron "
        f"(model/dist_ckpt) but {_listed(actor)}: save with {_CONTENTS}=[model,optimizer,extra,hf_model]"
    )


def write_model(actor: ActorCheckpoint, out: Path, *, trust_remote_code: bool) -> None:
    """Copy or merge the policy's weights to the folder `out`, which is written completely or not at all.

    Raises:
        ConfigError: If `out` exists already, or cannot be written.
        DataError: If the shards cannot be merged, or the model is not complete.
    """
    with new_folder(out) as folder:
        if actor.backend is not None:
            _merge(merge_arguments(actor, folder, trust_remote_code=trust_remote_code), out, actor.actor)
        _copy_missing_files(actor.huggingface, folder, with_weights=actor.backend is None)
        _check_complete(folder, actor.actor)


def merge_arguments(actor: ActorCheckpoint, target: Path, *, trust_remote_code: bool) -> list[str]:
    """Command-line arguments of `python -m verl.model_merger`."""
    arguments = ["merge", "--backend", str(actor.backend), "--local_dir", str(actor.actor), "--target_dir", str(target)]
    if actor.backend == "megatron" and _read_json(actor.huggingface / "config.json").get("tie_word_embeddings"):
        arguments.append("--tie-word-embedding")
    return [*arguments, "--trust-remote-code"] if trust_remote_code else arguments


def _step_folder(checkpoint: Path) -> Path:
    if not checkpoint.is_dir():
        raise DataError(
            f"{checkpoint} is no folder: give the run's trainer.default_local_dir, or a global_step_N in it"
        )
    folder = checkpoint.resolve()
    if _STEP.fullmatch(folder.name):
        return folder
    tracker = folder / TRACKER
    if not tracker.is_file():
        raise DataError(
            f"{folder} holds no {TRACKER}, which verl writes with a run's checkpoints, but {_listed(folder)}: give "
            "the run's trainer.default_local_dir, or a global_step_N in it"
        )
    named = folder / f"global_step_{tracker.read_text(encoding='utf-8', errors='replace').strip()}"
    if not named.is_dir():
        raise DataError(
            f"{tracker} names {named.name}, which does not exist; steps with an actor are {_steps_with_actor(folder)}: "
            "give one of them"
        )
    return named


def _steps_with_actor(run: Path) -> str:
    steps = [found for path in run.iterdir() if (found := _STEP.fullmatch(path.name)) and (path / "actor").is_dir()]
    return ", ".join(step.group() for step in sorted(steps, key=lambda step: int(step.group(1)))) or "none"


def _listed(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "") or "nothing"


def _refuse_adapter(actor: Path) -> None:
    """Refuse the checkpoint of a LoRA run: verl's merger writes the old base weights, with the adapter beside them."""
    manifest = actor / "ckpt_contents.json"
    is_megatron_adapter = manifest.is_file() and '"peft": true' in manifest.read_text()
    if is_megatron_adapter or (actor / "lora_train_meta.json").is_file():
        raise DataError(
            f"{actor} holds a LoRA adapter, which the next reference policy would lack: merge it into the base "
            "model with peft's merge_and_unload() and give that folder to actor_rollout_ref.model.path"
        )


def _check_shards(actor: Path) -> None:
    """Refuse a folder that lacks shards: each node saves those of its own ranks, perhaps on its own file system."""
    files = rank_files(actor, "model")
    world_size, missing = len(files), [rank for rank, file in enumerate(files) if not file.is_file()]
    if len(missing) == world_size:
        raise DataError(f"{actor} was saved without weights: train with 'model' in {_CONTENTS}")
    if missing:
        raise DataError(
            f"{actor} lacks the shards of {len(missing)} of {world_size} ranks ({_few(missing)}): copy "
            f"model_world_size_{world_size}_rank_*.pt of every node into it"
        )


def rank_files(actor: Path, part: str) -> list[Path]:
    """[num_ranks] files in which FSDP's ranks save one part of a checkpoint: model, optim or extra_state.

    Raises:
        DataError: If the checkpoint does not say how many ranks there were.
    """
    world_size = _read_json(actor / "fsdp_config.json").get("world_size")
    if not isinstance(world_size, int):
        raise DataError(
            f"{actor / 'fsdp_config.json'} has no world_size, so verl's merger cannot find the shards: take another "
            "step's checkpoint"
        )
    return [actor / f"{part}_world_size_{world_size}_rank_{rank}.pt" for rank in range(world_size)]


def _few(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:5])) + (", ..." if len(ranks) > 5 else "")


def _read_json(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}; take another step's checkpoint") from error
    return value if isinstance(value, dict) else {}


def _weight_problem(folder: Path) -> str:
    """Names of the files that the weights lack; empty if the weights are complete."""
    if any(_is_filled(folder / name) for name in _WEIGHTS):
        return ""
    for index in (folder / f"{name}.index.json" for name in _WEIGHTS):
        if index.is_file():
            shards = _read_json(index).get("weight_map")
            names = sorted(set(shards.values())) if isinstance(shards, dict) else [index.name]
            return ", ".join(name for name in names if not _is_filled(folder / name))
    return " or ".join(_WEIGHTS)


def _is_filled(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _check_complete(folder: Path, source: Path) -> None:
    missing = [name for name in ("config.json", "tokenizer_config.json") if not _is_filled(folder / name)]
    if problem := _weight_problem(folder):
        missing.append(problem)
    if missing:
        raise DataError(
            f"the model in {source} is not complete: it lacks {', '.join(missing)}: take another step's checkpoint, or "
            "copy the missing files from the model that the training started from"
        )


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Temporary folder that is renamed to `out` when the block succeeds and removed when the block fails."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"--out {out} exists already: give a new folder, or remove it")
    unfinished = out.with_name(f".{out.name}.unfinished")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)  # a command that was killed may have left it
        unfinished.mkdir(parents=True)
        yield unfinished
        unfinished.rename(out)
    except OSError as error:
        raise unwritable(out, error) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _copy_missing_files(source: Path, target: Path, *, with_weights: bool) -> None:
    """Copy the files that `target` lacks, such as a model's own code, which the merger does not write.

    Weights are hard links to the checkpoint's if the file system allows it; other files are copies that users may edit.
    """
    for path in (path for path in source.rglob("*") if path.is_file()):
        copy = target / path.relative_to(source)
        is_weights = path.name.endswith((".safetensors", ".bin", ".index.json"))
        if copy.exists() or (is_weights and not with_weights):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not (is_weights and linked(path, copy)):
            shutil.copyfile(path, copy)


def linked(path: Path, copy: Path) -> bool:
    """Whether `copy` could be made as a hard link to `path`."""
    try:
        copy.hardlink_to(path)
    except OSError:  # another file system, or one without links
        return False
    return True


def _merge(arguments: list[str], out: Path, actor: Path) -> None:
    # Without an accelerator, transformers can be imported only with the shims; with one, the shims change nothing.
    environment = {**os.environ, "PYTHONPATH": cpu_engine_variables(os.environ)["PYTHONPATH"]}
    merger = subprocess.run(
        tied_to_parent("verl.model_merger", *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        env=environment,
    )
    if merger.returncode == 0:
        return
    log = out.with_name(f"{out.name}.merge.log")
    log.write_bytes(merger.stdout)
    lines = merger.stdout.decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
    why = "it was killed, most likely since memory was short" if merger.returncode == _KILLED else last
    raise DataError(f"verl's merger cannot merge {actor}: {why} (its whole output is in {log})")
