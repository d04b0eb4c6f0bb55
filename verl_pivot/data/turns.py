"""Trajectory -> Turn: every assistant turn of the expert is a pivot candidate (PivotRL, section 3.1)."""

import hashlib
from dataclasses import replace
from typing import Literal, TypeAlias

from verl_pivot.data.json_values import encode_json
from verl_pivot.types import Json, JsonObject, Message, Role, Trajectory, Turn

Split: TypeAlias = Literal["train", "validation"]

PROVENANCE = "verl_pivot"
"""Key of a trajectory's metadata under which the import records where the row came from."""


def turns(trajectory: Trajectory) -> tuple[Turn, ...]:
    """The pivot candidates of one trajectory: the state is everything before the turn, parallel calls are one action.

    An assistant message that opens the conversation has no state, so it is no candidate; `Turn.index` counts it.
    """
    positions = [i for i, message in enumerate(trajectory.messages) if message.role is Role.ASSISTANT]
    numbered = list(enumerate(positions))
    return tuple(
        Turn(
            trajectory_id=trajectory.id,
            index=index,
            state=trajectory.messages[:position],
            expert=trajectory.messages[position],
            tools=trajectory.tools,
            verifier=trajectory.verifier,
            verifier_options=trajectory.verifier_options,
            metadata=trajectory.metadata,
        )
        for index, position in (numbered if trajectory.expert_turns == "all" else numbered[-1:])
        if position > 0
    )


def split_of(trajectory_id: str, *, seed: int, validation_share: float) -> Split:
    """The split of a trajectory and all its turns; the same in every run and on every machine.

    Neighbouring turns share nearly all of their state, so a split by turns would leak states into validation.
    """
    digest = hashlib.sha256(f"{seed}:{trajectory_id}".encode()).digest()
    return "validation" if int.from_bytes(digest[:8]) < validation_share * 2**64 else "train"


def split_key(trajectory_id: str, metadata: JsonObject) -> str:
    """Key by which `split_of` splits: the task if the source names one, as its trajectories are alike, else the id."""
    provenance = metadata.get(PROVENANCE)
    key = provenance.get("split_by") if isinstance(provenance, dict) else None
    return key if isinstance(key, str) else trajectory_id


def fingerprints(trajectory: Trajectory) -> tuple[bytes, ...]:
    """[num_turns] digests of `turns(trajectory)`, equal for turns with equal state, tools, verifier and action.

    Ids of calls are random and the expert's thinking is never compared, so neither counts.
    """
    before = hashlib.sha256(_framed([trajectory.verifier, trajectory.verifier_options, list(trajectory.tools)]))
    digests = []
    for position, message in enumerate(trajectory.messages):
        framed = _framed(_without_ids(message))
        if message.role is Role.ASSISTANT and position > 0:
            action = before.copy()
            is_plain = message.reasoning is None
            action.update(
                b"action\n" + (framed if is_plain else _framed(_without_ids(replace(message, reasoning=None))))
            )
            digests.append(action.digest())
        before.update(framed)
    return tuple(digests if trajectory.expert_turns == "all" else digests[-1:])


def _framed(value: Json) -> bytes:
    return encode_json(value, sort_keys=True).encode() + b"\n"


def _without_ids(message: Message) -> JsonObject:
    plain = message.as_dict()
    plain.pop("tool_call_id", None)
    if message.tool_calls:
        plain["tool_calls"] = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    return plain
