"""The launch of a user -> a short one of the same kind: a tiny model, few rows, two steps, nothing saved."""

from collections.abc import Sequence
from pathlib import Path

from verl_pivot.errors import ConfigError
from verl_pivot.local.trial_settings import PARALLEL_SIZES
from verl_pivot.planning.overrides import override_value
from verl_pivot.smoke.composing import SmokeMachine
from verl_pivot.smoke.launch_script import ReplacedLaunch, replaced
from verl_pivot.smoke.methods import CASES
from verl_pivot.smoke.trial_launch import NUM_STEPS, nothing_saved

MODEL = "actor_rollout_ref.model.path"
_GROUP_SIZE = 4
_MAX_RESPONSE_TOKENS = 1024
_LONGEST_TURN = str(_MAX_RESPONSE_TOKENS)
_TRAINER_MODE = "trainer.v1.trainer_mode"
_RESAMPLED = ("grpo_roc", "l0")
"""Methods that leave out groups with equal rewards; a policy with random weights has only such groups."""


def value_of(launch: Sequence[str], key: str) -> str | None:
    """The last value that a launch gives a key; None if it gives none."""
    values = [word.partition("=")[2] for word in launch if word.lstrip("+").partition("=")[0] == key]
    return values[-1] if values else None


def with_method(launch: Sequence[str], method: str | None) -> tuple[str, ...]:
    """The launch with a method that the user named beside it.

    Raises:
        ConfigError: If the launch has another method.
    """
    own = value_of(launch, "method")
    if method is None or method == own:
        return tuple(launch)
    if own is not None:
        raise ConfigError(f"the launch has +method={own}: leave out {method}, or change the script")
    return (*launch, f"+method={method}")


def shortened(launch: Sequence[str], folder: Path, model: Path, machine: SmokeMachine) -> ReplacedLaunch:
    """The short launch, with the list of replaced values.

    Args:
        launch: Overrides of the user's launch.
        folder: Folder for everything that it writes.
        model: The tiny model.
        machine: Machine on which it runs.

    Raises:
        ConfigError: If an override that is not replaced has a value that only a shell can tell.
    """
    method = value_of(launch, "method") or ""
    group_size = CASES[method].group_size if method in CASES else _GROUP_SIZE
    num_prompts = machine.batch_size(group_size)
    batch_size = str(num_prompts)
    where_named = {
        "critic.model.path": override_value(str(model)),
        "critic.ppo_mini_batch_size": batch_size,
        "trainer.total_epochs": str(NUM_STEPS),
        "trainer.val_only": "False",
        "data.gen_batch_size": "1",
        "actor_rollout_ref.rollout.max_model_len": "null",  # the tiny model's own context
        **({} if method == "l0" else _turn_limits(launch)),
        **dict.fromkeys(PARALLEL_SIZES, "1"),
        **({} if machine.has_accelerator else {"actor_rollout_ref.rollout.name": machine.engine}),
    }
    values = {
        MODEL: override_value(str(model)),
        **{key: value for key, value in where_named.items() if value_of(launch, key) is not None},
        "data.train_batch_size": batch_size,
        "data.train_max_samples": str(16 * num_prompts),
        **({} if method == "l0" else {"data.max_response_length": str(_MAX_RESPONSE_TOKENS)}),  # l0 has a window
        "actor_rollout_ref.actor.ppo_mini_batch_size": batch_size,
        "actor_rollout_ref.rollout.n": str(group_size),
        **({"pivot.resampling.equal_rewards": "keep"} if method in _RESAMPLED else {}),
        **({"pivot.allow_other_sampling": "True"} if method == "pivotrl" and machine.has_accelerator else {}),
        "trainer.total_training_steps": str(NUM_STEPS),
        **nothing_saved(folder),
        "trainer.nnodes": "1",
        "trainer.n_gpus_per_node": str(machine.num_workers),
        **(_with_separate_engines(machine) if value_of(launch, _TRAINER_MODE) == "separate_async" else {}),
        **({} if machine.has_accelerator else _on_a_cpu(machine)),
    }
    return replaced(launch, values)


def _turn_limits(launch: Sequence[str]) -> dict[str, str]:
    """{key: value} of the limits of one turn, which may not be above the short response."""
    given = {key: value_of(launch, key) or "" for key in ("pivot.max_turn_tokens", "pivot.rollout.max_turn_tokens")}
    return {
        key: value if value == "null" or (value.isdecimal() and int(value) <= _MAX_RESPONSE_TOKENS) else _LONGEST_TURN
        for key, value in given.items()
    }


def _with_separate_engines(machine: SmokeMachine) -> dict[str, str]:
    """{key: value} of a launch whose engines have GPUs of their own; its batch is one mini-batch."""
    return {
        "trainer.v1.separate_async.parameter_sync_step": "1",
        "actor_rollout_ref.rollout.nnodes": "1",
        "actor_rollout_ref.rollout.n_gpus_per_node": str(machine.num_workers),
    }


def _on_a_cpu(machine: SmokeMachine) -> dict[str, str]:
    return {"+local": "cpu", "pivot.trial_steps": "null", "ray_kwargs.ray_init.num_gpus": str(machine.num_workers)}
