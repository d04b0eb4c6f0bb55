"""Sizes of a profile and of a training -> GPU hours, with all their assumptions in words."""

from dataclasses import dataclass
from typing import NamedTuple

_PEAK_FLOPS = 989e12
"""Dense bfloat16 operations per second of one H100 (SXM), by NVIDIA's data sheet."""
_PREFILL_UTILIZATION = 0.4
_TRAINING_UTILIZATION = 0.35
_DECODED_PER_BILLION = 45_000.0
_MOST_DECODED = 20_000.0
"""Maximum number of tokens per second that one engine decodes: for a small model, its scheduler is the limit."""
_FORWARD_FLOPS = 2.0
"""Operations per parameter and token of a forward pass."""
_UPDATE_FLOPS = 12.0
"""Operations per parameter and token of an update: backward 4, two forward passes 4, two log-prob passes 4."""
_SECONDS = 3600.0
_MEMORY_PER_GPU = 40.0
"""GB of weights that one GPU of 80 GB serves beside its KV cache."""


class GpuHours(NamedTuple):
    """An estimate with its assumption."""

    gpu_hours: float | None
    """None if the model's size is not known and no speed was given."""
    assumption: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpeed:
    """Speed at which the policy is sampled on one GPU."""

    decoded_per_second: float
    """Sampled tokens per second; a measured speed includes the time for their prompts."""
    prompt_tokens_per_second: float | None
    """None if `decoded_per_second` already includes the time for prompts."""
    source: str
    """Where the numbers come from, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSize:
    """Work that remains to complete a profile."""

    num_turns: int
    """Turns that fit and have no samples yet."""
    num_samples: int
    """Samples of each turn, K."""
    tokens_per_sample: float
    prompt_tokens_per_turn: float
    """Prompt tokens that an engine with a prefix cache computes: of a trajectory only its longest prompt counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSize:
    """Work of one training."""

    num_steps: int
    batch_size: int
    group_size: int
    """Rollouts of each pivot."""
    prompt_tokens: float
    """Mean tokens of a prompt."""
    tokens_per_sample: float

    @property
    def num_rollouts(self) -> int:
        return self.num_steps * self.batch_size * self.group_size


def given_speed(tokens_per_second: float, num_gpus: int, source: str) -> EngineSpeed:
    """Speed of one GPU if all GPUs together sample `tokens_per_second`."""
    return EngineSpeed(decoded_per_second=tokens_per_second / num_gpus, prompt_tokens_per_second=None, source=source)


def tabulated_speed(billions: float) -> EngineSpeed:
    """Speed of one H100 for a model with this number of active parameters, in billions."""
    decoded = min(_MOST_DECODED, _DECODED_PER_BILLION / billions)
    prefilled = _PREFILL_UTILIZATION * _PEAK_FLOPS / (_FORWARD_FLOPS * billions * 1e9)
    source = (
        f"one H100 decodes {decoded:,.0f} tokens/s (45,000 / billions of active parameters, at most 20,000) and reads "
        f"{prefilled:,.0f} prompt tokens/s (40 % of 989 TFLOPS, 2 operations per parameter and token)"
    )
    return EngineSpeed(decoded_per_second=decoded, prompt_tokens_per_second=prefilled, source=source)


def profile_hours(size: ProfileSize, speed: EngineSpeed | None) -> GpuHours:
    """GPU hours that remain to complete a profile."""
    tokens = size.num_turns * size.num_samples * size.tokens_per_sample
    work = (
        f"{size.num_turns:,} turns left x {size.num_samples} samples x {size.tokens_per_sample:.0f} tokens as in the "
        f"trial = {tokens:,.0f} tokens"
    )
    if speed is None:
        return GpuHours(None, f"{work}; {_NO_SPEED}")
    return GpuHours(_sampling_hours(tokens, size.num_turns * size.prompt_tokens_per_turn, speed), work)


def training_hours(size: TrainingSize, speed: EngineSpeed | None, billions: float | None) -> GpuHours:
    """GPU hours of a training: its rollouts at the engine's speed, and its updates by their operations."""
    work = (
        f"{size.num_steps:,} steps x {size.batch_size} pivots x {size.group_size} rollouts, each of "
        f"{size.prompt_tokens:,.0f} + {size.tokens_per_sample:.0f} tokens"
    )
    if speed is None or billions is None:
        return GpuHours(None, f"{work}; {_NO_SIZE}")
    prompts = size.num_steps * size.batch_size * size.prompt_tokens
    rollouts = _sampling_hours(size.num_rollouts * size.tokens_per_sample, prompts, speed)
    tokens = size.num_rollouts * (size.prompt_tokens + size.tokens_per_sample)
    updates = tokens * _UPDATE_FLOPS * billions * 1e9 / (_TRAINING_UTILIZATION * _PEAK_FLOPS) / _SECONDS
    return GpuHours(
        rollouts + updates,
        f"{work}: {rollouts:,.2f} h of rollouts, each prompt read once for its group, and {updates:,.2f} h of updates "
        "(12 operations per parameter and token at 35 % of 989 TFLOPS); without waiting, validation and checkpoints",
    )


def tensor_parallel_size(total_billions: float | None, num_gpus: int) -> int:
    """GPUs over which an engine splits the weights: the smallest power of 2 at which they fit, within `num_gpus`."""
    gigabytes, size = 2.0 * (total_billions or 0.0), 1
    while size * 2 <= num_gpus and gigabytes / size > _MEMORY_PER_GPU:
        size *= 2
    return size


_NO_SIZE = "no estimate, since the number of the model's parameters is not known"
_NO_SPEED = f"{_NO_SIZE}: give --tokens-per-second"


def _sampling_hours(tokens: float, prompt_tokens: float, speed: EngineSpeed) -> float:
    reading = prompt_tokens / speed.prompt_tokens_per_second if speed.prompt_tokens_per_second else 0.0
    return (tokens / speed.decoded_per_second + reading) / _SECONDS
