"""RolloutSettings: the section `pivot.rollout` of the launch command, checked."""

import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from omegaconf import DictConfig, OmegaConf
from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from verl_pivot.configuration import configs_dir
from verl_pivot.data.rollout_dumps import RecordedTexts
from verl_pivot.environments.server_address import ServerAddress
from verl_pivot.errors import ConfigError
from verl_pivot.rollout.limits import RolloutLimits
from verl_pivot.rollout.turn_parsers import TagPair
from verl_pivot.rollout.workflow_settings import WorkflowSettings
from verl_pivot.validation import Options, validated

_VERL = "verl/"
_OF_TOOLS = (
    "observation_role",
    "observation_template",
    "answer_tag",
    "format_tag",
    "retry_message",
    "parallel_calls",
    "max_observation_tokens",
    "max_calls_per_turn",
    "workflows",
)
"""Keys that only the loop with tools of a tools file reads."""


class CommandEnvironment(Options):
    """A foreign environment: a program that is started for each rollout, and drives the policy."""

    command: Annotated[tuple[str, ...], Field(min_length=1)]
    """Program and arguments."""
    max_processes: Annotated[int, Field(ge=1)] = 64
    """Most processes at once in one worker; further rollouts wait before they begin."""


class VerifiersEnvironment(Options):
    """An environment of verifiers, in one process of each worker."""

    verifiers: Annotated[str, Field(min_length=1)]
    """Name of the environment, or since verifiers 0.4 of the task set."""
    arguments: Mapping[str, Any] = {}
    """Arguments of its `load_environment`, or since verifiers 0.4 the keys of `[env]`."""
    python: str = sys.executable
    """Python in which verifiers and the environment are installed."""


class NemoGymAgent(Options):
    """An agent server of NeMo Gym that runs already, on the machine of the workers."""

    nemo_gym_agent: Annotated[str, Field(pattern=r"^https?://[^/]")]
    """Address of the agent server."""
    policy_port: Annotated[int, Field(ge=1, le=65535)] = 8790
    """Port of 127.0.0.1 at which NeMo Gym's own configuration finds the policy."""
    headers: Mapping[str, str] = {}
    """{HTTP header: name of the environment variable that holds its value}"""

    @property
    def address(self) -> ServerAddress:
        return ServerAddress(environment=self.nemo_gym_agent, headers=self.headers)


def _environment_kind(value: object) -> str:
    """Which of the environments a setting describes."""
    named = value if isinstance(value, Mapping) else type(value).model_fields if isinstance(value, Options) else ()
    return next((name for name in _DRIVERS if name in named), "command")


_DRIVERS = ("verifiers", "nemo_gym_agent")
"""Environments that have the short form NAME:VALUE."""
ForeignEnvironment: TypeAlias = Annotated[
    Annotated[CommandEnvironment, Tag("command")]
    | Annotated[VerifiersEnvironment, Tag("verifiers")]
    | Annotated[NemoGymAgent, Tag("nemo_gym_agent")],
    Discriminator(_environment_kind),
]
"""An environment that drives the policy."""


class RolloutSettings(Options):
    """Keys of `pivot.rollout`, which configs/method/tool_rollout.yaml explains to users."""

    tools: str
    """Path of the tools file."""
    environment: ForeignEnvironment | None = None
    """Environment that drives the policy through OpenAI's protocol and replaces the tools file; None: no such one."""
    parser: str = "hermes"
    """Format of the calls: hermes, tags, or one of verl's parsers as verl/<name>."""
    tags: tuple[TagPair, ...] = ()
    """Pairs of tags around the argument of a call; only with parser tags."""
    observation_role: Literal["tool", "user"] = "tool"
    observation_template: str = "{text}"
    """Text around each observation, which replaces {text}; all other braces stay as they are. With parser tags it goes
    into the same turn, otherwise into a message."""
    assistant_prefix: str = ""
    """Text that every turn of the policy begins with and that it does not sample (rStar2-Agent: "<reason>")."""
    answer_tag: str | None = None
    """Tag that a turn without a call must hold; with parser tags it also ends the turn."""
    format_tag: str | None = None
    """Tag whose pairs the rollout's record counts, for the format penalty of resampling on correct."""
    retry_message: str | None = None
    """Message that the policy reads after a turn with neither a call nor an answer."""
    parallel_calls: bool = False
    """Whether the calls of one turn run at once, but for those of an environment."""
    max_turns: Annotated[int, Field(ge=1)] = 10
    max_turn_tokens: Annotated[int, Field(ge=1)] | None = None
    max_observation_tokens: Annotated[int, Field(ge=16)] = 1024
    max_calls_per_turn: Annotated[int, Field(ge=1)] = 16
    max_wall_seconds: Annotated[float, Field(gt=0.0)] = 1800.0
    workflows: WorkflowSettings = WorkflowSettings()
    """Workflows of earlier successes in the system prompt."""

    @field_validator("environment", mode="before")
    @classmethod
    def _read_name(cls, value: object) -> object:
        """`verifiers:NAME` is short for `{verifiers: NAME}`, and so on."""
        if not isinstance(value, str):
            return value
        kind, colon, name = value.partition(":")
        if kind not in _DRIVERS or not colon:
            raise ValueError(
                "environment must be verifiers:NAME, nemo_gym_agent:URL or {command: [program, ...]}, got "
                + repr(value)
            )
        return {kind: name}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.parser not in ("hermes", "tags") and not self.parser.startswith(_VERL):
            raise ValueError(
                f"parser must be hermes, tags or verl/<name of one of verl's parsers>, got {self.parser!r}"
            )
        if (self.parser == "tags") != bool(self.tags):
            raise ValueError(
                f"parser=tags needs tags, and no other parser takes them, got parser={self.parser} with "
                f"{len(self.tags)} pairs of tags"
            )
        if self.observation_template.count("{text}") != 1:
            raise ValueError(
                "observation_template must hold {text} exactly once, got " + repr(self.observation_template)
            )
        if self.environment is not None:
            self._check_driven()
        if (self.retry_message is None) != (self.answer_tag is None):
            raise ValueError("retry_message and answer_tag go together: set both or neither")
        return self

    def _check_driven(self) -> None:
        """Raises ValueError for a key that has no effect with an environment that drives the policy."""
        fields = type(self).model_fields
        changed = [name for name in _OF_TOOLS if getattr(self, name) != fields[name].default]
        if Path(self.tools) != configs_dir() / "tools/python.yaml":  # the default of the method
            changed.insert(0, "tools")
        if changed:
            raise ValueError(f"{changed[0]} does nothing beside `environment`, which has its own tools; leave it out")
        if self.parser == "tags":
            raise ValueError("an environment reads calls in OpenAI's form, so it needs parser=hermes or verl/<name>")

    @property
    def verl_parser(self) -> str | None:
        """Name of the parser within verl; None if the parser is not one of verl's."""
        return self.parser.removeprefix(_VERL) if self.parser.startswith(_VERL) else None

    def limits(self, max_response_tokens: int) -> RolloutLimits:
        return RolloutLimits(
            max_response_tokens=max_response_tokens,
            max_turns=self.max_turns,
            max_turn_tokens=self.max_turn_tokens,
            retries_cut_turns=self.parser == "tags" and self.retry_message is not None,
            max_observation_tokens=self.max_observation_tokens,
            max_wall_seconds=self.max_wall_seconds,
        )


def parse_settings(config: DictConfig) -> RolloutSettings:
    """Read `pivot.rollout` from verl's whole config.

    Raises:
        ConfigError: If a key is wrong; the message names it.
    """
    chosen = OmegaConf.select(config, "pivot.rollout")
    if chosen is None:
        raise ConfigError("there is no pivot.rollout: add +method=tool_rollout to the command")
    return _parse(OmegaConf.to_yaml(chosen, resolve=True))


@lru_cache(maxsize=8)
def _parse(text: str) -> RolloutSettings:
    return validated(RolloutSettings, OmegaConf.to_container(OmegaConf.create(text)), "pivot.rollout")


def max_turn_tokens(config: DictConfig) -> int:
    """Most tokens that the agent loop of single turns samples: `pivot.max_turn_tokens`, or else the whole response.

    Args:
        config: verl's whole config.

    Raises:
        ConfigError: If the limit is no number, or does not fit into the response.
    """
    most = int(config.data.max_response_length)
    limit = OmegaConf.select(config, "pivot.max_turn_tokens")
    if limit is None:
        return most
    if not isinstance(limit, int) or not 1 <= limit <= most:
        raise ConfigError(
            f"pivot.max_turn_tokens must be a number of tokens from 1 to data.max_response_length={most}, got {limit}"
        )
    return limit


def recorded_texts(config: DictConfig) -> RecordedTexts:
    """Which rollouts have their texts in dumps: `pivot.record`, or else all.

    Args:
        config: verl's whole config.

    Raises:
        ConfigError: If the setting has an unknown value.
    """
    chosen = OmegaConf.select(config, "pivot.record", default=RecordedTexts.ALL.value)
    if chosen not in [each.value for each in RecordedTexts]:
        raise ConfigError(f"pivot.record must be one of {', '.join(RecordedTexts)}, got {chosen!r}")
    return RecordedTexts(chosen)


def is_dumped(config: DictConfig) -> bool:
    """Whether training or validation writes dumps, for which rollouts keep texts; a loop cannot tell the two apart."""
    return bool(config.trainer.rollout_data_dir or config.trainer.validation_data_dir)
