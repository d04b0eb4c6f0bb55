"""Drawn conversations as real engines see them: token ids, turn by turn through verl's client."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any, NamedTuple
from uuid import uuid4

from verl_pivot.routing.client import end_conversation, new_request_id
from verl_pivot.routing.simulator.workload import SimulatedConversation, SimulatedTurn


class Played(NamedTuple):
    """One turn."""

    sent: list[int]
    """Prompt and conversation until it."""
    output: Any
    """verl's TokenOutput."""
    observed: list[int]
    """What its tools gave back."""


async def play(
    client: Any, conversation: SimulatedConversation, sampling_params: dict[str, Any], *, reports_end: bool
) -> AsyncIterator[Played]:
    """One conversation, turn by turn, as an agent loop plays it through verl's client."""
    name = new_request_id() if reports_end else uuid4().hex
    ids = prompt_of(conversation)
    for number, turn in enumerate(conversation.turns):
        params = {**sampling_params, "max_new_tokens": turn.generated}
        output = await client.generate(name, prompt_ids=list(ids), sampling_params=params)
        observed = tokens(f"observation {conversation.id} {number}", turn.observed)
        yield Played(ids, output, observed)
        ids = ids + output.token_ids + observed
        await asyncio.sleep(turn.wait_seconds)
    if reports_end:
        await end_conversation(client, name, len(ids) - conversation.prompt_tokens, None)


def to_json(conversation: SimulatedConversation) -> str:
    """For a dataset's row."""
    return json.dumps(asdict(conversation))


def from_json(text: str) -> SimulatedConversation:
    """What `to_json` wrote."""
    values = json.loads(text)
    return SimulatedConversation(**{**values, "turns": tuple(SimulatedTurn(**turn) for turn in values["turns"])})


def prompt_of(conversation: SimulatedConversation) -> list[int]:
    """[prompt_tokens] that the rollouts of a group share."""
    return tokens(f"prompt {conversation.group} of {conversation.prompt_tokens}", conversation.prompt_tokens)


def tokens(key: str, num: int) -> list[int]:
    """The same for the same key; ids that every tiny model has."""
    rng = random.Random(key)
    return [rng.randrange(10, 250) for _ in range(num)]
