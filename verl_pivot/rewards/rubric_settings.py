"""RubricSettings: the section `pivot.rubrics` of the launch command, checked."""

from functools import lru_cache
from typing import Annotated, ClassVar, Literal, Self

from omegaconf import DictConfig, OmegaConf
from pydantic import Field, model_validator

from verl_pivot.rewards.judge_settings import JudgeSettings
from verl_pivot.rewards.rubrics import Scale
from verl_pivot.validation import validated

_SECTION = "pivot.rubrics"


class RubricSettings(JudgeSettings):
    """Keys of `pivot.rubrics`, which configs/method/rubrics.yaml explains to users."""

    section: ClassVar[str] = _SECTION

    scale: Scale = "dr_tulu"
    asked: Literal["each", "together"] = "each"
    """each: one question for each criterion; together: one question for all criteria."""
    evolve: bool = True
    """Whether a model writes criteria for each query while the policy trains (RLER)."""
    max_active: Annotated[int, Field(ge=1, le=50)] = 5
    """Largest number of active evolved criteria for each query."""
    strictness: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=1)]] | None = None
    """First and last step of a loose-to-strict schedule; None for no schedule."""
    max_question_tokens: Annotated[int, Field(ge=256)] = 32768
    """Largest number of tokens in the texts of a question, counted by the policy's tokenizer; longer texts are cut."""
    wait_seconds: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 3600.0
    """Seconds within which all rollouts of a prompt must end, counted from the end of the first one."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.check_is_named()
        if self.scale == "overall" and self.evolve:
            raise ValueError(
                "evolve needs points for each criterion, which scale overall does not give: set evolve=False, or "
                "scale=dr_tulu"
            )
        if self.scale == "binary" and self.evolve:
            raise ValueError(
                "evolve adds criteria of weight -1, with which the sum of all weights, by which scale binary divides, "
                "may be 0 or below: set evolve=False, or scale=dr_tulu"
            )
        if self.strictness is not None and self.scale != "dr_tulu":
            raise ValueError(
                f"strictness does nothing with scale {self.scale}, which has no partial points: set scale=dr_tulu"
            )
        if self.strictness is not None and self.strictness[0] >= self.strictness[1]:
            raise ValueError(f"strictness must be the first step and a later last step, got {list(self.strictness)}")
        return self


def parse_rubrics(config: DictConfig) -> RubricSettings:
    """Read `pivot.rubrics` from verl's whole config.

    Raises:
        ConfigError: If a key is wrong; the message names it.
    """
    return _parse(OmegaConf.to_yaml(config.pivot.rubrics, resolve=True))


@lru_cache(maxsize=8)
def _parse(text: str) -> RubricSettings:
    return validated(RubricSettings, OmegaConf.to_container(OmegaConf.create(text)), _SECTION)
