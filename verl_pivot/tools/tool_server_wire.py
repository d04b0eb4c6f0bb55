"""Bodies of verl-tool's protocol (arXiv:2509.01055): actions of trajectories -> observations.

Source: `ActionRequest` and `AgentResponse` of TIGER-AI-Lab/verl-tool's `verl_tool/servers/tool_server.py`.
"""

from typing import Any

import msgspec

from verl_pivot.types import JsonObject


class ActionBody(msgspec.Struct, kw_only=True):
    """Body of a request; its lists have one entry for each action."""

    trajectory_ids: list[str]
    actions: list[str]
    """Whole turns of the policy, up to the text that ended them."""
    extra_fields: list[JsonObject]
    finish: list[bool]
    """Whether the trajectory is over and its state may go; the action is then empty."""
    is_last_step: list[bool]


class WireObservation(msgspec.Struct, kw_only=True):
    """An observation that is no plain text."""

    obs: str
    error: Any = None
    """What failed in the server, where something did."""
    image: Any = None
    audio: Any = None


class ObservedAnswer(msgspec.Struct, kw_only=True):
    """Answer to a request; its lists have one entry for each action."""

    observations: list[str | WireObservation]
    dones: list[bool]
    """Whether the trajectory ends."""
    valids: list[bool]
    """Whether the action was one that a tool could read."""
