"""The contract of a player, which takes the assistant's turns: messages and tools -> PlayerTurn."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from verl_pivot.types import JsonObject, Malformed, Message, Role, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayerTurn:
    """One turn of a player.

    Example:
        PlayerTurn(content="It is on its way.", raw_text="It is on its way.")
    """

    content: str = ""
    """Text without thinking and calls."""
    reasoning: str | None = None
    """Thinking of the model; None if there is none."""
    calls: tuple[ToolCall | Malformed, ...] = ()
    raw_text: str = ""
    """The whole turn as text, without thinking and with its calls as `<tool_call>` blocks."""
    ended: bool = True
    """Whether the player ended the turn by itself; False if it was cut off."""
    failure: str = ""
    """Failure of the system because of which the player gave no turn; "" if it gave one."""
    num_prompt_tokens: int = 0
    """Tokens of the conversation before the turn, as the endpoint counts them; 0 if it does not count."""
    num_tokens: int = 0
    """Tokens of the turn, as the endpoint counts them; 0 if it does not count."""
    num_empty_answers: int = 0
    """Number of answers without a token before this one; the request was repeated after each."""

    @property
    def is_readable(self) -> bool:
        """Whether each call of the turn could be read."""
        return all(isinstance(call, ToolCall) for call in self.calls)

    @property
    def message(self) -> Message:
        """The turn as a message. A turn with a call that cannot be read stays text."""
        if not self.is_readable:
            return Message(role=Role.ASSISTANT, content=self.raw_text, reasoning=self.reasoning)
        calls = tuple(call for call in self.calls if isinstance(call, ToolCall))
        return Message(role=Role.ASSISTANT, content=self.content, reasoning=self.reasoning, tool_calls=calls)

    def with_ids(self, turn: int) -> "PlayerTurn":
        """A copy in which each call has an id, which the message with the call's result repeats."""
        calls = (
            replace(call, id=call.id or f"call_{turn}_{number}") if isinstance(call, ToolCall) else call
            for number, call in enumerate(self.calls)
        )
        return replace(self, calls=tuple(calls))


def call_as_text(name: str, arguments: str) -> str:
    """A call in the Hermes format, which policies write and verifiers read, from JSON text of its arguments."""
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'


class Player(Protocol):
    """A model behind an endpoint, or a person."""

    @property
    def name(self) -> str:
        """Name of the model, or "human"."""
        ...

    async def take_turn(
        self, messages: Sequence[Message], tools: Sequence[JsonObject], max_tokens: int, *, sample: int
    ) -> PlayerTurn:
        """The next turn of a conversation.

        Args:
            messages: The conversation so far.
            tools: Schemas of the tools that the player may call.
            max_tokens: Maximum number of tokens of the turn.
            sample: Number of the conversation among those that begin with the same prompt, for its seed.

        Raises:
            EngineError: If the endpoint cannot be reached or keeps failing.
            ConfigError: If the endpoint refuses every request.
            PlayerLeftError: If the person quits, or the input ends.
        """
        ...

    async def take_step(self, messages: Sequence[Message], max_tokens: int, *, sample: int) -> PlayerTurn:
        """The next step of a conversation in a notebook, as text with `<think>` and `<code>`.

        Raises the same errors as `take_turn`.

        Args:
            messages: The conversation so far, as the player reads it.
            max_tokens: Maximum number of tokens of the step.
            sample: Number of the conversation among those that begin with the same prompt, for its seed.
        """
        ...

    async def close(self) -> None: ...
