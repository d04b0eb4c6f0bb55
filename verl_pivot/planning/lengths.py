"""Tokens of prompts and actions -> Lengths: how long prompts and answers may be in profile and training."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_KEPT_SHARE = 0.99
"""Minimum share of the measured prompts that fit a chosen limit, if the model's context allows it."""
_PROMPT_STEP = 256
_ANSWER_STEP = 64
_LEAST_ANSWER = 256
"""Smallest limit on new tokens that is chosen: policies write more than experts, who may make short calls only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTurns:
    """Lengths of the turns of some trajectories, in tokens of the policy's tokenizer."""

    prompts: tuple[int, ...]
    """[num_turns] tokens of each rendered state."""
    experts: tuple[int, ...]
    """[num_turns] approximate tokens of each action of the expert, without markup of the chat template."""
    longest_prompts: tuple[int, ...]
    """[num_trajectories] tokens of each trajectory's longest state, which holds all others of its turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Limits that profile, select and training share, and the shares of the measured turns that fit."""

    max_prompt_tokens: int
    max_new_tokens: int
    prompt_share: float
    """Share of the measured prompts that fit."""
    expert_share: float
    """Share of the experts' actions that fit."""
    longest_prompt: int
    shortest_prompt: int
    prompt_for_95_percent: int
    """Limit that would let 95 % of the measured prompts through."""
    context_tokens: int | None
    """Maximum tokens of prompt and answer together that the model takes; None if its config does not say."""

    @property
    def fill_context(self) -> bool:
        """Whether the model's context leaves no room for longer prompts."""
        return self.context_tokens is not None and self.max_prompt_tokens + self.max_new_tokens >= self.context_tokens

    @property
    def exceed_context(self) -> bool:
        return self.context_tokens is not None and self.max_prompt_tokens + self.max_new_tokens > self.context_tokens


def choose_lengths(
    measured: MeasuredTurns,
    *,
    context_tokens: int | None,
    max_prompt_tokens: int | None = None,
    max_new_tokens: int | None = None,
) -> Lengths:
    """Limits for these turns; limits that are given stay as they are.

    The limit on new tokens is twice the length that holds 99 % of the experts' actions, at least 256, and at most half
    of the context. The limit on prompts holds 99 % of them, or all if the longest is at most 1.5 times as long. It
    leaves room for the answer.
    """
    if max_new_tokens is None:
        wanted = max(_LEAST_ANSWER, 2 * quantile(measured.experts, _KEPT_SHARE))
        max_new_tokens = _rounded_up(wanted, _ANSWER_STEP)
        if context_tokens is not None:
            max_new_tokens = max(1, min(max_new_tokens, context_tokens // 2))
    if max_prompt_tokens is None:
        most, longest = quantile(measured.prompts, _KEPT_SHARE), max(measured.prompts)
        max_prompt_tokens = _rounded_up(longest if longest <= 1.5 * most else most, _PROMPT_STEP)
        if context_tokens is not None:
            max_prompt_tokens = max(1, min(max_prompt_tokens, context_tokens - max_new_tokens))
    return Lengths(
        max_prompt_tokens=max_prompt_tokens,
        max_new_tokens=max_new_tokens,
        prompt_share=_share(measured.prompts, max_prompt_tokens),
        expert_share=_share(measured.experts, max_new_tokens),
        longest_prompt=max(measured.prompts),
        shortest_prompt=min(measured.prompts),
        prompt_for_95_percent=_rounded_up(quantile(measured.prompts, 0.95), _PROMPT_STEP),
        context_tokens=context_tokens,
    )


def quantile(values: Sequence[int], share: float) -> int:
    """The smallest of the values that at least this share of them does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def _share(values: Sequence[int], limit: int) -> float:
    return sum(value <= limit for value in values) / len(values)


def _rounded_up(value: int, step: int) -> int:
    return -(-value // step) * step
