"""PivotDataset: pivots.parquet -> the rows that verl's trainer gives to the agent loop (`data.custom_cls`)."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import datasets
import pyarrow.parquet
from omegaconf import DictConfig, ListConfig
from verl.utils.dataset.rl_dataset import RLHFDataset

from verl_pivot.data.curriculum import Curriculum, CurriculumOptions, PivotRecord, parse_options
from verl_pivot.data.pivots import AGENT_NAME, problem_of_columns
from verl_pivot.errors import ConfigError, DataError

_training_curricula: list[Curriculum] = []
"""[0 or 1] curriculum of the training dataset, which verl builds in the process that holds the replay buffer."""


def training_curriculum() -> Curriculum | None:
    """The curriculum of this process's training dataset; None if the curriculum is off."""
    return _training_curricula[0] if _training_curricula else None


class PivotDataset(RLHFDataset):  # type: ignore[misc]  # verl is untyped here
    """verl's dataset for pivots; rows of other files, such as benchmarks for validation, stay as verl reads them."""

    curriculum: Curriculum | None = None
    """Curriculum that draws the training rows. verl 0.9.1 accepts no custom sampler, so this dataset ignores the
    positions that verl's sampler asks for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        options = parse_options(self.config.get("curriculum") or {})
        if not options.enabled or not _is_for_training(self.original_data_files, self.config):
            return
        self.curriculum = _new_curriculum(self.dataframe, options, self.config)
        _training_curricula[:] = [self.curriculum]
        # verl's dataloader saves the state of a dataset with these two methods in data.pt, and restores it.
        self.state_dict, self.load_state_dict = self.curriculum.state_dict, self.curriculum.load_state_dict

    def _read_files_and_tokenize(self) -> None:
        """Read the files as verl does, but refuse a file without rows.

        Raises:
            DataError: If a file has no rows.
        """
        for file in self.data_files:
            if file.endswith(".parquet") and pyarrow.parquet.read_metadata(file).num_rows == 0:
                raise DataError(
                    f"{file} holds no rows: raise --validation-share of `verl-pivot select`, or set data.val_files"
                )
        super()._read_files_and_tokenize()

    def maybe_filter_out_long_prompts(self, dataframe: datasets.Dataset = None) -> datasets.Dataset:
        """Refuse pivots with prompts that are too long, since a state must not be cut in training.

        Raises:
            DataError: If a pivot's prompt is longer than `data.max_prompt_length`, or rows have a part of the columns
                of pivots.
        """
        if "expert" not in dataframe.column_names:
            return super().maybe_filter_out_long_prompts(dataframe)
        if problem := problem_of_columns(dataframe.column_names):
            raise DataError(f"{', '.join(self.data_files)} {problem}")
        lengths = [length for length in dataframe["num_prompt_tokens"] if length is not None]
        longest = max(lengths, default=0)
        if longest > self.max_prompt_length:
            raise DataError(
                f"{', '.join(self.data_files)} holds a prompt of {longest} tokens but data.max_prompt_length is "
                f"{self.max_prompt_length}: raise it, or write the file again with "
                f"`verl-pivot select --max-prompt-tokens {self.max_prompt_length}`"
            )
        return dataframe

    def _build_messages(self, example: dict[str, Any], key: str) -> Any:
        if example.get("expert") is None:
            return super()._build_messages(example, key)
        return json.loads(example[key])

    def __getitem__(self, item: int) -> dict[str, Any]:
        if self.curriculum is not None:
            item = self.curriculum.draw()
        row: dict[str, Any] = super().__getitem__(item)
        if row.get("expert") is not None:
            row["index"] = item
            row["agent_name"] = self.config.get("pivot_agent_name", AGENT_NAME)
            row["reward_model"] = {"style": "rule", "ground_truth": row["expert"]}
        return row


def _is_for_training(files: Sequence[str], config: DictConfig) -> bool:
    """Whether verl builds the training dataset with these files; verl itself does not say.

    Raises:
        ConfigError: If training and validation use the same files.
    """
    train_files, val_files = _as_list(config.train_files), _as_list(config.val_files)
    if train_files == val_files:
        raise ConfigError(
            "with pivot.curriculum.enabled=True data.val_files must differ from data.train_files, or the curriculum "
            "would draw the rows of validation too"
        )
    return list(files) == train_files


def _as_list(files: str | ListConfig) -> list[str]:
    return [files] if isinstance(files, str) else list(files)


def _new_curriculum(rows: datasets.Dataset, options: CurriculumOptions, config: DictConfig) -> Curriculum:
    if config.dataloader_num_workers != 0:
        raise ConfigError(
            "pivot.curriculum.enabled=True needs data.dataloader_num_workers=0, since other processes would not see "
            f"the rewards, got {config.dataloader_num_workers}"
        )
    if "reward_var" not in rows.column_names:
        raise ConfigError("pivot.curriculum.enabled=True needs data.train_files that `verl-pivot select` wrote")
    places = zip(rows["trajectory_id"], rows["turn_index"], strict=True)
    return Curriculum(
        [PivotRecord(mean, variance) for mean, variance in zip(rows["reward_mean"], rows["reward_var"], strict=True)],
        options,
        identity=hashlib.sha256(repr(list(places)).encode()).hexdigest(),
        seed=config.seed or 0,
        shuffle=config.shuffle,
        batch_size=config.train_batch_size,
    )
