"""RunRecord: what a run began from, kept beside its checkpoints -> an error if another run would resume them."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from verl_pivot.errors import ConfigError

_NAME = "verl_pivot_run.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What a run began from; runs with different records may not resume each other's checkpoints."""

    model: str
    """`actor_rollout_ref.model.path`; for a folder, its absolute path."""
    stage: str | None
    """Name after `+stage=`; None without a stage."""
    method: str | None = None
    """Name after `+method=`; None without a method, and in records of version 0.1.0."""
    earlier_note: int | None = None
    """When verl wrote its note of the latest checkpoint that an earlier run left, in nanoseconds since 1970; None if no
    run had left one."""

    @classmethod
    def of(cls, model: str, stage: str | None, method: str | None, *, earlier_note: int | None = None) -> "RunRecord":
        folder = Path(model).expanduser()
        model = str(folder.resolve()) if folder.is_dir() else model
        return cls(model=model, stage=stage, method=method, earlier_note=earlier_note)

    def is_other(self, record: "RunRecord") -> bool:
        """Whether `record` is that of another run; a record without a method fits any method."""
        methods = {self.method, record.method} - {None}
        return (self.model, self.stage) != (record.model, record.stage) or len(methods) > 1

    def __str__(self) -> str:
        parts = {"method": self.method, "stage": self.stage}
        named = [f"+{group}={option}" for group, option in parts.items() if option is not None]
        return " with ".join([self.model, *([" ".join(named)] if named else [])])


def check_same_run(folder: Path, step: int, record: RunRecord) -> None:
    """Refuse to resume the checkpoints of another run, which verl would do without a message.

    Another run is one that began from something else, or one that a later launch replaced in the same folder. The later
    launch may have ended before its first checkpoint, so that verl still finds those of the earlier run.

    Args:
        folder: `trainer.default_local_dir`.
        step: Step of the checkpoint that verl would resume from; 0 if there is none.
        record: What this launch begins from, with the time of verl's present note.

    Raises:
        ConfigError: With the remedies.
    """
    earlier = _read(folder / _NAME)
    if not step or earlier is None:
        return
    if earlier.is_other(record):
        raise ConfigError(
            f"{folder} holds step {step} of a run that began from {earlier}, and this launch begins from {record}: "
            "verl would continue with the weights, optimizer and step count of the earlier run; name another "
            "trainer.default_local_dir, begin anew in this one with trainer.resume_mode=disable, or continue that run "
            "with trainer.resume_mode=resume_path"
        )
    if earlier.earlier_note is not None and earlier.earlier_note == record.earlier_note:
        raise ConfigError(
            f"{folder} holds step {step} of an earlier run, since the last run there began anew, or from another "
            "checkpoint, and ended before its first one: begin anew again with trainer.resume_mode=disable, continue "
            "the earlier run with trainer.resume_mode=resume_path, or name another trainer.default_local_dir"
        )


def write_record(folder: Path, record: RunRecord) -> None:
    """Record what this launch begins from, in the folder of its checkpoints.

    Raises:
        ConfigError: If the folder cannot be written.
    """
    unfinished = folder / f".{_NAME}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(asdict(record)) + "\n", encoding="utf-8")
        unfinished.replace(folder / _NAME)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise ConfigError(f"trainer.default_local_dir={folder} cannot be written: {error}") from error


def _read(path: Path) -> RunRecord | None:
    """The record in a file; None if there is none, as beside checkpoints of stock verl.

    Raises:
        ConfigError: If the file holds something else.
    """
    if not path.is_file():
        return None
    try:
        return RunRecord(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): remove it") from error
