"""The contract of an inference engine: prompt token ids -> sampled Completions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from verl_pivot.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters of one turn. The defaults sample from the model's own distribution, as training requires."""

    temperature: float = 1.0
    """Sampling temperature; 0 is greedy."""
    top_p: float = 1.0
    top_k: int = -1
    """Number of most probable tokens to sample from at each step; -1 is all."""
    max_new_tokens: int = 2048
    seed: int = 0
    """Sample k of a request uses seed + k. SGLang heeds seeds only with --enable-deterministic-inference."""

    def __post_init__(self) -> None:
        if self.temperature < 0.0:
            raise ConfigError(f"--temperature must be at least 0, got {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigError(f"--top-p must lie in (0, 1], got {self.top_p}")
        if self.top_k != -1 and self.top_k < 1:
            raise ConfigError(f"--top-k must be -1 (off) or at least 1, got {self.top_k}")
        if self.max_new_tokens < 1:
            raise ConfigError(f"--max-new-tokens must be at least 1, got {self.max_new_tokens}")

    def seed_of(self, k: int) -> int:
        """Seed of sample k of a request."""
        return (self.seed + k) % 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled turn, as the server returned it."""

    token_ids: tuple[int, ...]
    """[num_tokens] token ids, or empty if the server returns text only."""
    text: str
    """Text as the server decoded it."""
    ended: bool
    """Whether the turn ended by itself; False if it was cut off at max_new_tokens."""
    num_tokens: int
    """Number of sampled tokens."""
    num_cached_tokens: int = 0
    """Prompt tokens that the server found in its prefix cache."""


class ActionText(NamedTuple):
    """One sampled turn, decoded from its token ids as training decodes it."""

    text: str
    """Text without the end-of-turn token; other special tokens are kept."""
    ended: bool
    """Whether the policy ended its turn by itself, with an end-of-turn token."""


class Engine(Protocol):
    """An inference server that serves the policy."""

    @property
    def url(self) -> str: ...

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, n: int) -> tuple[Completion, ...]:
        """Draw [n] independent samples of the same prompt.

        Raises:
            EngineError: If the server cannot be reached, keeps failing, or answers something that is no completion.
            ConfigError: If the server refuses the request itself, as another server would too.
        """
        ...

    async def close(self) -> None: ...
