"""`verl-pivot init`: a kind of extension and a name -> files of a working verifier, tool, environment or format."""

import builtins
import importlib.util
import io
import keyword
import re
import shlex
import shutil
import sys
import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import typer

from verl_pivot.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """Files in `verl_pivot.templates`; in their names and texts the user's name replaces `placeholder`."""

    placeholder: str
    files: tuple[str, ...]
    commands: tuple[str, ...]
    """Commands that the user can run next, in addition to pytest and mypy."""
    use: str
    """Sentence that says how training and other commands use the files."""


_TEMPLATES = {
    "verifier": Template(
        placeholder="my_verifier",
        files=("my_verifier.py", "test_my_verifier.py", "my_verifier_trajectories.jsonl"),
        commands=(
            "verl-pivot score my_verifier_trajectories.jsonl --verifier-module my_verifier.py",
            "verl-pivot score my_verifier_trajectories.jsonl --verifier-module my_verifier.py --turn shop-17:0 "
            "--action 'I am sorry.'",
        ),
        use="Rows name their verifier: import them with --verifier my_verifier --verifier-module my_verifier.py. Other "
        "commands need that module, too, and training needs pivot.verifier_modules=[my_verifier.py].",
    ),
    "tool": Template(
        placeholder="my_tool",
        files=("my_tool.py", "test_my_tool.py", "my_tool.yaml"),
        commands=("verl-pivot play my_tool.yaml --human --prompt 'Please get me two packs of tea.'",),
        use="To train with it: +method=tool_rollout pivot.rollout.tools=my_tool.yaml.",
    ),
    "environment": Template(
        placeholder="my_environment",
        files=("my_environment.py", "test_my_environment.py", "my_environment.yaml", "my_environment_problems.jsonl"),
        commands=("verl-pivot play my_environment.yaml --human --rows my_environment_problems.jsonl",),
        use="To train with it: +method=tool_rollout pivot.rollout.tools=my_environment.yaml "
        "data.train_files=my_environment_problems.jsonl.",
    ),
    "format": Template(
        placeholder="my_format",
        files=("my_format.py", "test_my_format.py", "my_format_example.jsonl"),
        commands=(
            "verl-pivot import my_format_example.jsonl --format-module my_format.py --out my_format_trajectories.jsonl",
        ),
        use="With --format-module my_format.py, `verl-pivot import` reads the rows that my_format recognizes.",
    ),
}


def init_command(
    kind: Annotated[Literal["verifier", "tool", "environment", "format"], typer.Argument(help="What to write.")],
    name: Annotated[str, typer.Argument(help="Name in lower-case letters, such as refund_check.")],
) -> None:
    """Write a working verifier, tool, environment or format with its test into this folder, for you to change.

    Existing files are not overwritten.

    \b
    Examples:
      verl-pivot init verifier refund_check
      verl-pivot init environment book_shop
    """
    template = _TEMPLATES[kind]
    _check_name(name, kind)
    texts = {_named(file, template, name): _named(_text_of(file), template, name) for file in template.files}
    _check_words(name, template)
    _write(texts)
    python = [file for file in texts if file.endswith(".py")]
    commands = [
        f"python -m pytest {' '.join(file for file in python if file.startswith('test_'))}",
        f"python -m mypy --strict {' '.join(python)}",
        *(_named(command, template, name) for command in template.commands),
    ]
    programs = _programs_folder()
    typer.echo(f"Wrote {', '.join(texts)}. Next:")
    for command in commands:
        typer.echo(f"  {programs}{command}")
    if missing := [package for package in ("pytest", "mypy") if importlib.util.find_spec(package) is None]:
        typer.echo(f"First install {' and '.join(missing)}: {programs}python -m pip install {' '.join(missing)}")
    typer.echo(_named(template.use, template, name))


def _programs_folder() -> str:
    """Prefix for the names of this environment's programs: their folder, or "" if the shell finds them without it."""
    folder = Path(sys.executable).parent
    found = shutil.which("python")
    return "" if found is not None and Path(found).parent == folder else f"{shlex.quote(str(folder))}/"


def _text_of(file: str) -> str:
    return (resources.files("verl_pivot.templates") / file).read_text(encoding="utf-8")


def _named(text: str, template: Template, name: str) -> str:
    """The text with the user's name in place of the placeholder, both as a module's and as a class's name."""
    own_folder = text.replace("verl_pivot.templates.", "")
    return own_folder.replace(template.placeholder, name).replace(_class_name(template.placeholder), _class_name(name))


def _class_name(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _check_name(name: str, kind: str) -> None:
    """Refuse a name that cannot be a module's, or that Python, pytest or verl-pivot uses already.

    Raises:
        ConfigError: If it is such a name; the message has the reason and another name.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        raise ConfigError(
            f"{name!r} must consist of lower-case letters, digits and single underscores, such as refund_check"
        )
    if name.startswith("test_") or name in ("test", "conftest"):
        raise ConfigError(f"{name!r} is a name with a meaning for pytest; choose another")
    if keyword.iskeyword(name) or hasattr(builtins, name):
        raise ConfigError(f"{name!r} is a keyword or built-in of Python; choose another, such as my_{name}")
    if name in sys.stdlib_module_names or _is_installed(name):
        raise ConfigError(f"the file would hide the Python package {name!r}; choose another name, such as my_{name}")
    if name in _known(kind):
        raise ConfigError(f"{kind} {name!r} comes with verl-pivot already; choose another, such as my_{name}")


def _is_installed(name: str) -> bool:
    """Whether Python finds a module of this name in another folder than this one."""
    found = importlib.util.find_spec(name)
    return found is not None and (found.origin is None or Path(found.origin).parent != Path.cwd())


def _known(kind: str) -> tuple[str, ...]:
    from verl_pivot.formats.registry import known_formats
    from verl_pivot.tools.registry import known_tools
    from verl_pivot.verifiers.registry import known_verifiers

    none: Callable[[], tuple[str, ...]] = tuple
    return {"verifier": known_verifiers, "tool": known_tools, "format": known_formats}.get(kind, none)()


def _check_words(name: str, template: Template) -> None:
    """Refuse a name that the template's code uses for something else.

    Raises:
        ConfigError: If it is such a name.
    """
    for file in template.files:
        if file.endswith(".py"):
            tokens = tokenize.generate_tokens(io.StringIO(_text_of(file)).readline)
            words = {token.string for token in tokens if token.type == tokenize.NAME}
            own = {template.placeholder: name, _class_name(template.placeholder): _class_name(name)}
            if {own[word] for word in words & own.keys()} & (words - own.keys()):
                raise ConfigError(f"{name!r} has another use in the template; choose another, such as my_{name}")


def _write(texts: dict[str, str]) -> None:
    """Write all files or none.

    Raises:
        ConfigError: If a file exists already or cannot be written.
    """
    if there := [file for file in texts if Path(file).exists() or Path(file).is_symlink()]:
        raise ConfigError(f"existing files are not overwritten: {', '.join(there)}; choose another name")
    written: list[Path] = []
    try:
        for file, text in texts.items():
            with Path(file).open("x", encoding="utf-8") as opened:
                written.append(Path(file))
                opened.write(text)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise ConfigError(f"{error.filename} cannot be written: {error.strerror}; go to another folder") from error
