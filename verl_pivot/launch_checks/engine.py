"""Rollout engine and model of a launch -> an error if they are not on this machine."""

import importlib.metadata
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

from verl_pivot.errors import ConfigError

_MODULES = {
    "sglang": ("sglang", "pip install --no-deps -r requirements/sglang.txt"),
    "vllm": ("vllm", "pip install 'verl-pivot[vllm]'"),
    "trtllm": ("tensorrt_llm", "see the documentation of verl"),
}
"""{name of verl's rollout engine: (its package, how to install it)}"""
_SGLANG_WITHOUT_ADAPTERS = "0.5.12"
"""Version of SGLang whose `LoadLoRAAdapterFromTensorsReqInput` does not take the tensors of verl 0.9.1."""
_UNSPLIT_ATTENTIONS = ("eager", "flex_attention", "sdpa")
FSDP = ("fsdp", "fsdp2")
"""Values of `strategy` with which verl trains by FSDP."""


def check_engine(name: str) -> None:
    """Refuse a rollout engine whose package is not installed; verl would say so after Ray and the policy are up.

    Raises:
        ConfigError: Naming the command that installs it.
    """
    if name not in _MODULES:
        return
    module, remedy = _MODULES[name]
    if importlib.util.find_spec(module) is not None:
        return
    installed = [other for other, (its, _) in _MODULES.items() if importlib.util.find_spec(its) is not None]
    other = f", or choose actor_rollout_ref.rollout.name={installed[0]}, which is installed" if installed else ""
    raise ConfigError(f"actor_rollout_ref.rollout.name={name}, but {module} is not installed: {remedy}{other}")


def check_model_path(key: str, path: str | None) -> None:
    """Refuse a spelling of a path that commands and shells know and verl does not.

    Args:
        key: Key of the command line.
        path: Its value; None if it names nothing.

    Raises:
        ConfigError: With the spelling that works.
    """
    if not path:
        return
    known = Path.home() / path[2:] if path.startswith("~/") else None
    if path.endswith("/") or (known is not None and known.exists()):
        raise ConfigError(
            f"{key}={path}: verl opens no path that ends in a slash or begins with ~: write "
            f"{key}={known or path.rstrip('/')}"
        )


def check_model(path: str | None, environment: Mapping[str, str] = os.environ) -> None:
    """Refuse a model folder that does not exist, and, in an offline launch, a model that was not downloaded.

    Args:
        path: `actor_rollout_ref.model.path`: a folder or a name of the Hugging Face hub.
        environment: Environment variables of the launch.

    Raises:
        ConfigError: Saying what to do.
    """
    if not path:
        raise ConfigError("actor_rollout_ref.model.path names no model: give a folder or a Hugging Face name")
    folder = Path(path)
    if folder.is_file():
        raise ConfigError(f"actor_rollout_ref.model.path={path} is a file: name the folder with the checkpoint")
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(
                f"actor_rollout_ref.model.path={path} has no config.json: name a folder with a checkpoint"
            )
        return
    if path.startswith(("/", ".", "~")) or (path.count("/") > 1 and "://" not in path):
        raise ConfigError(
            f"actor_rollout_ref.model.path={path} is not a folder on this machine: give an existing folder, or a "
            "Hugging Face name"
        )
    if "://" not in path and environment.get("HF_HUB_OFFLINE") == "1" and not _is_cached(path):
        raise ConfigError(
            f"actor_rollout_ref.model.path={path} is neither a folder nor a downloaded model, and this launch "
            f"downloads nothing: run `hf download {path}` first"
        )


def check_context(max_model_len: int | None, max_position_embeddings: int | None) -> None:
    """Refuse a context that is longer than the model's; the engine would say so after minutes.

    Args:
        max_model_len: `actor_rollout_ref.rollout.max_model_len`, tokens; None for the model's own.
        max_position_embeddings: Tokens of the model's context; None if its config does not say.

    Raises:
        ConfigError: With the model's length.
    """
    if max_model_len and max_position_embeddings and max_model_len > max_position_embeddings:
        raise ConfigError(
            f"actor_rollout_ref.rollout.max_model_len={max_model_len} is longer than the model's context of "
            f"{max_position_embeddings} tokens: lower it, or leave it out for all of the context"
        )


def check_adapter(path: str | None) -> None:
    """Refuse a LoRA adapter that is not there.

    Args:
        path: `actor_rollout_ref.model.lora_adapter_path`.

    Raises:
        ConfigError: Naming the file that is missing.
    """
    if path and "://" not in path and not (Path(path).expanduser() / "adapter_config.json").is_file():
        raise ConfigError(
            f"actor_rollout_ref.model.lora_adapter_path={path} has no adapter_config.json: name the folder of a LoRA "
            "adapter"
        )


def check_served_adapter(engine: str, lora_rank: int, *, is_merged: bool) -> None:
    """Refuse to train a LoRA adapter that SGLang could not take; verl would say so after minutes.

    Args:
        engine: `actor_rollout_ref.rollout.name`.
        lora_rank: `actor_rollout_ref.model.lora_rank`; 0 without LoRA.
        is_merged: `actor_rollout_ref.model.lora.merge`: the engine gets weights into which the adapter is merged.

    Raises:
        ConfigError: Naming the setting that works.
    """
    if engine != "sglang" or lora_rank <= 0 or is_merged:
        return
    if importlib.metadata.version("sglang") == _SGLANG_WITHOUT_ADAPTERS:
        raise ConfigError(
            f"actor_rollout_ref.model.lora_rank={lora_rank}: SGLang {_SGLANG_WITHOUT_ADAPTERS} does not take adapters "
            "as verl hands them over: set actor_rollout_ref.model.lora.merge=True"
        )


def check_sequence_parallel(num_gpus: int, attention: str | None) -> None:
    """Refuse to split sequences over GPUs with an attention that would see only the part on its own GPU.

    verl exchanges the parts inside flash attention (`verl/models/transformers/monkey_patch.py`). With any other
    attention it trains on wrongly, without an error.

    Args:
        num_gpus: `ulysses_sequence_parallel_size` of the actor.
        attention: `attn_implementation` in the model's `override_config`; None: verl's default, flash attention.

    Raises:
        ConfigError: Naming both settings.
    """
    if num_gpus > 1 and attention in _UNSPLIT_ATTENTIONS:
        raise ConfigError(
            f"ulysses_sequence_parallel_size={num_gpus} splits sequences over GPUs, which verl supports only with "
            f"flash attention: with attn_implementation={attention} each GPU would read its own part only; install "
            "flash-attn and leave the setting out, or set actor_rollout_ref.actor.ulysses_sequence_parallel_size=1"
        )


def check_critic_attention(strategy: str, *, has_flash_attention: bool) -> None:
    """Refuse to train a critic without flash attention, which verl would only find out after all models are up.

    verl loads the critic of FSDP with it, whatever the config says (`load_valuehead_model` in `verl/utils/model.py`).

    Args:
        strategy: `critic.strategy`.
        has_flash_attention: Whether the package is installed.

    Raises:
        ConfigError: Saying what to install.
    """
    if strategy in FSDP and not has_flash_attention:
        raise ConfigError(
            f"verl loads the critic of critic.strategy={strategy} with flash attention, which is not installed: pip "
            "install --no-build-isolation flash-attn==2.8.3, or choose an estimator without a critic, such as "
            "algorithm.adv_estimator=grpo"
        )


def _is_cached(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, "config.json"), str)
