"""JudgeSettings: the section of the launch command about a judge behind an OpenAI-compatible endpoint, checked."""

import os
from pathlib import Path
from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from pydantic import Field

from verl_pivot.engines.chat import AnswerFormat
from verl_pivot.errors import ConfigError
from verl_pivot.validation import Options


class JudgeSettings(Options):
    """The judge that a section names, and how it is asked."""

    section: ClassVar[str]
    """Name of the section, such as "pivot.process"."""

    base_url: str | tuple[str, ...] | None = None
    """URL of an OpenAI-compatible endpoint, such as http://judge:30000/v1, or URLs of several with the same model."""
    model: str | None = None
    api_key_variable: str | None = None
    """Name of the environment variable that holds the endpoint's key; None for an endpoint that needs none."""
    answer_format: AnswerFormat = "json_schema"
    max_tokens: Annotated[int, Field(ge=16)] = 4096
    """Largest number of tokens in an answer of the judge."""
    max_question_tokens: Annotated[int, Field(ge=256)] = 16384
    """Largest number of tokens in the texts of a question, counted by the policy's tokenizer; longer texts are cut."""
    temperature: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0
    invalid_retries: Annotated[int, Field(ge=0, le=10)] = 1
    """Number of times that a question is asked again after an invalid answer."""
    max_concurrency: Annotated[int, Field(ge=1)] = 256
    """Largest number of questions at a time, over all workers together."""
    timeout_seconds: Annotated[float, Field(gt=0.0)] = 300.0
    max_retries: Annotated[int, Field(ge=0, le=20)] = 8
    """Number of times that a request is sent again after a refusal for load, a time-out or a failure of the server."""
    cache_dir: str | None = None
    """Folder that keeps the answers, so that a resumed run can reuse them; None keeps no answers."""

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
            f"{self.section}.api_key_variable={self.api_key_variable}: the environment has no such variable; set it on "
            f"every node to the key of the judge, or leave {self.section}.api_key_variable out if the judge needs no "
            "key"
        )

    def check_is_named(self, otherwise: str = "") -> None:
        """Refuse a section without the judge's endpoint or model; `otherwise` is what a user could do instead.

        Raises:
            ValueError: If one of them is missing; the message names the key.
        """
        for name in ("base_url", "model"):
            if not getattr(self, name):
                raise ValueError(
                    f"{self.section}.{name} is missing: set it to the value for the judge's OpenAI-compatible endpoint"
                    f"{otherwise}"
                )

    def check_for_launch(self) -> None:
        """Refuse settings with which the judge cannot be asked from this process.

        Raises:
            ConfigError: If a setting is wrong; the message names the key and the remedy.
        """
        for url in self.urls:
            if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
                raise ConfigError(f"{self.section}.base_url={url}: give it as http://host:port/v1")
        self.api_key  # noqa: B018  raises where its variable is not set
        if self.cache_dir is not None and Path(self.cache_dir).is_file():
            raise ConfigError(f"{self.section}.cache_dir={self.cache_dir} is a file: name a folder, or null")
