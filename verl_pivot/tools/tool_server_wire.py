"""Bodies of verl-tool's protocol (arXiv:2509.01055): actions of trajectories -> observations.

Source: `ActionRequest` and `AgentResponse` of TIGER-AI-Lab/verl-tool's `verl_tool/servers/tool_server.py`.
"""

from typing import Any

import msgspec


class ActionBody(msgspec.Struct, kw_only=True):
    """Body of a request; its lists have one entry for each action."""

    trajectory_ids: list[str]
    actions: list[str]
    """Whole turns of the policy, up to the text that ended them."""
    extra_fields: list[dict[str, Any]] | None = None
    """Columns of the trajectory's row; here its metadata."""
    finish: list[bool] | None = None
    """Whether the trajectory is over and its state may be dropped; the action is then not run."""
    is_last_step: list[bool] | None = None
    """Whether no action of the trajectory follows."""


class WireObservation(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An observation that is no plain text."""

    obs: str
    invalid_reason: str | None = None
    """Why no tool could read the action."""
    error: Any = None
    """Failure of the server; None if nothing failed."""
    image: Any = None
    audio: Any = None


class ObservedAnswer(msgspec.Struct, kw_only=True):
    """Answer to a request; its lists have one entry for each action."""

    observations: list[str | WireObservation]
    dones: list[bool]
    """Whether the trajectory ends."""
    valids: list[bool]
    """Whether the action was one that a tool could read."""
