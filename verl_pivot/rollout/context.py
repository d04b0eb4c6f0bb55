"""Context watcher: tokens of a context -> whether the next step fits, and how many old steps a trim keeps."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from verl_pivot.errors import ConfigError

DEFAULT_STEP_TOKENS = 3072
"""Tokens of one step in L0's released scripts (arXiv:2506.23667)."""
DEFAULT_CONTEXT_TOKENS = 16384 + DEFAULT_STEP_TOKENS
"""Tokens of the longest prompt in these scripts, and of one step after it."""


class Trim(StrEnum):
    """Rule for what stays in a full context, besides the system prompt, the task and the Notepad."""

    HARD = "hard"
    """No step stays, as in L0's released code (arXiv:2506.23667)."""
    OLDEST = "oldest"
    """The newest steps stay, each one whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextWindow:
    """Limits of a context, which grows by one step of the policy at a time.

    Example:
        ContextWindow(max_tokens=16384, max_step_tokens=3072, trim=Trim.OLDEST, trim_keep=0.5)

    Raises:
        ConfigError: If no step fits.
    """

    max_tokens: int
    """Tokens of a context, the step that the policy is sampling included."""
    max_step_tokens: int
    """Tokens that the policy may sample in one step."""
    trim: Trim = Trim.HARD
    trim_keep: float = 0.5
    """Share of `max_tokens` that a trim of the oldest steps leaves at most."""

    def __post_init__(self) -> None:
        if self.max_step_tokens >= self.max_tokens:
            raise ConfigError(
                f"pivot.notebook.max_step_tokens={self.max_step_tokens} leaves no room for a task within "
                f"pivot.notebook.max_context_tokens={self.max_tokens}: lower the first, or raise the second"
            )

    def room(self, num_tokens: int) -> int:
        """Tokens by which a context of `num_tokens` may grow before a step no longer fits; negative if none fits."""
        return self.max_tokens - self.max_step_tokens - num_tokens

    def num_kept_steps(self, step_tokens: Sequence[int], num_first_tokens: int) -> int:
        """Number of the newest steps that a trim keeps.

        Args:
            step_tokens: [num_steps] tokens of each step in the context and of what the policy read after it.
            num_first_tokens: Tokens before all steps, once the context is trimmed.
        """
        if self.trim is Trim.HARD:
            return 0
        left = min(int(self.trim_keep * self.max_tokens) - num_first_tokens, self.room(num_first_tokens))
        num_kept = 0
        for num_tokens in reversed(step_tokens):
            left -= num_tokens
            if left < 0:
                break
            num_kept += 1
        return num_kept
