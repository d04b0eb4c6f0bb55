"""Checkpoint -> ModelFacts: its number of parameters and its context length, from its config alone."""

from typing import TYPE_CHECKING, NamedTuple

from verl_pivot.errors import ConfigError
from verl_pivot.local.environment import activate_shims

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


class ModelFacts(NamedTuple):
    """Sizes of a model, derived from its config."""

    billions: float | None
    """Parameters in billions; None if transformers does not know the architecture."""
    active_billions: float | None
    """Parameters in billions that one token uses; fewer than `billions` for a mixture of experts."""
    context_tokens: int | None
    """Maximum number of tokens of prompt and answer together; None if the config does not say."""


def model_facts(model: str) -> ModelFacts:
    """Facts about a checkpoint; no weights are read.

    Raises:
        ConfigError: If it is no checkpoint.
    """
    config = _text_config(model)
    import torch
    from transformers import AutoModelForCausalLM

    context = _context_tokens(config)
    try:
        with torch.device("meta"):
            network = AutoModelForCausalLM.from_config(config)
    except ValueError:  # an architecture that only the checkpoint's own code implements
        return ModelFacts(None, None, context)
    sizes = {name: weight.numel() for name, weight in network.named_parameters()}
    total = sum(sizes.values())
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    return ModelFacts(total / 1e9, (total - experts * (1.0 - _used_share(config))) / 1e9, context)


def context_tokens(model: str) -> int | None:
    """Maximum number of tokens of prompt and answer together that a model takes; None if its config does not say.

    Raises:
        ConfigError: If it is no checkpoint.
    """
    return _context_tokens(_text_config(model))


def _text_config(model: str) -> "PreTrainedConfig":
    activate_shims()
    from transformers import AutoConfig

    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(model).get_text_config()
    except (OSError, ValueError) as error:
        raise ConfigError(f"--model {model!r} cannot be loaded by transformers: {error}") from error
    return config


def _context_tokens(config: "PreTrainedConfig") -> int | None:
    found: int | None = getattr(config, "max_position_embeddings", None)
    return found


def _used_share(config: object) -> float:
    """Share of a mixture's experts that one token uses; 1 for a model without experts."""
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    number = next((count for name in names if (count := getattr(config, name, None))), None)
    used = getattr(config, "num_experts_per_tok", None)
    return used / number if number and used else 1.0
