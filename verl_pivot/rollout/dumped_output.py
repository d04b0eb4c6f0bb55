"""Row of an agent loop and its turns -> the row with its part of a line of the dump, if dumps are written."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from omegaconf import DictConfig

from verl_pivot.data.rollout_dumps import DumpedTurn, RecordedTexts, encode_prompt, encode_transcript
from verl_pivot.data.rollout_records import RolloutRecord
from verl_pivot.rewards.turn_rewards import TurnRewardOutput
from verl_pivot.rollout.settings import recorded_texts
from verl_pivot.types import JsonObject


def add_transcript(
    output: TurnRewardOutput,
    config: DictConfig,
    columns: Mapping[str, Any],
    record: RolloutRecord | None,
    turns: Sequence[DumpedTurn],
    prompt: Sequence[JsonObject],
) -> None:
    """Give a row its part of the dump's line, with texts unless `pivot.record` leaves all of them out.

    Args:
        output: The row, whose mask and ends of turns go into the line.
        config: verl's whole config.
        columns: Columns of the dataset's row.
        record: Record of the rollout; None in all but the last row of a rollout that has several.
        turns: [num_turns] texts of the policy and of its tools.
        prompt: Messages that the first turn follows.
    """
    if recorded_texts(config) is RecordedTexts.CALLS:
        turns = [msgspec.structs.replace(turn, text=None, observations=()) for turn in turns]
    else:
        output.prompt_messages = encode_prompt(prompt)
    output.transcript = encode_transcript(columns, record, turns, output.response_mask, output.turn_ends)
