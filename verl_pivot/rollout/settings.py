"""`pivot.rollout` of the launch command, checked: what the tool loop does with a trajectory."""

from functools import lru_cache
from typing import Annotated, Literal, Self

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, Field, model_validator

from verl_pivot.errors import ConfigError
from verl_pivot.rollout.limits import RolloutLimits
from verl_pivot.rollout.turn_parsers import TagPair
from verl_pivot.validation import validated

_VERL = "verl/"


class RolloutSettings(BaseModel):
    """Keys of `pivot.rollout`; see configs/method/tool_rollout.yaml for what they mean to a user."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tools: str
    """A tools file."""
    parser: str = "hermes"
    """hermes, tags, or one of verl's own: verl/<name>."""
    tags: tuple[TagPair, ...] = ()
    """With parser tags."""
    observation_role: Literal["tool", "user"] = "tool"
    observation_template: str = "{text}"
    """Around what one call gave back. With parser tags it stands in the same turn, else in a message."""
    assistant_prefix: str = ""
    """Begins every turn of the policy, unsampled (rStar2-Agent: "<reason>")."""
    answer_tag: str | None = None
    """A turn that calls nothing must hold it; with parser tags it ends the turn."""
    format_tag: str | None = None
    """Tag whose pairs the rollout's record counts, for the format penalty of resampling on correct."""
    retry_message: str | None = None
    """What the policy reads after a turn with neither call nor answer."""
    parallel_calls: bool = False
    """Whether the calls of one turn run at once."""
    max_turns: Annotated[int, Field(ge=1)] = 10
    max_turn_tokens: Annotated[int, Field(ge=1)] | None = None
    max_observation_tokens: Annotated[int, Field(ge=16)] = 1024
    max_calls_per_turn: Annotated[int, Field(ge=1)] = 16
    max_wall_seconds: Annotated[float, Field(gt=0.0)] = 1800.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.parser not in ("hermes", "tags") and not self.parser.startswith(_VERL):
            raise ValueError(f"parser must be hermes, tags or verl/<name of verl's>, got {self.parser!r}")
        if (self.parser == "tags") != bool(self.tags):
            raise ValueError("parser=tags needs tags, and no other parser has them")
        if self.observation_template.count("{text}") != 1:
            raise ValueError("observation_template must hold {text} once")
        if (self.retry_message is None) != (self.answer_tag is None):
            raise ValueError("retry_message and answer_tag go together")
        return self

    @property
    def verl_parser(self) -> str | None:
        """Name of verl's parser, where it is one of those."""
        return self.parser.removeprefix(_VERL) if self.parser.startswith(_VERL) else None

    def limits(self, max_response_tokens: int) -> RolloutLimits:
        return RolloutLimits(
            max_response_tokens=max_response_tokens,
            max_turns=self.max_turns,
            max_turn_tokens=self.max_turn_tokens,
            max_observation_tokens=self.max_observation_tokens,
            max_wall_seconds=self.max_wall_seconds,
        )


def parse_settings(config: DictConfig) -> RolloutSettings:
    """The settings in verl's whole config.

    Raises:
        ConfigError: Naming the key.
    """
    chosen = OmegaConf.select(config, "pivot.rollout")
    if chosen is None:
        raise ConfigError("there is no pivot.rollout: add +method=tool_rollout to the command")
    return _parse(OmegaConf.to_yaml(chosen, resolve=True))


@lru_cache(maxsize=8)
def _parse(text: str) -> RolloutSettings:
    return validated(RolloutSettings, OmegaConf.to_container(OmegaConf.create(text)), "pivot.rollout")
