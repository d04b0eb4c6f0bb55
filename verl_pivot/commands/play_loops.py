"""Options of `verl-pivot play` that depend on the loop: calls of tools, or a notebook."""

from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from verl_pivot.errors import ConfigError
from verl_pivot.rollout.context import DEFAULT_CONTEXT_TOKENS, DEFAULT_STEP_TOKENS

if TYPE_CHECKING:
    from verl_pivot.playing.notebook_play import NotebookRules

DEFAULT_RESPONSE_TOKENS = 8192


class PlayLoop(StrEnum):
    """How the model acts."""

    TOOLS = "tools"
    """Calls of tools, which are answered turn by turn."""
    NOTEBOOK = "notebook"
    """Steps of thought and Python in a notebook, in which the tools are functions."""


def check_options(loop: PlayLoop, *, of_tools: dict[str, bool], of_notebook: dict[str, bool]) -> None:
    """Refuse options of the other loop, which would do nothing.

    Args:
        loop: The loop.
        of_tools: {option of conversations with calls of tools: whether it was given}.
        of_notebook: {option of conversations in a notebook: whether it was given}.

    Raises:
        ConfigError: If an option of the other loop was given.
    """
    foreign = of_tools if loop is PlayLoop.NOTEBOOK else of_notebook
    for option, is_given in foreign.items():
        if is_given:
            other = PlayLoop.TOOLS if loop is PlayLoop.NOTEBOOK else PlayLoop.NOTEBOOK
            raise ConfigError(f"{option} does nothing with --loop {loop}: leave it out, or use --loop {other}")


def notebook_rules(
    *,
    max_steps: int,
    max_step_tokens: int | None,
    max_context_tokens: int | None,
    trim: Literal["hard", "oldest"] | None,
    max_observation_tokens: int,
    max_wall_seconds: float,
    max_calls: int,
    has_notepad: bool,
) -> "NotebookRules":
    """Limits of conversations in a notebook; raises ConfigError if no step fits into a context."""
    from verl_pivot.playing.notebook_play import NotebookRules
    from verl_pivot.rollout.context import ContextWindow, Trim

    return NotebookRules(
        window=ContextWindow(
            max_tokens=max_context_tokens or DEFAULT_CONTEXT_TOKENS,
            max_step_tokens=max_step_tokens or DEFAULT_STEP_TOKENS,
            trim=Trim(trim or "hard"),
        ),
        max_steps=max_steps,
        max_observation_tokens=max_observation_tokens,
        max_wall_seconds=max_wall_seconds,
        max_calls=max_calls,
        has_notepad=has_notepad,
    )
