"""Options that several commands share, and checks of options."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from verl_pivot.types import JsonObject

Address = Annotated[
    str, typer.Option(help="With --ray: address of the Ray cluster, host:port; auto is the cluster of this machine.")
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
        raise ConfigError(f"{error}; got {text!r}, give a JSON object such as {{}}") from error


def refuse_overwriting(out: Path, inputs: list[Path]) -> None:
    """Stop a command that would overwrite one of its inputs.

    Raises:
        ConfigError: If the output is one of the inputs.
    """
    if out.resolve() in [path.resolve() for path in inputs]:
        raise ConfigError(f"--out {out} is one of the inputs; choose another name, so that they are kept")
