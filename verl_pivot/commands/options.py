"""Options that several commands share, and checks of options."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from verl_pivot.types import JsonObject

Address = Annotated[
    str, typer.Option(help="With --ray: address of the Ray cluster, host:port; auto is the cluster of this machine.")
]

CONCURRENCY = 128
"""Turns that `profile` samples at once on each server, by default."""
NO_SERVER_STARTS = "the servers of --endpoint or --openai run already, and none is started; leave it out"
"""Reason why flags of a server do nothing, for `refuse_void`."""
_READ_OTHERWISE = frozenset({".parquet", ".gz", ".bz2", ".zst", ".lz4"})
"""Endings of files that every reader takes for parquet or compressed JSON."""


def with_home(path: Path | None) -> Path | None:
    """The value of an option for a path to write, in which `~` is the home folder, also after `--out=`.

    Raises:
        ConfigError: If there is no such home folder.
    """
    try:
        return None if path is None else path.expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{path}: there is no such home folder; write its whole path") from error


def out_of_any_kind(out: Path | None) -> Path | None:
    """The value of an option for a file or folder to write.

    Raises:
        ConfigError: As `with_home`, or if the path has no name, as "" and "." have none.
    """
    if out is not None and out.name in ("", ".."):
        raise ConfigError(f"the output {str(out)!r} has no name: give the name to write, such as {out / 'new'}")
    return with_home(out)


def out_file(out: Path | None) -> Path | None:
    """The value of an option --out for a file.

    Raises:
        ConfigError: If the path has no name, or there is a folder or a device.
    """
    from verl_pivot.data.output_place import output_place

    if (out := out_of_any_kind(out)) is not None:
        output_place(out)
    return out


def out_of_json_lines(out: Path | None) -> Path | None:
    """The value of an option --out whose file will hold JSON lines.

    Raises:
        ConfigError: As `out_file`, or if the name has the ending of another kind of file, so that the file would be
            read as that kind.
    """
    if (out := out_file(out)) is not None and out.suffix in _READ_OTHERWISE:
        stem = out.with_suffix("")
        raise ConfigError(
            f"--out {out}: JSON lines are written, and {out.suffix} is read as another kind of file; give a name "
            f"such as {stem if stem.suffix == '.jsonl' else stem.with_suffix('.jsonl')}"
        )
    return out


def out_of_parquet(out: Path) -> Path:
    """The value of an option --out whose file will be parquet.

    Raises:
        ConfigError: As `out_file`, or if the name does not end in .parquet, by which verl and every reader recognize
            such a file.
    """
    out = out_file(out) or out
    if out.suffix != ".parquet":
        raise ConfigError(
            f"--out {out}: parquet is written, and its name must end in .parquet; give {out.with_suffix('.parquet')}"
        )
    return out


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


def refuse_void(given: dict[str, bool], *, because: str) -> None:
    """Stop a command whose options would do nothing.

    Args:
        given: {option: whether its value differs from the default}
        because: Reason why they do nothing, and what they would need, for the message.

    Raises:
        ConfigError: If one of them was given.
    """
    if found := [option for option, is_given in given.items() if is_given]:
        raise ConfigError(f"{' and '.join(found)} would do nothing: {because}")


def refuse_without_ray(address: str, workers_per_node: int, gpus_per_server: int = 1) -> None:
    """Stop a command without --ray that was given options of a Ray cluster.

    Raises:
        ConfigError: If one of them differs from its default.
    """
    given = {
        "--address": address != "auto",
        "--workers-per-node": workers_per_node != 1,
        "--gpus-per-server": gpus_per_server != 1,
    }
    refuse_void(given, because="without --ray no Ray cluster is used; give --ray, too")


def refuse_overwriting(outputs: Sequence[Path], inputs: Iterable[Path | str | None], option: str = "--out") -> None:
    """Stop a command that would overwrite one of its inputs.

    Args:
        outputs: Every file that the command may write: first the value of the option, then files named after it.
        inputs: Every file that the command may read, or the name of one, or of a module; None for one not given.
        option: The option that names the output.

    Raises:
        ConfigError: If an output is one of the inputs.
    """
    read = {Path(path).resolve() for path in inputs if path is not None}
    for path in outputs:
        if path.resolve() in read:
            what = f"{option} {path}" if path == outputs[0] else f"{path}, which is written for {option} {outputs[0]},"
            raise ConfigError(f"{what} is one of the inputs; choose another name, so that they are kept")


def refuse_repeats(runs: list[Path], each: str = "a different one", what: str = "a RUN") -> None:
    """Stop a command to which the same run was given twice.

    Args:
        runs: Folders of runs, or dumps.
        each: Words for what each run must be, for the message.
        what: Words for one of them, for the message.

    Raises:
        ConfigError: If two are the same folder or file.
    """
    if len({run.resolve() for run in runs}) < len(runs):
        raise ConfigError(f"{what} is given twice: each must be {each}")


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command that is a dataclass by options, one for each field.

    Fields are annotated and have defaults like the parameters of a command, so that several commands can share them.
    """
    given = inspect.signature(command).parameters
    groups: dict[str, Any] = {name: each.annotation for name, each in given.items() if is_dataclass(each.annotation)}
    fields = {name: inspect.signature(group).parameters for name, group in groups.items()}
    parameters = [each for name, own in given.items() for each in (fields[name].values() if name in fields else [own])]

    @wraps(command)
    def run(**values: Any) -> None:
        made = {name: group(**{field: values.pop(field) for field in fields[name]}) for name, group in groups.items()}
        command(**values, **made)

    shown = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]  # typer reads it
    run.__annotations__ = {each.name: each.annotation for each in shown}
    return run


def options_given(ctx: typer.Context, names: tuple[str, ...]) -> list[str]:
    """Options, as users write them, of those parameters among `names` that were given in the command line."""
    sources = {name: ctx.get_parameter_source(name) for name in names}
    return [option_name(name) for name, source in sources.items() if source and source.name == "COMMANDLINE"]


def refuse_given(ctx: typer.Context, names: tuple[str, ...], without: str) -> None:
    """Stop a command to which an option was given that does nothing.

    Args:
        ctx: Context of the command.
        names: Parameters that do nothing here.
        without: Why, such as "with --human, who answers instead of a model".

    Raises:
        ConfigError: If one of them was given in the command line.
    """
    if given := options_given(ctx, names):
        do = "does" if len(given) == 1 else "do"
        raise ConfigError(f"{' and '.join(given)} {do} nothing {without}: leave {'it' if do == 'does' else 'them'} out")


def option_name(setting: str) -> str:
    """How a parameter or setting is written as an option: max_tokens -> --max-tokens."""
    return "--" + setting.replace("_", "-")
