"""NotebookSettings: the section `pivot.notebook` of the launch command, checked."""

from typing import Annotated, Literal, Self

from omegaconf import DictConfig, OmegaConf
from pydantic import Field, model_validator

from verl_pivot.errors import ConfigError
from verl_pivot.rewards.steps import StepRule
from verl_pivot.rollout.context import DEFAULT_CONTEXT_TOKENS, DEFAULT_STEP_TOKENS
from verl_pivot.validation import validated


class NotebookSettings(StepRule):
    """Keys of `pivot.notebook`, which configs/method/l0.yaml explains to users."""

    rows: Literal["context", "step"] = "context"
    """context: a row for each stretch of context, with all its steps. step: a row for each step, as released."""
    trim: Literal["hard", "oldest"] = "hard"
    """Parts of a full context that stay. hard: system prompt, task and Notepad. oldest: also the newest whole steps."""
    trim_keep: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """Share of `max_context_tokens` that a trim leaves at most; only with trim oldest."""
    max_context_tokens: Annotated[int, Field(ge=2)] = DEFAULT_CONTEXT_TOKENS
    """Tokens of a context, the step that is sampled included."""
    max_step_tokens: Annotated[int, Field(ge=1)] = DEFAULT_STEP_TOKENS
    """Tokens sampled in one step."""
    max_steps: Annotated[int, Field(ge=1)] = 10
    notepad: bool = True
    """Whether the notebook has a Notepad, whose notes survive a trim."""
    normalise: Literal["released", "paper"] = "released"
    """Number to which the advantage adds epsilon. released: the standard deviation. paper: the variance."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max_step_tokens >= self.max_context_tokens:
            raise ValueError(
                f"max_step_tokens={self.max_step_tokens} leaves no room for a task within max_context_tokens="
                f"{self.max_context_tokens}: lower the first, or raise the second"
            )
        return self


def parse_notebook_settings(config: DictConfig) -> NotebookSettings:
    """Read `pivot.notebook` from verl's whole config.

    Raises:
        ConfigError: If a key is wrong or missing; the message names it.
    """
    chosen = OmegaConf.select(config, "pivot.notebook")
    if chosen is None:
        raise ConfigError("there is no pivot.notebook: add +method=l0 to the command")
    return validated(NotebookSettings, OmegaConf.to_container(chosen, resolve=True), "pivot.notebook")


def check_notebook(config: DictConfig) -> None:
    """Check `pivot.notebook`, and that the engine accepts its steps and contexts.

    Raises:
        ConfigError: If a key is wrong, or a limit is higher than that of the engine; the message names both.
    """
    settings = parse_notebook_settings(config)
    response_length = int(config.data.max_response_length)
    if settings.max_step_tokens > response_length:
        raise ConfigError(
            f"pivot.notebook.max_step_tokens={settings.max_step_tokens} is more than data.max_response_length="
            f"{response_length}, at which the engine cuts a step off: lower the first, or raise the second"
        )
    longest = config.actor_rollout_ref.rollout.get("max_model_len")
    if longest is not None and settings.max_context_tokens > longest:
        raise ConfigError(
            f"pivot.notebook.max_context_tokens={settings.max_context_tokens} is more than the engine's context, "
            f"actor_rollout_ref.rollout.max_model_len={longest}: lower the first, or raise the second"
        )
