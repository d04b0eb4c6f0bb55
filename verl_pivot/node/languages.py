"""YAML of languages -> Language: how a program of each is compiled and run."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from verl_pivot.bubblewrap.bwrap import standard_environment
from verl_pivot.bubblewrap.python_view import PythonView
from verl_pivot.configuration import configs_dir
from verl_pivot.errors import ConfigError, SandboxRequestError, UnsupportedLanguageError
from verl_pivot.sandbox.execution import MIB, Limits, check_file_name

_Word = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]+$")]
_Command = Annotated[tuple[_Word, ...], Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Overhead(_Strict):
    memory_bytes: Annotated[int, Field(ge=0, le=4096 * MIB)] = 16 * MIB
    num_processes: Annotated[int, Field(ge=0, le=256)] = 0
    num_open_files: Annotated[int, Field(ge=0, le=1024)] = 0


class _CompileLimits(_Strict):
    wall_seconds: float = 15.0
    cpu_seconds: int = 30
    memory_bytes: int = 2048 * MIB
    num_processes: int = 64


class _Entry(_Strict):
    file: str
    run: Annotated[_Command, Field(strict=False)]
    compile: Annotated[_Command, Field(strict=False)] | None = None
    zygote: str | None = None
    overhead: _Overhead = _Overhead()
    compile_limits: _CompileLimits = _CompileLimits()


_ENTRIES = TypeAdapter(dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_+#.-]{0,31}$")], _Entry])


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What a runtime takes by itself, granted above a program's limits."""

    memory_bytes: int
    num_processes: int
    num_open_files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """One language.

    Example:
        Language(name="c", file="main.c", compile=("gcc", "-o", "main", "main.c"), run=("./main",), ...)
    """

    name: str
    file: str
    """Where the code is written to, in the working directory."""
    run: tuple[str, ...]
    compile: tuple[str, ...] | None
    zygote: str | None
    """Which zygote its programs are forked from, `auto` by their imports; None executes `run`."""
    overhead: Overhead
    compile_limits: Limits

    @property
    def tools(self) -> tuple[str, ...]:
        """Names of the programs that it needs from PATH."""
        commands = [command for command in (self.compile, self.run) if command is not None]
        return tuple(command[0] for command in commands if "/" not in command[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Languages:
    """Those that can run here, and why the others cannot."""

    available: Mapping[str, Language]
    missing: Mapping[str, str]
    """Name of the language -> the tool that is not installed."""

    def get(self, name: str) -> Language:
        """Raise UnsupportedLanguageError, which names what there is, unless `name` can run here."""
        if name in self.available:
            return self.available[name]
        known = ", ".join(self.available)
        if name in self.missing:
            raise UnsupportedLanguageError(
                f"language {name!r} cannot run here, where {self.missing[name]} is missing: install it, or use {known}"
            )
        raise UnsupportedLanguageError(f"unknown language {name!r}: use {known}, or name it in languages_file")


def load_languages(path: Path | None = None, *, python: PythonView) -> Languages:
    """Ours with those of `path` merged over them, sorted into the ones whose tools are installed and the others.

    Raises:
        ConfigError: If a file is no YAML of languages.
    """
    files = [configs_dir() / "languages.yaml", *([path] if path is not None else [])]
    merged: dict[str, object] = {}
    for file in files:
        for name, fields in _read(file).items():
            old = merged.get(name)
            merged[name] = {**old, **fields} if isinstance(old, dict) and isinstance(fields, dict) else fields
    raw = {name: fields for name, fields in merged.items() if fields is not None}
    try:
        entries = _ENTRIES.validate_python(raw)
        languages = [_language(name, entry) for name, entry in entries.items()]
    except ValidationError as error:
        raise ConfigError(f"{files[-1]}: {_first_problem(error)}") from error
    except SandboxRequestError as error:
        raise ConfigError(f"{files[-1]}: {error}") from error
    return _sorted_out(languages, python)


def _read(path: Path) -> dict[str, object]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"languages cannot be read from {path}: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ConfigError(f"{path} must map names of languages to their fields, as configs/languages.yaml does")
    return content


def _language(name: str, entry: _Entry) -> Language:
    check_file_name(entry.file)
    return Language(
        name=name,
        file=entry.file,
        run=entry.run,
        compile=entry.compile,
        zygote=entry.zygote,
        overhead=Overhead(**entry.overhead.model_dump()),
        compile_limits=Limits(**entry.compile_limits.model_dump()),
    )


def _first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "[key]")
    return f"{where}: {first['msg']}, got {first['input']!r}"


def _sorted_out(languages: list[Language], python: PythonView) -> Languages:
    """A tool counts as installed where the sandbox shows it; its Python is always there."""
    folders = standard_environment(python)["PATH"].split(":")[1:]
    available, missing = {}, {}
    for language in languages:
        lacking = [
            tool for tool in language.tools if tool != "python" and shutil.which(tool, path=":".join(folders)) is None
        ]
        if lacking:
            missing[language.name] = lacking[0]
        else:
            available[language.name] = language
    return Languages(available=available, missing=missing)
