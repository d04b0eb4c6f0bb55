"""YAML of languages -> LanguageTable: how programs are compiled and run, and which languages can run here."""

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

import yaml
from pydantic import ValidationError

from verl_pivot.configuration import configs_dir
from verl_pivot.errors import ConfigError, SandboxRequestError, UnsupportedLanguageError
from verl_pivot.sandbox.bubblewrap.command_line import standard_environment
from verl_pivot.sandbox.bubblewrap.python_view import PythonView, is_below
from verl_pivot.sandbox.execution import Limits, Program, check_file_name
from verl_pivot.sandbox.service.devices import checked_devices
from verl_pivot.sandbox.service.language_options import (
    LANGUAGES_FILE,
    LanguageOptions,
    Overhead,
    SessionOptions,
    ZygoteChoice,
)
from verl_pivot.sandbox.service.shown_folders import ShownFolder, check_together, shown_folders
from verl_pivot.validation import first_problem

MAX_WARM_UP_BYTES = 32 * 1024
"""Most bytes of all warm-ups together, which are passed on command lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """One language.

    Example:
        Language(name="c", file="main.c", compile=("gcc", "-o", "main", "main.c"), run=("./main",), ...)
    """

    name: str
    file: str
    """Name of the file, in the working directory, that holds the code."""
    run: tuple[str, ...]
    """Command that runs a program."""
    compile: tuple[str, ...] | None
    """Command that compiles a program; None where nothing is compiled."""
    zygote: ZygoteChoice | None
    """Zygote that programs are forked from. None executes `run` instead; so does the backend bwrap_exec."""
    overhead: Overhead
    compile_limits: Limits
    """Limits of the compiler; the limits of an execution hold for the program."""
    folders: tuple[ShownFolder, ...] = ()
    """Folders of the host that its programs may read."""
    devices: tuple[Path, ...] = ()
    """Devices of the host that its programs may use; such programs have to be trusted."""
    import_from: tuple[str, ...] = ()
    """Paths in the pod from which Python imports, besides its own."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of its programs, in addition to the constant ones."""
        return {"PYTHONPATH": ":".join(self.import_from)} if self.import_from else {}

    @property
    def places(self) -> tuple[str, ...]:
        """Paths of its folders in the pod."""
        return tuple(folder.place for folder in self.folders)

    def run_in(self, folder: str) -> tuple[str, ...]:
        """Command that runs a program in a folder below /tmp; the code stays in /tmp. `folder` is empty for /tmp."""
        return tuple(_absolute(word, self.file) for word in self.run) if folder else self.run

    @property
    def tools(self) -> tuple[str, ...]:
        """Names of the programs that must be found in PATH."""
        commands = [command for command in (self.compile, self.run) if command is not None]
        return tuple(command[0] for command in commands if "/" not in command[0])

    def compile_limits_of(self, program: Program) -> Limits:
        """Limits of the compiler for one program, with the program's own time limit for it if there is one."""
        if program.compile_seconds is None:
            return self.compile_limits
        cpu_seconds = max(self.compile_limits.cpu_seconds, math.ceil(program.compile_seconds))
        return replace(self.compile_limits, wall_seconds=program.compile_seconds, cpu_seconds=cpu_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageTable:
    """Languages that can run here, and why others cannot."""

    available: Mapping[str, Language]
    missing: Mapping[str, str]
    """{name of a language: program that it needs and that is not installed}."""
    warm_ups: Mapping[str, str] = field(default_factory=dict)
    """{module: program that each zygote with this module runs before it forks}."""
    warmed_modules: tuple[str, ...] = ()
    """Modules for which the user's file has a warm-up; the zygote `full` imports them, as those of --preload."""
    folders: Mapping[str, Path] = field(default_factory=dict)
    """{path in the pod: folder of the host} of all languages."""
    session: SessionOptions = field(default_factory=SessionOptions)
    """How sessions begin; they are always in Python."""

    def check_without_devices(self) -> None:
        """Check that no language has devices, for a backend whose programs share one view of the machine.

        Raises:
            ConfigError: If a language has devices.
        """
        for name, language in self.available.items():
            if language.devices:
                raise ConfigError(
                    f"{name}.devices: only --backend bwrap_exec gives programs devices; use it, or remove the devices"
                )

    def get(self, name: str) -> Language:
        """The language of this name.

        Raises:
            UnsupportedLanguageError: If it cannot run here; the message names those that can.
        """
        if name in self.available:
            return self.available[name]
        known = ", ".join(self.available)
        if name in self.missing:
            raise UnsupportedLanguageError(
                f"language {name!r} cannot run here, since {self.missing[name]} is missing: install it, or use {known}"
            )
        raise UnsupportedLanguageError(f"unknown language {name!r}: use {known}, or define it in languages_file")


def load_languages(path: Path | None = None, *, python: PythonView) -> LanguageTable:
    """The languages of configs/languages.yaml, with those of another file merged over them field by field.

    Args:
        path: The other file; None for none.
        python: The Python that the sandbox shows, whose PATH is searched for the programs of languages.

    Raises:
        ConfigError: If a file cannot be read, or a language in it is not described correctly.
    """
    merged = _read(configs_dir() / "languages.yaml")
    file, own = (configs_dir() / "languages.yaml", {}) if path is None else (path, _read(path))
    for name, fields in own.items():
        merged[name] = _merged(merged.get(name), fields)
    raw = {name: fields for name, fields in merged.items() if fields is not None}
    try:
        checked = LANGUAGES_FILE.validate_python(raw)
        languages = [_language(name, options, python, file) for name, options in checked.items()]
        session = _session(checked, file)
        warm_ups = _warm_ups(checked, file)
    except ValidationError as error:
        first = error.errors()[0]
        got = "" if first["type"] == "value_error" else f", got {first['input']!r}"
        raise ConfigError(f"{file}: {first_problem(error)}{got}") from error
    except SandboxRequestError as error:
        raise ConfigError(f"{file}: {error}") from error
    table = _language_table(languages, python)
    try:
        folders = check_together(folder for language in languages for folder in language.folders)
    except ValueError as error:
        raise ConfigError(f"{file}: folders: {error}") from error
    warmed = _warmed_modules(own, warm_ups, _import_folders(languages), file)
    return replace(table, warm_ups=warm_ups, warmed_modules=warmed, folders=folders, session=session)


def _session(languages: Mapping[str, LanguageOptions], file: Path) -> SessionOptions:
    for name, options in languages.items():
        if name != "python" and options.session != SessionOptions():
            raise ConfigError(f"{file}: {name}.session: only Python has sessions; set this in `python`")
    return languages["python"].session if "python" in languages else SessionOptions()


def _import_folders(languages: list[Language]) -> list[str]:
    """Folders of the host that pods show at the paths from which Python imports."""
    return [
        str(folder.source / Path(path).relative_to(folder.place))
        for language in languages
        for path in language.import_from
        for folder in language.folders
        if is_below(Path(path), Path(folder.place))
    ]


def _warmed_modules(
    own: Mapping[str, object], warm_ups: Mapping[str, str], import_folders: list[str], file: Path
) -> tuple[str, ...]:
    """Modules that the user's file names in `warm`; each must be installed, or lie in one of `import_folders`."""
    given = {module for fields in own.values() if isinstance(fields, dict) for module in fields.get("warm") or ()}
    modules = tuple(module for module in warm_ups if module in given)
    for module in modules:
        package = module.partition(".")[0]
        if find_spec(package) is None and PathFinder.find_spec(package, import_folders) is None:
            raise ConfigError(f"{file}: warm.{module}: no such package is installed; install it, or remove the warm-up")
    return modules


def _merged(old: object, fields: object) -> object:
    """Fields of a language merged over those from an earlier file; its warm-ups are merged one by one."""
    if not isinstance(old, dict) or not isinstance(fields, dict):
        return fields
    warm = {"warm": _merged(old["warm"], fields["warm"])} if "warm" in old and "warm" in fields else {}
    return {**old, **fields, **warm}


def _warm_ups(languages: Mapping[str, LanguageOptions], file: Path) -> dict[str, str]:
    """{module: program} of all languages, which share their zygotes."""
    found: dict[str, str] = {}
    for name, options in languages.items():
        for module, code in (options.warm or {}).items():
            if code is not None and found.setdefault(module, code) != code:
                raise ConfigError(f"{file}: {name}.warm.{module}: another language has a different one; keep one")
    num_bytes = len(json.dumps(found))
    if num_bytes > MAX_WARM_UP_BYTES:
        raise ConfigError(
            f"{file}: all warm-ups together have {num_bytes} bytes, more than {MAX_WARM_UP_BYTES}: move their code "
            "into a module that they import"
        )
    return found


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


def _language(name: str, options: LanguageOptions, python: PythonView, file: Path) -> Language:
    check_file_name(options.file)
    try:
        folders = shown_folders(options.folders, python)
    except ValueError as error:
        raise ConfigError(f"{file}: {name}.folders: {error}") from error
    try:
        devices = checked_devices(options.devices)
    except ValueError as error:
        raise ConfigError(f"{file}: {name}.devices: {error}") from error
    return Language(
        name=name,
        file=options.file,
        run=options.run,
        compile=options.compile,
        zygote=options.zygote,
        overhead=options.overhead,
        compile_limits=Limits(**options.compile_limits.model_dump()),
        folders=folders,
        devices=devices,
        import_from=options.import_from,
    )


def _absolute(word: str, file: str) -> str:
    """A word of a command, as a path in /tmp if it names the program's file or one beside it."""
    return f"/tmp/{word.removeprefix('./')}" if word == file or word.startswith("./") else word


def _language_table(languages: list[Language], python: PythonView) -> LanguageTable:
    """Look for the programs of languages in the folders that the sandbox shows; its Python is always there."""
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
    return LanguageTable(available=available, missing=missing)
