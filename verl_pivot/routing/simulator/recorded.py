"""Dump of recorded rollouts (`<rollout_data_dir>/pivot/<step>.jsonl`) -> conversations for a simulation."""

from collections import defaultdict
from pathlib import Path

from verl_pivot.data.rollout_dumps import FOLDER, read_rollouts
from verl_pivot.data.rollout_records import RolloutRecord
from verl_pivot.errors import DataError
from verl_pivot.routing.simulator.workload import SimulatedConversation, SimulatedTurn


def read_conversations(path: Path) -> list[SimulatedConversation]:
    """The conversations of a dump, in its order; rollouts of one prompt share a group.

    Observations count without the tokens that the chat template puts around them. The calls of a turn are taken to have
    run one after the other.

    Raises:
        DataError: If a line is no record of a rollout, or the file has no rollouts.
    """
    groups: dict[str, int] = {}
    conversations: list[SimulatedConversation] = []
    for rollout in read_rollouts(path):
        record = rollout.record
        if record is None or not record.turn_tokens:
            continue
        group = groups.setdefault(rollout.group, len(groups))
        conversations.append(
            SimulatedConversation(
                id=len(conversations), group=group, prompt_tokens=record.prompt_tokens, turns=_turns(record)
            )
        )
    if not conversations:
        raise DataError(f"{path} holds no rollouts: give a file of the folder '{FOLDER}' in trainer.rollout_data_dir")
    return conversations


def _turns(record: RolloutRecord) -> tuple[SimulatedTurn, ...]:
    observed: dict[int, int] = defaultdict(int)
    seconds: dict[int, float] = defaultdict(float)
    for call in record.calls:
        observed[call.turn] += call.num_tokens
        seconds[call.turn] += call.seconds
    last = len(record.turn_tokens) - 1
    return tuple(
        SimulatedTurn(
            generated=max(1, tokens),
            observed=observed[number] if number < last else 0,
            wait_seconds=seconds[number] if number < last else 0.0,
        )
        for number, tokens in enumerate(record.turn_tokens)
    )
