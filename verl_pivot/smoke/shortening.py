"""The launch of a user -> a short one of the same kind: a tiny model, few rows, two steps, nothing saved."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from verl_pivot.errors import ConfigError
from verl_pivot.launch_checks.values import TOKEN_LIMITS
from verl_pivot.local.trial_settings import PARALLEL_SIZES
from verl_pivot.planning.overrides import override_value
from verl_pivot.smoke.composing import ADDRESS, OWN_CLUSTER, SmokeMachine
from verl_pivot.smoke.given_settings import given_settings
from verl_pivot.smoke.launch_script import ReplacedLaunch, replaced
from verl_pivot.smoke.methods import CASES
from verl_pivot.smoke.trial_launch import NUM_STEPS, nothing_saved

MODEL = "actor_rollout_ref.model.path"
_GROUP_SIZE = 4
_RESPONSE = "data.max_response_length"
_MAX_RESPONSE_TOKENS = 1024
_VERLS_RESPONSE_TOKENS = "512"
"""`data.max_response_length` in verl's default."""
_ENGINE_SIZE = "actor_rollout_ref.rollout.tensor_model_parallel_size"
"""Key of the GPUs of one engine, 2 in verl's default."""
_MICRO_BATCH_SIZES = (
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
    "critic.ppo_micro_batch_size_per_gpu",
    "critic.forward_micro_batch_size_per_gpu",
)
"""Keys of verl with numbers of rows that must divide the rows of a worker."""
_TRAINER_MODE = "trainer.v1.trainer_mode"
_RESAMPLED = ("grpo_roc", "l0")
"""Methods that leave out groups with equal rewards; a policy with random weights has only such groups."""


def with_method(launch: Sequence[str], method: str | None) -> tuple[str, ...]:
    """The launch with a method that the user named beside it.

    Raises:
        ConfigError: If the launch has another method, or Hydra cannot compose the configs that it names.
    """
    own = given_settings(launch).get("method")
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
        ConfigError: If an override that is not replaced has a value that only a shell can tell, or Hydra cannot
            compose the configs that the launch names.
    """
    given = given_settings(launch)
    method = given.get("method", "")
    group_size = CASES[method].group_size if method in CASES else _GROUP_SIZE
    num_prompts = machine.batch_size(group_size)
    batch_size = str(num_prompts)
    response = _at_most(given.get(_RESPONSE, _VERLS_RESPONSE_TOKENS), _MAX_RESPONSE_TOKENS)
    where_given = {
        "critic.model.path": override_value(str(model)),
        "critic.ppo_mini_batch_size": batch_size,
        **_fitting(given),
        **({} if method == "l0" else _turn_limits(given, response)),
        **({} if machine.has_accelerator else {"actor_rollout_ref.rollout.name": machine.engine}),
    }
    values = {
        MODEL: override_value(str(model)),
        **{key: value for key, value in where_given.items() if key in given},
        **({_ENGINE_SIZE: "1", ADDRESS: OWN_CLUSTER} if machine.has_accelerator else {}),
        "data.train_batch_size": batch_size,
        "data.train_max_samples": str(16 * num_prompts),
        **({} if method == "l0" else {_RESPONSE: str(response)}),  # l0 has a window
        "actor_rollout_ref.actor.ppo_mini_batch_size": batch_size,
        "actor_rollout_ref.rollout.n": str(group_size),
        **({"pivot.resampling.equal_rewards": "keep"} if method in _RESAMPLED else {}),
        **({"pivot.allow_other_sampling": "True"} if method == "pivotrl" and machine.has_accelerator else {}),
        "trainer.total_training_steps": str(NUM_STEPS),
        **nothing_saved(folder),
        "trainer.nnodes": "1",
        "trainer.n_gpus_per_node": str(machine.num_workers),
        **(_with_separate_engines(machine) if given.get(_TRAINER_MODE) == "separate_async" else {}),
        **({} if machine.has_accelerator else _on_a_cpu(machine)),
    }
    return replaced(launch, values)


def _fitting(given: Mapping[str, str]) -> dict[str, str]:
    """{key: value} of settings that two steps of few rows on one machine need, if the launch gives them."""
    return {
        "trainer.total_epochs": str(NUM_STEPS),
        "trainer.val_only": "False",
        "trainer.critic_warmup": "0",  # else the first steps leave the actor as it is
        "data.gen_batch_size": "1",
        "actor_rollout_ref.rollout.max_model_len": "null",  # the tiny model's own context
        **dict.fromkeys((*PARALLEL_SIZES, *_MICRO_BATCH_SIZES), "1"),
        **_token_limits(given),
    }


def _token_limits(given: Mapping[str, str]) -> dict[str, str]:
    """{key: value} of the tokens of a micro-batch, which a launch that splits sequences gives for a part of each."""
    sizes = [int(given[key]) for key in PARALLEL_SIZES if "ulysses" in key and given.get(key, "").isdecimal()]
    return {key: str(int(given[key]) * max(sizes)) for key in TOKEN_LIMITS if sizes and given.get(key, "").isdecimal()}


def _turn_limits(given: Mapping[str, str], response: int) -> dict[str, str]:
    """{key: value} of the limits of one turn, which may not be above the short response."""
    keys = ("pivot.max_turn_tokens", "pivot.rollout.max_turn_tokens")
    return {key: "null" if given.get(key) == "null" else str(_at_most(given.get(key, ""), response)) for key in keys}


def _at_most(value: str, limit: int) -> int:
    """The number that a launch gives, or the limit if that is less, or if only a shell can tell the number."""
    return min(int(value), limit) if value.isdecimal() else limit


def _with_separate_engines(machine: SmokeMachine) -> dict[str, str]:
    """{key: value} of a launch whose engines have GPUs of their own; its batch is one mini-batch."""
    return {
        "trainer.v1.separate_async.parameter_sync_step": "1",
        "actor_rollout_ref.rollout.nnodes": "1",
        "actor_rollout_ref.rollout.n_gpus_per_node": str(machine.num_workers),
    }


def _on_a_cpu(machine: SmokeMachine) -> dict[str, str]:
    return {"+local": "cpu", "pivot.trial_steps": "null", "ray_kwargs.ray_init.num_gpus": str(machine.num_workers)}
