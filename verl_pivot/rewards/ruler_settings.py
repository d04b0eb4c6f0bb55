"""RulerSettings: the section `pivot.ruler` of the launch command, checked."""

from functools import lru_cache
from typing import Annotated, ClassVar, Self

from omegaconf import DictConfig, OmegaConf
from pydantic import Field, model_validator

from verl_pivot.rewards.judge_settings import JudgeSettings
from verl_pivot.validation import validated

_SECTION = "pivot.ruler"


class RulerSettings(JudgeSettings):
    """Keys of `pivot.ruler`, which configs/method/mcp_rl.yaml explains to users."""

    section: ClassVar[str] = _SECTION

    rubric: Annotated[str, Field(min_length=1)] | None = None
    """Rubric by which the judge compares trajectories; None takes `ruler.RUBRIC`."""
    max_question_tokens: Annotated[int, Field(ge=256)] = 65536
    """Largest number of tokens in the texts of a question, counted by the policy's tokenizer; longer texts are cut."""
    wait_seconds: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 3600.0
    """Seconds within which all rollouts of a prompt must end, counted from the end of the first one."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.check_is_named()
        return self


def parse_ruler(config: DictConfig) -> RulerSettings:
    """Read `pivot.ruler` from verl's whole config.

    Raises:
        ConfigError: If a key is wrong; the message names it.
    """
    return _parse(OmegaConf.to_yaml(config.pivot.ruler, resolve=True))


@lru_cache(maxsize=8)
def _parse(text: str) -> RulerSettings:
    return validated(RulerSettings, OmegaConf.to_container(OmegaConf.create(text)), _SECTION)
