"""Reward function of a launch -> nothing, or one sentence if it is missing, or about what the machine lacks for it."""

import ast
from collections.abc import Iterator
from pathlib import Path

from verl_pivot.errors import ConfigError
from verl_pivot.extras import require
from verl_pivot.launch_checks.sandbox_pool import check_pool

_OF_MATH = "pkg://verl_pivot.rewards.math_rewards"
_KEY = "reward.custom_reward_function"


def check_reward_function(path: str | None) -> None:
    """Refuse the rewards for mathematics if something that the verifier `math` needs is missing.

    Args:
        path: `reward.custom_reward_function.path`.

    Raises:
        ConfigError: If its extra is not installed, or the pool of sandboxes cannot serve it.
    """
    if path == _OF_MATH:
        require("math_verify", "math")
        check_pool(verifiers=[("math", "{}")])


def check_function_file(path: str | None, name: str) -> None:
    """Refuse a reward function that its file does not have; the file is read and not run.

    Args:
        path: `reward.custom_reward_function.path`.
        name: `reward.custom_reward_function.name`.

    Raises:
        ConfigError: Naming the file.
    """
    if not path or path.startswith("pkg://"):
        return
    file = Path(path.removeprefix("file://"))
    if not file.is_file():
        place = "" if file.is_absolute() else f" in {Path.cwd()}"
        raise ConfigError(f"{_KEY}.path={path}: there is no file {file}{place}; name the file of the reward function")
    try:
        names = set(_names_in(ast.parse(file.read_bytes())))
    except SyntaxError as error:
        raise ConfigError(f"{_KEY}.path={path} is not valid Python: {error.msg} in line {error.lineno}") from error
    if not {name, "*"} & names:
        raise ConfigError(f"{_KEY}.path={path} has no {name}: name its reward function with {_KEY}.name")


def _names_in(tree: ast.AST) -> Iterator[str]:
    """Names that a module may define, wherever it does so; "*" if it takes all names of another module."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.alias():
                yield node.asname or node.name
            case ast.Name(ctx=ast.Store()):
                yield node.id
