"""Address of an environment's server: headers of requests, and the JSON with which it answers at the launch."""

import os
from collections.abc import Mapping
from typing import Annotated

import httpx
from pydantic import Field

from verl_pivot.data.json_values import BadRowError, as_object, decode_json
from verl_pivot.errors import ConfigError
from verl_pivot.types import JsonObject
from verl_pivot.validation import Options

_LAUNCH_SECONDS = 30.0


class ServerAddress(Options):
    """Options of environments that a server runs: how the server is reached."""

    environment: Annotated[str, Field(pattern=r"^https?://[^/]")]
    """Address of the server."""
    headers: Mapping[str, str] = {}
    """{HTTP header: name of the environment variable that holds its value}."""

    @property
    def url(self) -> str:
        """The address without a slash at its end."""
        return self.environment.rstrip("/")

    def header_values(self) -> dict[str, str]:
        """{HTTP header: its value}

        Raises:
            ConfigError: If an environment variable is not set.
        """
        for name in self.headers.values():
            if name not in os.environ:
                raise ConfigError(f"the environment variable {name} is not set; set it before the launch")
        return {header: os.environ[name] for header, name in self.headers.items()}

    def get(self, path: str) -> JsonObject:
        """The JSON object that the server answers to a GET request.

        Args:
            path: Path on the server, with its slash.

        Raises:
            ConfigError: If there is no such answer.
        """
        url = f"{self.url}{path}"
        try:
            answer = httpx.get(url, headers=self.header_values(), timeout=_LAUNCH_SECONDS)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ConfigError(f"{url} cannot be reached: {error or type(error).__name__}; start the server") from error
        if answer.status_code != httpx.codes.OK:
            raise ConfigError(f"{url} answered with status {answer.status_code}: {answer.text[:200]!r}")
        try:
            return as_object(decode_json(answer.text), "the answer")
        except BadRowError as error:
            raise ConfigError(f"{url} did not answer with a JSON object: {error}") from error
