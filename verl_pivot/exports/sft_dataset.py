"""TrajectoryDataset: parquet of `exports.trajectory_rows` -> the rows that verl's SFT trainer tokenizes."""

import json
from typing import Any

from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset


class TrajectoryDataset(MultiTurnSFTDataset):  # type: ignore[misc]  # verl is untyped here
    """verl's multi-turn dataset for files whose messages and tools are JSON strings; use it as `data.custom_cls`.

    Parquet structs would give every tool and message the keys of all others, with nulls as values.

    Example:
        data.custom_cls.path=pkg://verl_pivot.exports.sft_dataset data.custom_cls.name=TrajectoryDataset
    """

    def _read_files_and_process(self) -> None:
        super()._read_files_and_process()
        # An empty list becomes None, since chat templates print a heading over an empty list of tools.
        self.messages: list[Any] = [json.loads(text) for text in self.messages]
        self.tools: list[Any] = [json.loads(text) or None for text in self.tools]

    def _build_messages(self, example: dict[str, Any]) -> Any:
        return super()._build_messages({**example, self.messages_key: json.loads(example[self.messages_key])})
