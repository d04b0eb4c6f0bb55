"""Ids of requests: what our agent loops tell a router that verl does not."""

from uuid import uuid4

_TELLS_END = "+tells-end"


def new_request_id() -> str:
    """Of one conversation, whose end its agent loop will tell; any router may take it for an id like others."""
    return uuid4().hex + _TELLS_END


def tells_end(request_id: str) -> bool:
    """Whether somebody will say when the conversation is over; verl's own loops do not."""
    return request_id.endswith(_TELLS_END)
