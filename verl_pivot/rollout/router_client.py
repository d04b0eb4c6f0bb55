"""What our agent loops tell the router, where it is ours: that a conversation ends, and how long it was."""

from typing import Any

from verl_pivot.routing.accounts import Journey


async def end_conversation(
    client: Any, request_id: str, response_tokens: int, global_step: int | None
) -> Journey | None:
    """Tell it; what scheduling cost the conversation, or None from a router that keeps no account.

    Args:
        client: verl's, which holds the router's actor.
        request_id: Of all turns of the conversation (`routing.request_ids`).
        response_tokens: Sampled and observed.
        global_step: Of the newest weights that sampled any of it, if the engine told.
    """
    tell = getattr(getattr(client, "_load_balancer", None), "end_conversation", None)
    if tell is None:
        return None
    journey: Journey = await tell.remote(request_id, response_tokens, global_step)
    return journey
