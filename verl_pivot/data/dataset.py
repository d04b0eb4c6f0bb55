"""pivots.parquet -> the rows that verl's trainer hands to the agent loop (`data.custom_cls`)."""

import json
from typing import Any

import datasets
import pyarrow.parquet
from verl.utils.dataset.rl_dataset import RLHFDataset

from verl_pivot.data.pivots import AGENT_NAME
from verl_pivot.errors import DataError


class PivotDataset(RLHFDataset):  # type: ignore[misc]  # verl is untyped here
    """verl's dataset over pivots; rows of other files, such as your own benchmark's, stay as verl reads them."""

    def _read_files_and_tokenize(self) -> None:
        """Read as verl does, but tell of an empty file in a sentence.

        Raises:
            DataError: If a file has no rows.
        """
        for file in self.data_files:
            if file.endswith(".parquet") and pyarrow.parquet.read_metadata(file).num_rows == 0:
                raise DataError(
                    f"{file} holds no rows: raise --validation-share of `verl-pivot select`, or other data.val_files"
                )
        super()._read_files_and_tokenize()

    def maybe_filter_out_long_prompts(self, dataframe: datasets.Dataset = None) -> datasets.Dataset:
        """Refuse what select should have refused: an overlong state is never cut in training.

        Raises:
            DataError: If a pivot's prompt is longer than `data.max_prompt_length`.
        """
        if "expert" not in dataframe.column_names:
            return super().maybe_filter_out_long_prompts(dataframe)
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
        row: dict[str, Any] = super().__getitem__(item)
        if row.get("expert") is not None:
            row["index"] = item
            row["agent_name"] = AGENT_NAME
            row["reward_model"] = {"style": "rule", "ground_truth": row["expert"]}
        return row
