"""Data files of a launch -> their size, or an error if nothing can be trained on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from omegaconf import ListConfig

from verl_pivot.data.json_values import as_object, decode_json
from verl_pivot.data.pivots import problem_of_columns
from verl_pivot.errors import ConfigError, OptionsError, PivotError
from verl_pivot.verifiers.registry import get_verifier

OUR_DATASET = "pkg://verl_pivot.data.dataset"
"""`data.custom_cls.path` of the dataset that reads pivots.parquet."""
NAME_TASKS = "name a parquet file of tasks"
"""Remedy for a missing file of whole tasks."""
_READ_BY_VERL = (".parquet", ".json", ".jsonl")
_COLUMNS = ("expert", "verifier", "verifier_options", "num_prompt_tokens", "reward_var", "reward_mean",
            "sampling", "agent_name")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSize:
    """Contents of the parquet files of one split."""

    num_rows: int
    num_pivots: int
    columns: frozenset[str]
    """Columns that every file has."""
    longest_prompt: int | None
    """Tokens of the longest prompt; None if the files do not say."""
    verifiers: frozenset[tuple[str, str]]
    """(name, options as JSON) of each verifier that rows name."""
    has_variances: bool
    """Whether every row has the numbers of a profile."""
    samplings: frozenset[str | None]
    """Distinct values of the column `sampling`; None stands for rows without one."""
    agent_names: frozenset[str | None]
    """Distinct values of the column `agent_name` in rows that are not pivots; None stands for rows without one."""


def file_list(files: str | ListConfig | None) -> list[str]:
    """Value of `data.train_files` or `data.val_files` as a list."""
    return [files] if isinstance(files, str) else [str(file) for file in files or ()]


def read_files(key: str, files: Sequence[str], remedy: str = NAME_TASKS) -> SplitSize | None:
    """Contents of the files; None if a file is remote or not parquet, so that only verl can read it.

    Args:
        key: Key of the command line, for messages: "data.train_files".
        files: Paths as verl reads them.
        remedy: What to do about a missing file.

    Raises:
        ConfigError: If a file is missing, unreadable or empty, or has a part of the columns of pivots.
    """
    if not files:
        raise ConfigError(f"{key} names no file")
    if any("://" in file for file in files):
        return None
    for file in files:
        path = Path(file).expanduser()
        if not path.is_file():
            place = "" if path.is_absolute() else f" in {Path.cwd()}"
            raise ConfigError(f"{key}: there is no file {path}{place}; {remedy}")
        if not file.endswith(_READ_BY_VERL):
            raise ConfigError(f"{key}: verl cannot read {file}: its name must end in one of {', '.join(_READ_BY_VERL)}")
    if not all(file.endswith(".parquet") for file in files):
        return None
    tables = [_read(key, Path(file).expanduser()) for file in files]
    shared = frozenset[str].intersection(*(columns for columns, _ in tables))
    return _files_of([table for _, table in tables], shared)


def _read(key: str, path: Path) -> tuple[frozenset[str], pyarrow.Table]:
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = frozenset(file.schema_arrow.names)
            table = file.read(columns=[name for name in _COLUMNS if name in names], use_threads=False)
            num_rows = file.metadata.num_rows
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"{key}: {path} cannot be read as parquet: {error}") from error
    if num_rows == 0:
        raise ConfigError(f"{key}: {path} holds no rows")
    if problem := problem_of_columns(names):
        raise ConfigError(f"{key}: {path} {problem}")
    return names, table.append_column("row", pyarrow.nulls(num_rows))


def _files_of(tables: Sequence[pyarrow.Table], columns: frozenset[str]) -> SplitSize:
    lengths = [value for table in tables for value in _values(table, "num_prompt_tokens") if value is not None]
    return SplitSize(
        num_rows=sum(table.num_rows for table in tables),
        num_pivots=sum(value is not None for table in tables for value in _values(table, "expert")),
        columns=columns,
        longest_prompt=max(lengths, default=None),
        verifiers=frozenset(
            (name, options or "{}")
            for table in tables
            for name, options in zip(_values(table, "verifier"), _values(table, "verifier_options"), strict=False)
            if name is not None
        ),
        has_variances="reward_var" in columns and all(None not in _values(table, "reward_var") for table in tables),
        samplings=frozenset(value for table in tables for value in _values(table, "sampling") or [None]),
        agent_names=frozenset(name for table in tables for name in _agent_names(table)),
    )


def _agent_names(table: pyarrow.Table) -> list[str | None]:
    """Agent loops that rows other than pivots name; the dataset chooses those of pivots."""
    absent = [None] * table.num_rows
    names, experts = (_values(table, column) or absent for column in ("agent_name", "expert"))
    return [name for name, expert in zip(names, experts, strict=True) if expert is None]


def _values(table: pyarrow.Table, name: str) -> list[Any]:
    values: list[Any] = table[name].to_pylist() if name in table.column_names else []
    return values


def check_pivots(files: SplitSize, key: str, places: str) -> None:
    """Refuse training files of `+method=pivotrl` without pivots, and verifiers that do not exist.

    Raises:
        ConfigError: Naming the file and the command that writes a right one.
    """
    if files.num_pivots == 0:
        raise ConfigError(
            f"{key}: {places} holds no pivot; write it with `verl-pivot select`, or use +method=tool_rollout for rows "
            "that are whole tasks"
        )
    check_verifiers(files, key, places)


def check_verifiers(files: SplitSize, key: str, places: str) -> None:
    """Refuse rows that name an unknown verifier, and files in which no verifier takes its options.

    If only some rows have options that their verifier does not take, their rollouts are undecided and counted.

    Raises:
        ConfigError: Naming the verifier.
    """
    num_bad = 0
    for name, options in sorted(files.verifiers):
        try:
            get_verifier(name, as_object(decode_json(options), "verifier_options"))
        except PivotError as error:
            num_bad += isinstance(error, OptionsError)
            if not isinstance(error, OptionsError) or num_bad == len(files.verifiers):
                raise ConfigError(f"{key}: rows of {places} name the verifier {name!r}: {error}") from error


def check_size(files: SplitSize, key: str, *, batch_size: int, max_rows: int) -> int:
    """Refuse files with fewer rows than one step takes; verl would end without a message.

    Args:
        files: The training files.
        key: Key of the command line.
        batch_size: `data.train_batch_size`.
        max_rows: `data.train_max_samples`; -1 for all.

    Returns:
        Steps of one epoch.
    """
    num_rows = files.num_rows if max_rows < 0 else min(files.num_rows, max_rows)
    if num_rows < batch_size:
        raise ConfigError(
            f"{key} has {num_rows} rows and a step takes data.train_batch_size={batch_size}: lower it (and "
            "actor_rollout_ref.actor.ppo_mini_batch_size with it), or give more rows"
        )
    return num_rows // batch_size


def check_lengths(files: SplitSize, key: str, *, max_prompt_length: int, context: int | None) -> None:
    """Refuse prompts that are longer than the prompt limit or the context.

    Args:
        files: The files.
        key: Key of the command line.
        max_prompt_length: `data.max_prompt_length`.
        context: Tokens of the engine's context; None if it is not known.

    Raises:
        ConfigError: With the limit that has to be raised.
    """
    longest = files.longest_prompt
    if longest is None:
        return
    if longest > max_prompt_length:
        raise ConfigError(
            f"{key} holds a prompt of {longest} tokens, and data.max_prompt_length is {max_prompt_length}: raise it, "
            f"or write the file again with `verl-pivot select --max-prompt-tokens {max_prompt_length}`"
        )
    if context is not None and longest >= context:
        raise ConfigError(
            f"{key} holds a prompt of {longest} tokens, which leaves no room for an answer in the context of {context} "
            f"tokens: raise actor_rollout_ref.rollout.max_model_len, or take a model with a longer context"
        )
