"""A launch's config -> nothing, or one sentence about what would fail or do nothing once Ray is up."""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig

from verl_pivot.data.step_state import begin_launch
from verl_pivot.errors import ConfigError
from verl_pivot.launch_checks.agent_loops import check_agent_loops
from verl_pivot.launch_checks.engine import (
    check_adapter,
    check_context,
    check_critic_attention,
    check_engine,
    check_model,
    check_model_path,
    check_sequence_parallel,
    check_served_adapter,
)
from verl_pivot.launch_checks.folders import check_folders
from verl_pivot.launch_checks.gpus import check_engine_size
from verl_pivot.launch_checks.groups import check_choices
from verl_pivot.launch_checks.process import needs_critic
from verl_pivot.launch_checks.resuming import (
    check_critic,
    check_num_gpus,
    check_resume,
    check_total_steps,
    latest_folder,
    noted_at,
    resumed_folder,
    step_of,
)
from verl_pivot.launch_checks.reward_functions import check_function_file, check_reward_function
from verl_pivot.launch_checks.rubrics import keeps_criteria
from verl_pivot.launch_checks.run_record import RunRecord, check_same_run, write_record
from verl_pivot.launch_checks.sampling import check_sampling
from verl_pivot.launch_checks.sandbox_pool import check_pool
from verl_pivot.launch_checks.separate_trainer import check_separate_trainer
from verl_pivot.launch_checks.training_files import (
    NAME_TASKS,
    OUR_DATASET,
    SplitSize,
    check_lengths,
    check_pivots,
    check_size,
    check_verifiers,
    file_list,
    read_files,
)
from verl_pivot.launch_checks.values import (
    check_generation_batch,
    check_loggers,
    check_mini_batch,
    check_shared_mini_batches,
    check_token_limits,
    check_values,
    sequence_parallel_size,
)
from verl_pivot.launch_checks.verl_names import check_verl_names
from verl_pivot.local.environment import has_accelerator
from verl_pivot.resampling.settings import check_batch, parse_resampling
from verl_pivot.rollout import rubric_rewards, workflow_settings
from verl_pivot.rollout.settings import parse_settings
from verl_pivot.verifiers.registry import load_verifier_modules

_WRITTEN = ("rollout_data_dir", "validation_data_dir")
"""Keys under `trainer` of folders; a launch that sets such a key writes to its folder."""


def check_launch(config: DictConfig, chosen: Mapping[str, str]) -> None:
    """Refuse a launch that would fail, or would train nothing, after minutes of starting.

    Args:
        config: verl's whole config.
        chosen: {config group: chosen option}.

    Raises:
        ConfigError: Naming the setting and the remedy.
    """
    check_choices(chosen)
    check_values(config)
    if "method" in chosen:
        check_mini_batch(config)
        if "notebook" not in config.pivot:  # its replay buffer chooses the size in each step
            check_shared_mini_batches(config, trains_critic=needs_critic(config))
    if "resampling" in config.pivot:
        check_batch(config, parse_resampling(config), trains_critic=needs_critic(config))
    else:
        check_generation_batch(config)
    check_verl_names(config)
    _check_sequence_parallel(config)
    check_separate_trainer(config)
    if _is_remote(config):
        return
    load_verifier_modules(config.pivot.get("verifier_modules", ()))  # a launch of stock verl with a router has none
    function = config.reward.custom_reward_function
    check_reward_function(function.path)
    check_function_file(function.path, str(function.name))
    check_engine(str(config.actor_rollout_ref.rollout.name))
    check_engine_size(config)
    _check_model_paths(config)
    check_model(config.actor_rollout_ref.model.path, _environment(config))
    check_adapter(config.actor_rollout_ref.model.get("lora_adapter_path"))
    model = config.actor_rollout_ref.model
    check_served_adapter(
        str(config.actor_rollout_ref.rollout.name), int(model.get("lora_rank", 0)), is_merged=bool(model.lora.merge)
    )
    check_context(config.actor_rollout_ref.rollout.get("max_model_len"), _model_context(config))
    steps_per_epoch = _check_data(config, chosen.get("method"))
    folder = _resumed_folder(config)
    if config.trainer.resume_mode == "auto":
        check_same_run(Path(config.trainer.default_local_dir), step_of(folder), _run_record(config, chosen))
    if not config.trainer.get("val_only"):
        _check_resume(config, folder, steps_per_epoch)
        _check_critic_attention(config)
        if "method" in chosen:
            check_token_limits(config, _context(config), trains_critic=needs_critic(config))
    check_loggers(config.trainer.logger)
    check_folders({f"trainer.{key}": config.trainer.get(key) for key in _written(config)})


def remember_run(config: DictConfig, chosen: Mapping[str, str]) -> None:
    """Record what a launch begins from, if it saves checkpoints; later `check_launch` reads it.

    A launch that goes on by itself (`trainer.resume_mode=auto`) keeps the record of its run.

    Raises:
        ConfigError: If the folder of the checkpoints cannot be written.
    """
    if _is_remote(config) or not _saves(config):
        return
    resumed, folder = _resumed_folder(config), Path(config.trainer.default_local_dir)
    if config.trainer.resume_mode == "auto" and step_of(resumed):
        return
    record, latest = _run_record(config, chosen), latest_folder(folder)
    if resumed is not None and latest is not None and resumed.resolve() == latest.resolve():
        record = replace(record, earlier_note=None)  # the folder's checkpoints are those of this run
    write_record(folder, record)


def begin_states(config: DictConfig) -> None:
    """Reset the states beside the checkpoints to the step from which a launch goes on.

    A validation alone changes no state of the folder of its checkpoint, but takes it over into another folder.

    Raises:
        ConfigError: If a state cannot be written.
    """
    if _is_remote(config) or "rollout" not in config.pivot:
        return
    states = {
        workflow_settings.STATE: parse_settings(config).workflows.every_steps is not None,
        rubric_rewards.STATE: keeps_criteria(config),
    }
    folder, checkpoint = Path(config.trainer.default_local_dir), _resumed_folder(config)
    is_own = checkpoint is None or checkpoint.parent.resolve() == folder.resolve()
    if config.trainer.get("val_only") and is_own:
        return
    step = step_of(checkpoint)
    for name in (name for name, is_kept in states.items() if is_kept):
        begin_launch(folder, name, step, checkpoint if step else None)


def _run_record(config: DictConfig, chosen: Mapping[str, str]) -> RunRecord:
    model, note = str(config.actor_rollout_ref.model.path), noted_at(str(config.trainer.default_local_dir))
    return RunRecord.of(model, chosen.get("stage"), chosen.get("method"), earlier_note=note)


def _is_remote(config: DictConfig) -> bool:
    """Whether the launch runs on a remote cluster, whose files and packages are not those of this machine."""
    return str(config.ray_kwargs.ray_init.get("address") or "").startswith("ray://")


def _saves(config: DictConfig) -> bool:
    return bool(config.trainer.save_freq > 0 and not config.trainer.get("val_only"))


def _written(config: DictConfig) -> tuple[str, ...]:
    """Keys under `trainer` of the folders that the launch writes to."""
    return (*_WRITTEN, "default_local_dir") if _saves(config) else _WRITTEN


def _check_data(config: DictConfig, method: str | None) -> int | None:
    """Check the training and validation files; returns the steps of one epoch, None if they are not known."""
    data, is_pivotrl = config.data, method == "pivotrl"
    if data.custom_cls.path != OUR_DATASET:
        return None  # a dataset of the user's, which may read anything
    train, val = file_list(data.train_files), file_list(data.val_files)
    train_remedy = "it is written by `verl-pivot select`" if is_pivotrl else NAME_TASKS
    files = read_files("data.train_files", train, train_remedy)
    val_remedy = "`verl-pivot select` writes it beside the training file" if is_pivotrl else NAME_TASKS
    val_files = read_files("data.val_files", val, val_remedy)
    places = ", ".join(train)
    if files is None:
        if is_pivotrl and "://" not in places:
            raise ConfigError(
                f"data.train_files: {places} is not a parquet file: write pivots with `verl-pivot select`"
            )
        return None
    check_pool(verifiers=files.verifiers)
    if is_pivotrl:
        _check_pivots(config, files, val_files)
    else:
        _check_tasks(config, files, places)
    if method is not None and val_files is not None:
        check_agent_loops(config, method, {"data.train_files": files, "data.val_files": val_files})
    context = _context(config)
    check_lengths(files, "data.train_files", max_prompt_length=data.max_prompt_length, context=context)
    return check_size(
        files, "data.train_files", batch_size=data.train_batch_size, max_rows=data.get("train_max_samples", -1)
    )


def _check_pivots(config: DictConfig, files: SplitSize, val_files: SplitSize | None) -> None:
    """Check the rows of +method=pivotrl; `val_files` is None if only verl can read them."""
    train = file_list(config.data.train_files)
    places = ", ".join(train)
    check_pivots(files, "data.train_files", places)
    if not config.trainer.get("val_only"):
        check_sampling(config, files.samplings, places)
    _check_curriculum(config, files, train == file_list(config.data.val_files))
    if val_files is not None:
        _check_reward_function(config.reward.custom_reward_function.path, (files, val_files))


def _check_tasks(config: DictConfig, files: SplitSize, places: str) -> None:
    """Check the training rows of a method with tools."""
    check_verifiers(files, "data.train_files", places)
    if "process" in config.pivot and files.num_pivots:
        raise ConfigError(
            f"data.train_files: {places} has pivots, whose rollouts are scored by their first turn alone, but "
            "pivot.process needs the outcome of the whole rollout: train on tasks, or use +method=pivotrl"
        )
    if "tree_search" in config.pivot and files.num_pivots:
        raise ConfigError(
            f"data.train_files: {places} has pivots, whose rollouts begin in the middle of a conversation without an "
            "environment in that state, but pivot.tree_search scores states of environments: train on tasks, or use "
            "+method=pivotrl"
        )
    if (key := config.data.prompt_key) not in files.columns:
        raise ConfigError(f"data.train_files: {places} has no column {key!r} (data.prompt_key)")


def _check_curriculum(config: DictConfig, files: SplitSize, is_same: bool) -> None:
    if not config.pivot.curriculum.enabled:
        return
    if not files.has_variances:
        raise ConfigError(
            "pivot.curriculum.enabled=True starts from the reward variances of a profile, which data.train_files does "
            "not have: run `verl-pivot select` with --profile"
        )
    if is_same:
        raise ConfigError("with pivot.curriculum.enabled=True data.val_files must differ from data.train_files")
    if config.data.dataloader_num_workers != 0:
        raise ConfigError(
            "pivot.curriculum.enabled=True needs data.dataloader_num_workers=0, got "
            f"{config.data.dataloader_num_workers}"
        )


def _check_reward_function(path: str | None, splits: Sequence[SplitSize]) -> None:
    """Refuse a reward function that would score no row."""
    if path and all(files.num_pivots == files.num_rows for files in splits):
        raise ConfigError(
            f"reward.custom_reward_function.path={path} does nothing, since all rows of data.train_files and "
            "data.val_files are pivots, which the verifier of each row scores: leave it out, or register a verifier of "
            "your own with pivot.verifier_modules and name it with `verl-pivot import --verifier`"
        )


def _check_model_paths(config: DictConfig) -> None:
    models = {"actor_rollout_ref.model": config.actor_rollout_ref.model}
    if needs_critic(config):
        models["critic.model"] = config.critic.model
    for name, model in models.items():
        for key in ("path", "tokenizer_path", "hf_config_path", "lora_adapter_path"):
            check_model_path(f"{name}.{key}", model.get(key))


def _check_sequence_parallel(config: DictConfig) -> None:
    size = sequence_parallel_size(config.actor_rollout_ref.actor)
    check_sequence_parallel(size, config.actor_rollout_ref.model.get("override_config", {}).get("attn_implementation"))


def _check_critic_attention(config: DictConfig) -> None:
    if needs_critic(config) and has_accelerator():  # the machine that starts a launch may have no GPU of its own
        is_installed = importlib.util.find_spec("flash_attn") is not None
        check_critic_attention(str(config.critic.strategy), has_flash_attention=is_installed)


def _resumed_folder(config: DictConfig) -> Path | None:
    """Folder of the checkpoint that the launch goes on from; None if it begins anew."""
    trainer = config.trainer
    return resumed_folder(str(trainer.resume_mode), str(trainer.default_local_dir), trainer.resume_from_path)


def _check_resume(config: DictConfig, folder: Path | None, steps_per_epoch: int | None) -> None:
    trainer = config.trainer
    total = trainer.total_training_steps
    if steps_per_epoch is not None:
        check_total_steps(total, steps_per_epoch, trainer.total_epochs)
        total = total or steps_per_epoch * trainer.total_epochs
    check_resume(step_of(folder), total, str(trainer.default_local_dir))
    check_num_gpus(folder, int(trainer.nnodes) * int(trainer.n_gpus_per_node))
    if needs_critic(config):
        check_critic(folder)


def _context(config: DictConfig) -> int | None:
    """Tokens of the engine's context: the smaller of `max_model_len` and the model's own length; None if unknown."""
    limits = (config.actor_rollout_ref.rollout.get("max_model_len"), _model_context(config))
    return min((int(limit) for limit in limits if limit), default=None)


def _model_context(config: DictConfig) -> int | None:
    """Tokens of the model's context; None if the model is not a folder here, or its config does not say."""
    path = Path(str(config.actor_rollout_ref.model.path)) / "config.json"
    if not path.is_file():
        return None
    model = json.loads(path.read_text())
    length: int | None = model.get("text_config", model).get("max_position_embeddings")
    return length


def _environment(config: DictConfig) -> Mapping[str, str]:
    """Environment variables that the launch gives to its processes."""
    runtime = config.ray_kwargs.ray_init.get("runtime_env") or {}
    return {str(name): str(value) for name, value in (runtime.get("env_vars") or {}).items()}
