"""Conversation: what the reader of a foreign format finds in one row."""

from dataclasses import dataclass, field
from typing import Literal

from verl_pivot.types import Json, JsonObject, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a reader finds in one row; the rest of the import is the same for every format.

    Example:
        Conversation(messages=(question, call, result, answer), id="run-17", columns=frozenset({"id", "messages"}))
    """

    messages: tuple[Message, ...]
    """Text and calls of one assistant turn may come as several messages in a row: they are joined later."""
    tools: Json = None
    """Schemas as the row has them, a list or its JSON string; None takes those of `--tools`."""
    id: str | None = None
    """Id of the trajectory; None derives it from task and trial, or from a digest of the content."""
    task: str | None = None
    """What the split follows: trajectories of one task are alike."""
    trial: str | None = None
    passed: bool | None = None
    """Whether the outcome was right; None where the row does not say."""
    expert_turns: Literal["all", "last"] = "all"
    metadata: JsonObject = field(default_factory=dict)
    """What a verifier needs beside the messages."""
    notes: JsonObject = field(default_factory=dict)
    """What the provenance keeps of the row, such as its own names and its reward."""
    scores: tuple[float, ...] = ()
    """Scores of a reference policy's samples at the last turn, where the source was published with them."""
    columns: frozenset[str] = frozenset()
    """Columns that were read; the report names the others."""
