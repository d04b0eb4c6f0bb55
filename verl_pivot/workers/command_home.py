"""CommandHome: the folder, module path and variables of a command, which its workers in other processes take over."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

_PASSED_BEGINNINGS = ("VERL_PIVOT_", "HF_")
_PASSED_END = "_API_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandHome:
    """Working directory, module path and environment variables of a command."""

    folder: str
    python_path: tuple[str, ...]
    """`sys.path` of the command."""
    variables: Mapping[str, str]
    """Environment variables that workers take over."""

    @classmethod
    def of_this_process(cls) -> Self:
        return cls(folder=os.getcwd(), python_path=tuple(sys.path), variables=passed_variables(os.environ))

    def move_in(self) -> None:
        """Give this process, a worker of the command, the same working directory, variables and module path."""
        if os.path.isdir(self.folder):  # on a node without it, opening a relative path fails and names the path
            os.chdir(self.folder)
        os.environ.update(self.variables)
        sys.path += [folder for folder in self.python_path if folder not in sys.path]


def passed_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that workers take over: places of sandboxes and models, and API keys. Nodes keep their own others."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_PASSED_BEGINNINGS) or name.endswith(_PASSED_END)
    }
