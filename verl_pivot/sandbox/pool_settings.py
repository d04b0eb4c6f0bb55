"""Settings of a foreign pool, and what its protocol cannot do: VERL_PIVOT_SANDBOX_POOL -> PoolSettings."""

import os
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import yaml
from pydantic import Field

from verl_pivot.errors import ConfigError
from verl_pivot.sandbox.nodes import URLS_VARIABLE
from verl_pivot.validation import Options, validated

POOL_VARIABLE = "VERL_PIVOT_SANDBOX_POOL"
"""Environment variable: the settings of a foreign pool, as one line of YAML."""


class PoolProtocol(StrEnum):
    """Protocols of foreign pools."""

    SANDBOX_FUSION = "sandbox_fusion"
    CODE_JUDGE = "code_judge"


class Feature(StrEnum):
    """Feature that a pool may lack."""

    SESSIONS = "sessions"
    FILES = "files"


LACKS: Mapping[PoolProtocol, frozenset[Feature]] = {
    PoolProtocol.SANDBOX_FUSION: frozenset({Feature.SESSIONS}),
    PoolProtocol.CODE_JUDGE: frozenset(Feature),
}


class PoolSettings(Options):
    """A pool of sandboxes that speaks another protocol than ours.

    Example:
        PoolSettings(protocol="sandbox_fusion", urls=("http://node1:8080", "http://node2:8080"))
    """

    protocol: PoolProtocol
    urls: Annotated[tuple[Annotated[str, Field(pattern=r"^https?://[^\s/]")], ...], Field(min_length=1)]
    """Addresses of the pool's servers, without the path of the protocol."""
    queue_seconds: Annotated[float, Field(gt=0.0, le=3600.0)] = 60.0
    """Seconds that a request may take beyond the time limits of its program, for example in the pool's queue."""
    retries: Annotated[int, Field(ge=0, le=100)] = 4
    """Number of further attempts after a first attempt that failed through the pool's fault."""
    parallel: Annotated[int, Field(ge=1, le=65536)] = 64
    """Most requests at the same time to each of `urls`."""
    max_output_characters: Annotated[int, Field(ge=1)] | None = None
    """Characters to which code-judge cuts each output: MAX_STDOUT_ERROR_LENGTH of its servers. None means 1000.
    SandboxFusion does not use it."""

    @property
    def lacks(self) -> frozenset[Feature]:
        return LACKS[self.protocol]


def pool_of_environment() -> PoolSettings | None:
    """The pool that POOL_VARIABLE describes; None if it is not set.

    Raises:
        ConfigError: If the variable is no mapping of PoolSettings, or URLS_VARIABLE is set too.
    """
    text = os.environ.get(POOL_VARIABLE, "").strip()
    if not text:
        return None
    if os.environ.get(URLS_VARIABLE, "").strip():
        raise ConfigError(f"{POOL_VARIABLE} and {URLS_VARIABLE} are both set; unset the one that you do not use")
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{POOL_VARIABLE} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(
            f"{POOL_VARIABLE} must be a mapping such as '{{protocol: sandbox_fusion, urls: [http://node1:8080]}}', "
            f"got {text[:80]!r}"
        )
    return validated(PoolSettings, values, POOL_VARIABLE)
