"""A dump of rollouts (`<rollout_data_dir>/tools/<step>.jsonl`) -> conversations that a simulation rolls out again."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ValidationError

from verl_pivot.errors import DataError
from verl_pivot.routing.workload import Conversation, Turn


class _Call(BaseModel):
    turn: int
    num_tokens: int
    seconds: float


class _Record(BaseModel):
    """What is read of a line that `rollout.rollout_record.write_records` wrote."""

    uid: str
    prompt_tokens: int
    turn_tokens: list[int]
    calls: list[_Call]


def read_conversations(path: Path) -> list[Conversation]:
    """In the order of the dump; rollouts of a prompt share a group.

    What tools gave back counts without the template's tokens around it, and their calls as one after the other.

    Raises:
        DataError: If a line is no record of a rollout, or there is none.
    """
    groups: dict[str, int] = {}
    conversations = [
        Conversation(
            id=number,
            group=groups.setdefault(record.uid.split("_")[0], len(groups)),
            prompt_tokens=record.prompt_tokens,
            turns=_turns(record),
        )
        for number, record in enumerate(_records(path))
    ]
    if not conversations:
        raise DataError(f"{path} holds no rollouts: give a file of the folder 'tools' in trainer.rollout_data_dir")
    return conversations


def _records(path: Path) -> Iterator[_Record]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        try:
            record = _Record.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise DataError(
                f"{path}, line {number}: {place}: {first['msg']}; give a file that this version wrote into the folder "
                "'tools' of trainer.rollout_data_dir"
            ) from error
        if record.turn_tokens:
            yield record


def _turns(record: _Record) -> tuple[Turn, ...]:
    observed: dict[int, int] = defaultdict(int)
    seconds: dict[int, float] = defaultdict(float)
    for call in record.calls:
        observed[call.turn] += call.num_tokens
        seconds[call.turn] += call.seconds
    last = len(record.turn_tokens) - 1
    return tuple(
        Turn(
            generated=max(1, tokens),
            observed=observed[number] if number < last else 0,
            wait_seconds=seconds[number] if number < last else 0.0,
        )
        for number, tokens in enumerate(record.turn_tokens)
    )
