"""Conversation: what the reader of a foreign format finds in one row; and named tuples that several readers use."""

from dataclasses import dataclass, field
from typing import NamedTuple

from verl_pivot.types import ExpertTurns, Json, JsonObject, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages, ids and outcome that a reader found in one row; the rest of the import is the same for every format.

    Example:
        Conversation(messages=(question, call, result, answer), id="run-17", columns=frozenset({"id", "messages"}))
    """

    messages: tuple[Message, ...]
    """Messages in their order. Text and calls of one assistant turn may be several messages: they are joined later."""
    tools: Json = None
    """Schemas as the row has them, a list or its JSON string; None takes those of `--tools`."""
    id: str | None = None
    """Id of the trajectory; None derives it from task and trial, or from a digest of the content."""
    task: str | None = None
    """Id of the task. All trajectories of a task go into the same split, training or validation."""
    trial: str | None = None
    """Number or id of the attempt at the task."""
    passed: bool | None = None
    """Whether the outcome was right; None if the row does not say."""
    expert_turns: ExpertTurns = "all"
    """Assistant turns that are the expert's; "last" if the row gives only one action with its state, or positions among
    the assistant turns, from 0, if the row names them."""
    metadata: JsonObject = field(default_factory=dict)
    """Data that the verifier needs beside the messages."""
    verifier: str = ""
    """Verifier for rows of this kind if neither the row nor the import names one; empty if the format suggests none."""
    notes: JsonObject = field(default_factory=dict)
    """Columns that the provenance keeps, such as the row's ids and its reward."""
    scores: tuple[float, ...] = ()
    """[num_samples] scores of a reference policy at the last turn, if the row was published with them."""
    columns: frozenset[str] = frozenset()
    """Columns that the reader used; the report lists the others as ignored."""


class MessagesAndTools(NamedTuple):
    """Messages of a conversation without any text notation of calls, and the schemas found on the way."""

    messages: list[Message]
    tools: Json
    """Schemas as the row or its prompt has them; None if neither has any."""


class PromptAndTools(NamedTuple):
    """A system prompt without its list of tools, and the schemas of that list."""

    text: str
    tools: list[Json] | None
    """Schemas that the prompt lists; None if it lists none."""
