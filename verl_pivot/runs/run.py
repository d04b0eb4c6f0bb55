"""Folder of a training, or a dump -> TrainingRun: its configuration, metrics, dumps of rollouts and checkpoints."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from verl_pivot.data.rollout_dumps import FOLDER
from verl_pivot.errors import DataError
from verl_pivot.types import Json, JsonObject

_FOLDERS = (FOLDER, "tools")
"""Folders of our dumps beside verl's own; `tools` is that of earlier versions."""


class RunPart(StrEnum):
    """Purpose for which a rollout was sampled."""

    TRAINING = "training"
    VALIDATION = "validation"


_PART_FOLDERS = {
    RunPart.TRAINING: ("rollouts", "rollout_data_dir"),
    RunPart.VALIDATION: ("validation", "validation_data_dir"),
}
"""{part: the folder's usual name within that of the run, and verl's key in `trainer` that sets it}"""


class DumpFile(NamedTuple):
    """One dump of rollouts."""

    path: Path
    part: RunPart
    step: int | None
    """Training step; None if the file's name is no number."""

    @property
    def is_ours(self) -> bool:
        """Whether it lies in the folder of our dumps, not in that of verl's own."""
        return self.path.absolute().parent.name in _FOLDERS


class _ReadConfig(NamedTuple):
    """Contents of Hydra's config file of a run, or the reason why it cannot be read."""

    config: JsonObject
    problem: str | None


@dataclass(frozen=True)
class TrainingRun:
    """Files of one training. Dumps, metrics and checkpoints are looked up at each access.

    Example:
        TrainingRun(Path("outputs/run"))
    """

    path: Path
    """Folder of the run, of `trainer.rollout_data_dir` or of dumps, or one dump."""

    @property
    def folder(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def config(self) -> JsonObject:
        """Configuration that Hydra wrote for the launch; empty if it is not there or cannot be read."""
        return self._read_config.config

    @property
    def config_problem(self) -> str | None:
        """Sentence why the configuration cannot be read; None if it was, or is not there."""
        return self._read_config.problem

    @cached_property
    def _read_config(self) -> "_ReadConfig":
        path = self.folder / ".hydra" / "config.yaml"
        try:
            found = yaml.load(path.read_text(), Loader=_LOADER)
        except (FileNotFoundError, NotADirectoryError):
            return _ReadConfig({}, None)
        except OSError as error:
            return _ReadConfig({}, f"{path} cannot be read: {error.strerror}; everything except the settings is shown")
        except (ValueError, yaml.YAMLError, RecursionError) as error:
            why = str(error).partition("\n")[0]
            return _ReadConfig({}, f"{path} is no YAML ({why}); everything except the settings is shown")
        return _ReadConfig(found if isinstance(found, dict) else {}, None)

    @cached_property
    def settings(self) -> dict[str, str]:
        """{key with dots: value as JSON} of the configuration."""
        return dict(_flattened(self.config, "")) if self.config else {}

    @cached_property
    def method(self) -> str | None:
        """Method that the launch recorded beside its checkpoints."""
        try:
            record = json.loads((self.folder / "verl_pivot_run.json").read_text())
        except (OSError, ValueError):
            return None
        method = record.get("method") if isinstance(record, dict) else None
        return method if isinstance(method, str) else None

    @property
    def checkpoints(self) -> list[int]:
        """[num_checkpoints] steps of the checkpoints that exist, in ascending order."""
        names = [path.name.removeprefix("global_step_") for path in self.folder.glob("global_step_*")]
        return sorted(int(name) for name in names if name.isdecimal())

    @property
    def dumps(self) -> list[DumpFile]:
        """[num_files] dumps by part and step: ours, or verl's own if there are none of ours."""
        if not self.path.is_dir():
            return [_dump(self.path, _part_of(self.path.absolute().parent))]
        of_parts = {part: self._dumps_of(part) for part in RunPart}
        if not any(of_parts.values()):
            of_parts[_part_of(self.path.absolute())] = _dumps_within(self.path)
        return [_dump(path, part) for part, paths in of_parts.items() for path in paths]

    def _dumps_of(self, part: RunPart) -> list[Path]:
        name, key = _PART_FOLDERS[part]
        configured = self._trainer.get(key)
        folders = [self.folder / name]
        if isinstance(configured, str) and configured:
            folders.append(self._launch_folder / configured)
        return next((paths for folder in folders if (paths := _dumps_within(folder))), [])

    @property
    def _launch_folder(self) -> Path:
        """Folder in which the training was launched, from which its relative paths lead; this one if it is not known.

        Hydra writes it beside the configuration. Where it is not on this machine, as after a launch in a container, it
        lies as before seen from the run's folder.
        """
        launch, output = self.hydra_runtime.get("cwd"), self.hydra_runtime.get("output_dir")
        if not isinstance(launch, str):
            return Path()
        is_here = Path(launch).is_dir() or not isinstance(output, str)
        return Path(launch) if is_here else self.folder.absolute() / os.path.relpath(launch, str(output))

    @cached_property
    def hydra_runtime(self) -> Mapping[str, Json]:
        """What Hydra wrote about the launch, such as its `cwd` and the `version` of Hydra; empty if it is not there."""
        try:
            runtime = yaml.load((self.folder / ".hydra" / "hydra.yaml").read_text(), Loader=_LOADER)["hydra"]["runtime"]
        except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError, RecursionError):  # the file is an addition
            return {}
        return runtime if isinstance(runtime, dict) else {}

    @property
    def metrics(self) -> Path | None:
        """First file of metrics that is not empty: `metrics.jsonl`, that of verl's `file` logger, or a console log.

        The logger writes its file into the folder of the launch, and a later launch of the same name overwrites it: a
        console log of the run comes before it. Hydra's own log comes last, since it seldom holds metrics.
        """
        logged = f"{self._trainer.get('project_name')}/{self._trainer.get('experiment_name')}.jsonl"
        places = [self.folder / name for name in ("metrics.jsonl", logged, "launch.log", "train.log")]
        if "file" in self._loggers and isinstance(self.hydra_runtime.get("cwd"), str):
            places.append(self._launch_folder / logged)
        places.append(self.folder / "main_ppo.log")
        return next((path for path in places if path.is_file() and path.stat().st_size), None)

    @property
    def _loggers(self) -> Sequence[Json]:
        loggers = self._trainer.get("logger")
        return loggers if isinstance(loggers, list) else [loggers]

    @property
    def _trainer(self) -> Mapping[str, Json]:
        trainer = self.config.get("trainer")
        return trainer if isinstance(trainer, dict) else {}

    def check(self) -> None:
        """Check that there is something to show.

        Raises:
            DataError: If there is no such file or folder, it may not be read, or it is not the folder of a run.
        """
        try:
            is_there = self.path.exists()
            is_run = bool(self.config or self.metrics or self.dumps)
        except OSError as error:
            raise DataError(
                f"{error.filename or self.path} cannot be read: {error.strerror}; give a run that can be read"
            ) from error
        if not is_there:
            raise DataError(f"{self.path} does not exist: give the folder of a run, or a dump of rollouts")
        if not is_run:
            raise DataError(
                f"{self.path} holds neither Hydra's configuration nor metrics nor dumps of rollouts: give the folder "
                "of a run, or of its trainer.rollout_data_dir"
            )


def run_names(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that differ from each other; all have the same number of parts.

    Example:
        run_names([Path("seed-0/grpo"), Path("seed-1/grpo")])  # ["seed-0/grpo", "seed-1/grpo"]
    """
    parts = [path.resolve().parts[1:] for path in paths]
    ends = ([each[-length:] for each in parts] for length in range(1, max(map(len, parts)) + 1))
    return ["/".join(each) for each in next((found for found in ends if len(set(found)) == len(found)), parts)]


def differing_settings(runs: Mapping[str, TrainingRun]) -> dict[str, list[str | None]]:
    """{key: [num_runs] values} of the settings that are not the same in all runs; None where a run has no such key."""
    keys = sorted({key for run in runs.values() for key in run.settings})
    found = {key: [run.settings.get(key) for run in runs.values()] for key in keys}
    return {key: values for key, values in found.items() if len(set(values)) > 1}


def _dumps_within(folder: Path) -> list[Path]:
    """[num_steps] dumps of `trainer.rollout_data_dir`, or of the folder of dumps within it, by their step.

    Ours come before those of earlier versions, and before verl's own.
    """
    for candidate in (*(folder / name for name in _FOLDERS), folder):
        if paths := [path for path in candidate.glob("*.jsonl") if path.stem.isdecimal()]:
            return sorted(paths, key=lambda path: int(path.stem))
    return []


def _part_of(folder: Path) -> RunPart:
    """Part whose dumps a folder holds, by its usual name, or by that of the folder around ours."""
    of_part = folder.parent if folder.name in _FOLDERS else folder
    is_validation = of_part.name == _PART_FOLDERS[RunPart.VALIDATION][0]
    return RunPart.VALIDATION if is_validation else RunPart.TRAINING


def _dump(path: Path, part: RunPart) -> DumpFile:
    return DumpFile(path, part, int(path.stem) if path.stem.isdecimal() else None)


def _flattened(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _flattened(each, f"{key}.{name}" if key else str(name))
    else:
        yield key, json.dumps(value, default=str)


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader if PyYAML was built with it, since it is ten times as fast."""
