"""A dump of rollouts (`<rollout_data_dir>/tools/<step>.jsonl`) -> conversations that a simulation rolls out again."""

from collections import defaultdict
from pathlib import Path

from verl_pivot.data.rollout_dumps import read_rollouts
from verl_pivot.data.rollout_records import RolloutRecord
from verl_pivot.errors import DataError
from verl_pivot.routing.simulator.workload import SimulatedConversation, SimulatedTurn


def read_conversations(path: Path) -> list[SimulatedConversation]:
    """In the order of the dump; rollouts of a prompt share a group.

    What tools gave back counts without the template's tokens around it, and their calls as one after the other.

    Raises:
        DataError: If a line is no record of a rollout, or there is none.
    """
    groups: dict[str, int] = {}
    conversations = [
        SimulatedConversation(
            id=number,
            group=groups.setdefault(rollout.group, len(groups)),
            prompt_tokens=rollout.prompt_tokens,
            turns=_turns(rollout),
        )
        for number, rollout in enumerate(rollout for rollout in read_rollouts(path) if rollout.turn_tokens)
    ]
    if not conversations:
        raise DataError(f"{path} holds no rollouts: give a file of the folder 'tools' in trainer.rollout_data_dir")
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
