"""Messages of our agent loops to the router through verl's client: request ids, and the ends of conversations."""

from typing import Any
from uuid import uuid4

from verl_pivot.data.rollout_records import RoutingCost

REPORTS_END = "+reports-end"
"""Ending of the request ids of conversations whose agent loop calls `end_conversation`."""


_ONLY_TURN = "+only-turn"
"""Part of the request ids of conversations that have one turn."""


def new_request_id(*, is_only_turn: bool = False) -> str:
    """A new request id for all turns of one conversation, whose agent loop must call `end_conversation` when it ends.

    For other routers than ours it is a request id like any other.

    Args:
        is_only_turn: Whether the conversation has one turn, so that the router need not keep its KV cache for others.
    """
    return uuid4().hex + (_ONLY_TURN if is_only_turn else "") + REPORTS_END


def is_only_turn(request_id: str) -> bool:
    """Whether the agent loop of this conversation has said that it has one turn."""
    return request_id.endswith(_ONLY_TURN + REPORTS_END)


def reports_end(request_id: str) -> bool:
    """Whether the agent loop of this conversation will call `end_conversation`; verl's own loops do not."""
    return request_id.endswith(REPORTS_END)


async def end_conversation(
    client: Any, request_id: str, response_tokens: int | None, global_step: int | None
) -> RoutingCost | None:
    """Report that a conversation has ended, which frees its place on the engine.

    Args:
        client: verl's `LLMServerClient`, which holds the handle of the router's actor.
        request_id: Id of the conversation, from `new_request_id`.
        response_tokens: Length of the response, observations of tools included; None where the rollout failed.
        global_step: Training step of the newest weights that sampled any of the response; None if unknown.

    Returns:
        Cost of routing the conversation; None if the router is not ours, or its actor has died.
    """
    router_method = getattr(getattr(client, "_load_balancer", None), "end_conversation", None)
    if router_method is None:
        return None
    cost: RoutingCost | None = await router_method.remote(request_id, response_tokens, global_step)
    return cost
