"""ProcessSettings: the section `pivot.process` of the launch command, checked."""

import os
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Self

import yaml
from omegaconf import DictConfig, OmegaConf
from pydantic import Field, TypeAdapter, ValidationError, model_validator

from verl_pivot.engines.chat import AnswerFormat
from verl_pivot.errors import ConfigError
from verl_pivot.rewards.principles import Form, Principle, PrincipleSet
from verl_pivot.rewards.process import ProcessRule
from verl_pivot.validation import first_problem, validated

_SECTION = "pivot.process"
_PRINCIPLES: TypeAdapter[tuple[Principle, ...]] = TypeAdapter(tuple[Principle, ...])


class ProcessSettings(ProcessRule):
    """Keys of `pivot.process`, which configs/method/ppr.yaml explains to users."""

    base_url: str | tuple[str, ...] | None = None
    """URL of an OpenAI-compatible endpoint, such as http://judge:30000/v1, or of several of the same model."""
    model: str | None = None
    api_key_variable: str | None = None
    """Name of the environment variable that holds the endpoint's key; None for an endpoint that needs none."""
    form: Form = "principles"
    principles: str
    """Path of a YAML file with the principles."""
    max_added_principles: Annotated[int, Field(ge=0, le=10)] = 2
    answer_format: AnswerFormat = "json_schema"
    max_tokens: Annotated[int, Field(ge=16)] = 4096
    """Tokens of the judge's longest answer."""
    max_question_tokens: Annotated[int, Field(ge=256)] = 16384
    """Tokens of the texts of a question, counted by the policy's tokenizer."""
    temperature: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0
    invalid_retries: Annotated[int, Field(ge=0, le=10)] = 1
    """Number of times that a question is asked again after an invalid answer."""
    max_concurrency: Annotated[int, Field(ge=1)] = 256
    """Most questions at a time, of all reward workers together."""
    timeout_seconds: Annotated[float, Field(gt=0.0)] = 300.0
    max_retries: Annotated[int, Field(ge=0, le=20)] = 8
    """Number of times that a request is sent again after a refusal for load, a time-out or a failure of the server."""
    cache_dir: str | None = None
    """Folder of the answers, which a resumed run finds there; None keeps none."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("base_url", "model") if self.mode != "outcome" else ():
            if not getattr(self, name):
                raise ValueError(
                    f"{_SECTION}.{name} is missing: set it to that of the judge, an OpenAI-compatible endpoint, or set "
                    f"{_SECTION}.mode=outcome, which asks none"
                )
        return self

    @property
    def urls(self) -> tuple[str, ...]:
        if self.base_url is None:
            return ()
        return (self.base_url,) if isinstance(self.base_url, str) else self.base_url

    @property
    def api_key(self) -> str:
        """Key of the endpoint.

        Raises:
            ConfigError: If its variable is not set in the environment of this process.
        """
        if self.api_key_variable is None:
            return "none"
        if key := os.environ.get(self.api_key_variable):
            return key
        raise ConfigError(
            f"{_SECTION}.api_key_variable={self.api_key_variable}: the environment has no such variable; set it on "
            f"every node to the key of the judge, or leave {_SECTION}.api_key_variable out if the judge needs no key"
        )

    def principle_set(self) -> PrincipleSet:
        """The principles of the file.

        Raises:
            ConfigError: If the file cannot be read, or holds something else.
        """
        return principle_set_of(self.form, Path(self.principles), self.max_added_principles)


def parse_process(config: DictConfig) -> ProcessSettings:
    """Read `pivot.process` from verl's whole config.

    Raises:
        ConfigError: If a key is wrong; the message names it.
    """
    return _parse(OmegaConf.to_yaml(config.pivot.process, resolve=True))


@lru_cache(maxsize=8)
def _parse(text: str) -> ProcessSettings:
    return validated(ProcessSettings, OmegaConf.to_container(OmegaConf.create(text)), _SECTION)


def principle_set_of(form: Form, path: Path, max_added: int, option: str = f"{_SECTION}.principles") -> PrincipleSet:
    """What a judge goes by and how it answers; in the form `released` it adds no principles.

    Raises:
        ConfigError: If the file of principles cannot be read, or holds something else.
    """
    principles = read_principles(path, option)
    return PrincipleSet(form=form, principles=principles, max_added=max_added if form == "principles" else 0)


def read_principles(path: Path, option: str = f"{_SECTION}.principles") -> tuple[Principle, ...]:
    """Principles of a YAML file, a list of `name` and `text`.

    Args:
        path: The file.
        option: How users write the setting, for messages.

    Raises:
        ConfigError: If the file cannot be read or holds something else; the message names it.
    """
    try:
        principles = _PRINCIPLES.validate_python(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{option}: {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option}: {path} is no YAML: {error}") from error
    except ValidationError as error:
        raise ConfigError(
            f"{option}: {path}: {first_problem(error)}; it is a list of principles with name and text"
        ) from error
    names = [each.name for each in principles]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"{option}: {path} needs one or more principles, each with a name of its own")
    return principles
