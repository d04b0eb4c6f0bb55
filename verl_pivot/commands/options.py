"""Options that several commands share, and how they are checked."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from verl_pivot.types import JsonObject

Address = Annotated[
    str, typer.Option(help="With --ray: address of the cluster, host:port; auto is the cluster of this machine.")
]


def json_object(text: str, option: str) -> "JsonObject":
    """The value of an option that takes a JSON object.

    Raises:
        ConfigError: If the text is not a JSON object.
    """
    from verl_pivot.data.json_values import BadRowError, as_object, decode_json

    try:
        return as_object(decode_json(text, what=option), option)
    except BadRowError as error:
        raise ConfigError(f"{error}; give an object such as {{}}, got {text!r}") from error


def refuse_overwriting(out: Path, inputs: list[Path]) -> None:
    """Stop a command that would write over one of its inputs.

    Raises:
        ConfigError: If it would.
    """
    if out.resolve() in [path.resolve() for path in inputs]:
        raise ConfigError(f"--out {out} is one of the inputs; choose another name, so that they are kept")
