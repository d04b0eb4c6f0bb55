"""Tools file (YAML) -> its entries, and the options of three kinds of entries."""

from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, model_validator

from verl_pivot.errors import ConfigError
from verl_pivot.tools.contract import OnTimeout
from verl_pivot.validation import Options, place_of


class FunctionEntry(Options):
    """Entry `- function: package.module:name`, or `folder/file.py:name`: a Python function as a tool."""

    function: str
    name: str | None = None
    """Name of the tool; None: the name of the function."""
    description: str | None = None
    """Description for the policy; None: the first paragraph of the docstring."""
    timeout_seconds: Annotated[float, Field(gt=0.0)] = 60.0
    retries: Annotated[int, Field(ge=0, le=10)] = 0
    """Further attempts after a failure of the system, for functions that may safely run twice."""
    on_timeout: OnTimeout = OnTimeout.MASK

    @model_validator(mode="before")
    @classmethod
    def _refuse_old_key(cls, values: Any) -> Any:
        if "tells_timeouts" in values:
            raise ValueError(
                "the key tells_timeouts is named on_timeout: write `on_timeout: tell_policy` for True, and remove it "
                "for False"
            )
        return values


class EnvironmentEntry(Options):
    """Entry `- environment: package.module:Class`: an Environment, of which each rollout gets an instance."""

    environment: str
    timeout_seconds: Annotated[float, Field(gt=0.0)] = 60.0


class RowsEntry(Options):
    """Entry `- rows: replay` or `- rows: package.module:backend`: runs the calls of tools that only rows bring."""

    rows: str
    timeout_seconds: Annotated[float, Field(gt=0.0)] = 60.0


def read_entries(path: str) -> list[object]:
    """The entries of a tools file, not yet checked.

    Raises:
        ConfigError: If the file is missing, no YAML or no list.
    """
    try:
        entries = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise ConfigError(
            f"the tools file {path} cannot be read{place_of(Path(path))}: {error.strerror}; give its path, on a "
            "cluster an absolute path that exists on every node (pivot.rollout.tools in training)"
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(entries, list):
        raise ConfigError(f"{path} must be a list of tools, each beginning with `- `, got {type(entries).__name__}")
    return entries
