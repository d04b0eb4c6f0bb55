"""Texts that a finished command prints: the next command, ready to be typed, and a remark about message turns."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from verl_pivot.engines.engine import Sampling
from verl_pivot.engines.installed import ENGINES, installed_engine
from verl_pivot.planning.overrides import LARGEST_BATCH, TOKENS_PER_GPU, model_for_verl, override_value

if TYPE_CHECKING:
    from verl_pivot.profiling.profiles import ProfileSettings
    from verl_pivot.types import JsonObject


def next_command(words: Sequence[str], program: Sequence[str] = ("verl-pivot",)) -> str:
    """Command line that works as it stands.

    Args:
        words: Words after the program, which may hold any characters.
        program: Words that start the program.
    """
    return shlex.join([*program, *words])


def next_override(key: str, path: Path) -> str:
    """Word of a launch that sets a key to a path, which may hold any characters."""
    return shlex.quote(f"{key}={override_value(str(path))}")


def message_turns_remark(num_messages: int, num_turns: int) -> str:
    """Sentence about turns at which the expert writes a message, for which any text is accepted."""
    return (
        f"{num_messages} of {num_turns} turns are messages: any text is accepted; judge them (message_judge in "
        "docs/verifiers.md), or leave them out with `verl-pivot profile --turns calls`."
    )


def launch_command(pivots: Path, num_train: int, profile: "ProfileSettings", verifier_modules: Sequence[str]) -> str:
    """The launch that trains on these pivots with the model and the lengths of their profile.

    Args:
        pivots: File of the training split.
        num_train: Number of pivots in it.
        profile: Settings of the profile that they were selected by.
        verifier_modules: Modules that register the user's own verifiers.
    """
    batch_size = min(LARGEST_BATCH, 1 << max(num_train, 1).bit_length() - 1)
    kwargs = {f"+data.apply_chat_template_kwargs.{key}": value for key, value in profile.chat_template_kwargs.items()}
    usual, chosen = Sampling(), profile.sampling
    sampling: JsonObject = {
        f"actor_rollout_ref.rollout.{name}": getattr(chosen, name)
        for name in ("temperature", "top_p", "top_k")
        if getattr(chosen, name) != getattr(usual, name)
    }
    longest = profile.max_prompt_tokens + chosen.max_new_tokens
    limit: JsonObject = {"actor_rollout_ref.actor.ppo_max_token_len_per_gpu": longest}
    overrides: JsonObject = {
        "data.train_files": str(pivots),
        "data.train_batch_size": batch_size,
        "data.max_prompt_length": profile.max_prompt_tokens,
        "data.max_response_length": profile.sampling.max_new_tokens,
        **kwargs,
        **sampling,
        **({"pivot.verifier_modules": list(verifier_modules)} if verifier_modules else {}),
        "actor_rollout_ref.model.path": model_for_verl(profile.model),
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
        **(limit if longest > TOKENS_PER_GPU else {}),
        "actor_rollout_ref.rollout.name": installed_engine() or ENGINES[0],
    }
    words = ["+method=pivotrl", *(f"{key}={override_value(value)}" for key, value in overrides.items())]
    return next_command(words, ("python", "-m", "verl.trainer.main_ppo"))
