"""Conversations of the routing simulator, played on real engines: token ids, turn by turn through verl's client."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any, NamedTuple
from uuid import uuid4

from verl_pivot.routing.client import end_conversation, new_request_id
from verl_pivot.routing.simulator.workload import SimulatedConversation, SimulatedTurn


class PlayedTurn(NamedTuple):
    """One turn of a conversation that an engine has served."""

    sent: list[int]
    """Token ids of the prompt and of all turns before this one."""
    output: Any
    """verl's TokenOutput."""
    observed: list[int]
    """Token ids of the results of the tools."""


async def play(
    client: Any, conversation: SimulatedConversation, sampling_params: dict[str, Any], *, reports_end: bool
) -> AsyncIterator[PlayedTurn]:
    """Play one conversation through verl's client, as an agent loop does; yields each turn when it is served.

    Args:
        client: verl's LLMServerClient.
        conversation: Lengths and waits of the turns.
        sampling_params: Parameters of every request; each turn adds its own `max_new_tokens`.
        reports_end: Whether to tell the router that the conversation has ended, which verl's own loops do not.
    """
    name = new_request_id() if reports_end else uuid4().hex
    ids = prompt_of(conversation)
    for number, turn in enumerate(conversation.turns):
        params = {**sampling_params, "max_new_tokens": turn.generated}
        output = await client.generate(name, prompt_ids=list(ids), sampling_params=params)
        observed = tokens(f"observation {conversation.id} {number}", turn.observed)
        yield PlayedTurn(ids, output, observed)
        ids = ids + output.token_ids + observed
        await asyncio.sleep(turn.wait_seconds)
    if reports_end:
        await end_conversation(client, name, len(ids) - conversation.prompt_tokens, None)


def to_json(conversation: SimulatedConversation) -> str:
    """Encode a conversation for a row of a dataset."""
    return json.dumps(asdict(conversation))


def from_json(text: str) -> SimulatedConversation:
    """Decode what `to_json` wrote."""
    values = json.loads(text)
    return SimulatedConversation(**{**values, "turns": tuple(SimulatedTurn(**turn) for turn in values["turns"])})


def prompt_of(conversation: SimulatedConversation) -> list[int]:
    """[prompt_tokens] ids of the prompt, which the conversations of a group share."""
    return tokens(f"prompt {conversation.group} of {conversation.prompt_tokens}", conversation.prompt_tokens)


def tokens(key: str, num: int) -> list[int]:
    """[num] token ids that every tiny model has; the same key always gives the same ids."""
    rng = random.Random(key)
    return [rng.randrange(10, 250) for _ in range(num)]
