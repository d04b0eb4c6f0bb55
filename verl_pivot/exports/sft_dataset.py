"""TrajectoryDataset: parquet of `exports.trajectory_rows` -> the rows that verl's SFT trainer tokenizes."""

import json
from collections.abc import Collection
from typing import Any

from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

from verl_pivot.exports.trajectory_rows import expert_positions


class _Messages(list[dict[str, Any]]):
    """Messages of one trajectory, with the positions of the messages that are trained."""

    def __init__(self, messages: list[dict[str, Any]], trained: Collection[int]) -> None:
        super().__init__(messages)
        self.trained = trained


class TrajectoryDataset(MultiTurnSFTDataset):  # type: ignore[misc]  # verl is untyped here
    """verl's multi-turn dataset for files whose messages and tools are JSON strings; use it as `data.custom_cls`.

    Parquet structs would give every tool and message the keys of all others, with nulls as values. The loss covers
    only the expert's turns (`Trajectory.expert_turns`).

    Example:
        data.custom_cls.path=pkg://verl_pivot.exports.sft_dataset data.custom_cls.name=TrajectoryDataset
    """

    def _read_files_and_process(self) -> None:
        super()._read_files_and_process()
        # An empty list becomes None, since chat templates print a heading over an empty list of tools.
        self.messages: list[Any] = [json.loads(text) for text in self.messages]
        self.tools: list[Any] = [json.loads(text) or None for text in self.tools]

    def _build_messages(self, example: dict[str, Any]) -> Any:
        messages = json.loads(example[self.messages_key])
        built = super()._build_messages({**example, self.messages_key: messages})
        return _Messages(built, expert_positions(messages, example["expert_turns"]))

    def _process_single_message(self, index: int, message: dict[str, Any], full_message: Any, **others: Any) -> Any:
        ids, loss_mask, *rest = super()._process_single_message(index, message, full_message, **others)
        return (ids, loss_mask if index in full_message.trained else loss_mask * 0, *rest)
