"""Trajectory -> Turn: every assistant turn of the expert is a pivot candidate (PivotRL, section 3.1)."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, TypeAlias

from verl_pivot.data.json_values import BadRowError, encode_json
from verl_pivot.errors import DataError
from verl_pivot.types import Json, JsonObject, Message, Role, Trajectory, Turn

Split: TypeAlias = Literal["train", "validation"]

PROVENANCE = "verl_pivot"
"""Key of a trajectory's metadata under which the import records where the row came from."""


def turns(trajectory: Trajectory) -> tuple[Turn, ...]:
    """The pivot candidates of one trajectory: the state is everything before the turn, parallel calls are one action.

    An assistant message that opens the conversation has no state, so it is no candidate; `Turn.index` counts it.

    Raises:
        DataError: If two assistant messages follow each other, which `verl-pivot import` refuses.
    """
    positions = [i for i, message in enumerate(trajectory.messages) if message.role is Role.ASSISTANT]
    try:
        return tuple(
            Turn(
                trajectory_id=trajectory.id,
                index=index,
                state=trajectory.messages[: positions[index]],
                expert=trajectory.messages[positions[index]],
                tools=trajectory.tools,
                verifier=trajectory.verifier,
                verifier_options=trajectory.verifier_options,
                metadata=trajectory.metadata,
            )
            for index in trajectory.expert_indices
            if positions[index] > 0
        )
    except ValueError as error:
        raise DataError(f"{error}; drop such trajectories with `verl-pivot filter`, or import them again") from error


def split_of(trajectory_id: str, *, seed: int, validation_share: float) -> Split:
    """Split of a trajectory with all its turns; it depends only on the arguments.

    Neighbouring turns share nearly all of their state, so a split by turns would leak states into validation.
    """
    digest = hashlib.sha256(f"{seed}:{trajectory_id}".encode()).digest()
    return "validation" if int.from_bytes(digest[:8]) < validation_share * 2**64 else "train"


def split_key(trajectory_id: str, metadata: JsonObject) -> str:
    """Key for `split_of`: the task if the import recorded one, since trajectories of a task are alike, else the id."""
    provenance = metadata.get(PROVENANCE)
    key = provenance.get("split_by") if isinstance(provenance, dict) else None
    return key if isinstance(key, str) else trajectory_id


def with_split_key(metadata: JsonObject, name: str) -> JsonObject:
    """The metadata of a trajectory that is made for a task: it goes into the split of the task's other trajectories.

    Args:
        metadata: Metadata of the task, whose provenance stays.
        name: Name of the task, by which the split is drawn if the metadata has no key for it.
    """
    known = metadata.get(PROVENANCE)
    provenance = known if isinstance(known, dict) else {}
    return {**metadata, PROVENANCE: {**provenance, "split_by": split_key(name, metadata)}}


def fingerprints(trajectory: Trajectory) -> tuple[bytes, ...]:
    """[num_turns] digests of `turns(trajectory)`, equal for turns with equal state, tools, verifier and action.

    Ids of calls do not count, since they are random, nor does the expert's thinking at the turn, which verifiers never
    compare.

    Raises:
        DataError: If a text cannot be written as UTF-8, which `verl-pivot import` refuses.
    """
    try:
        return tuple(_digests(trajectory))
    except BadRowError as error:
        raise DataError(f"trajectory {trajectory.id!r}: {error}; import it again, which refuses such rows") from error


def _digests(trajectory: Trajectory) -> Iterator[bytes]:
    before = hashlib.sha256(_json_line([trajectory.verifier, trajectory.verifier_options, list(trajectory.tools)]))
    chosen = frozenset(trajectory.expert_indices)
    index = -1
    for position, message in enumerate(trajectory.messages):
        line = _json_line(_without_ids(message))
        index += message.role is Role.ASSISTANT
        if message.role is Role.ASSISTANT and position > 0 and index in chosen:
            action = before.copy()
            without_thinking = replace(message, reasoning=None)
            action.update(
                b"action\n" + (line if message.reasoning is None else _json_line(_without_ids(without_thinking)))
            )
            yield action.digest()
        before.update(line)


def _json_line(value: Json) -> bytes:
    return encode_json(value, sort_keys=True).encode() + b"\n"


def _without_ids(message: Message) -> JsonObject:
    plain = message.as_dict()
    plain.pop("tool_call_id", None)
    if message.tool_calls:
        plain["tool_calls"] = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    return plain
