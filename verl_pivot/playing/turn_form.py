"""TurnForm: a player's turns and their observations -> separate messages, or one message that holds all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from verl_pivot.data.forged_turns import without_chat_tokens
from verl_pivot.playing.player import PlayerTurn
from verl_pivot.types import Message, Role, ToolCall


class TurnForm(Protocol):
    """How turns and observations become the messages that the player reads."""

    @property
    def observation_template(self) -> str:
        """Text around each observation."""
        ...

    @property
    def retry_message(self) -> str:
        """Observation after a turn with neither a call nor an answer."""
        ...

    def is_answer(self, turn: PlayerTurn) -> bool:
        """Whether a turn is the player's answer, which ends the conversation."""
        ...

    def with_turn(self, messages: Sequence[Message], turn: PlayerTurn) -> list[Message]:
        """The messages with a turn added as a new message, or appended to the last message."""
        ...

    def with_observations(self, messages: Sequence[Message], turn: PlayerTurn, texts: Sequence[str]) -> list[Message]:
        """The messages with the observations after a turn added.

        Args:
            messages: Messages that end with the turn.
            turn: The turn whose calls gave the observations.
            texts: [num_calls] observations, or the retry message alone.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageForm:
    """Each turn is an assistant message. Each observation is a tool message, or all of a turn are one user message."""

    answer_tag: str | None = None
    """Tag that an answer must contain; None if each turn without a call is an answer."""
    retry_message: str = ""
    observation_template: str = "{text}"
    are_users: bool = False
    """Whether one user message holds all observations of a turn."""

    def is_answer(self, turn: PlayerTurn) -> bool:
        return not turn.calls and (self.answer_tag is None or f"</{self.answer_tag}>" in turn.raw_text)

    def with_turn(self, messages: Sequence[Message], turn: PlayerTurn) -> list[Message]:
        return [*messages, turn.message]

    def with_observations(self, messages: Sequence[Message], turn: PlayerTurn, texts: Sequence[str]) -> list[Message]:
        shown = [without_chat_tokens(text) for text in texts]  # as training does with the policy's special tokens
        if self.are_users or not turn.calls or not turn.is_readable:
            return [*messages, Message(role=Role.USER, content="\n".join(shown))]
        return [
            *messages,
            *(
                Message(role=Role.TOOL, content=text, tool_call_id=call.id, name=call.name)
                for text, call in zip(shown, turn.calls, strict=True)
                if isinstance(call, ToolCall)
            ),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class SameMessageForm:
    """All turns and observations are in one assistant message, which the player continues (Search-R1)."""

    answer_tag: str | None
    retry_message: str
    observation_template: str

    def is_answer(self, turn: PlayerTurn) -> bool:
        return not turn.calls and (self.answer_tag is None or f"</{self.answer_tag}>" in turn.raw_text)

    def with_turn(self, messages: Sequence[Message], turn: PlayerTurn) -> list[Message]:
        return with_text(messages, turn.raw_text)

    def with_observations(self, messages: Sequence[Message], turn: PlayerTurn, texts: Sequence[str]) -> list[Message]:
        return with_text(messages, "".join(texts))


def with_text(messages: Sequence[Message], text: str) -> list[Message]:
    """The messages with a text appended to the last message, or as a new message if the last is no assistant's."""
    if messages and messages[-1].role is Role.ASSISTANT:
        return [*messages[:-1], Message(role=Role.ASSISTANT, content=messages[-1].content + text)]
    return [*messages, Message(role=Role.ASSISTANT, content=text)]
