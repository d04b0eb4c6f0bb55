"""Writer: what writes text for synthesis, a model behind an endpoint or a function of Python."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from verl_pivot.engines.chat import AnswerFormat, ChatAnswer
from verl_pivot.types import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterQuestion:
    """One request to a writer; equal questions have equal answers, of which one is asked for.

    Example:
        WriterQuestion(messages=({"role": "user", "content": "Write a request."},), seed=7, max_tokens=512)
    """

    messages: tuple[JsonObject, ...]
    """The conversation so far, in OpenAI's format."""
    seed: int
    max_tokens: int
    """Most tokens of the answer."""
    temperature: float = 1.0
    tools: tuple[JsonObject, ...] = ()
    """Schemas of the tools that the writer may call, where it plays the policy."""
    schema: JsonObject | None = None
    """JSON schema of the answer; None for an answer in free text."""
    logprobs: bool = False
    extra: JsonObject = field(default_factory=dict)
    """Other keys of the request."""


class Writer(Protocol):
    """Who answers questions. An implementation sends nothing twice by itself, and keeps no state between questions.

    `EndpointWriter` asks a model, `ProgramWriter` calls a function of the user.
    """

    @property
    def name(self) -> str:
        """Name of the model, or of the function."""
        ...

    @property
    def answer_format(self) -> AnswerFormat:
        """How it is told the form of a structured answer."""
        ...

    async def answer(self, question: WriterQuestion) -> ChatAnswer:
        """The answer to one question.

        Raises:
            EngineError: If the endpoint cannot be reached or keeps failing.
            ConfigError: If the endpoint refuses the request itself.
            UserCodeError: If the user's function raises or returns no answer.
        """
        ...

    async def close(self) -> None: ...


WRITER = "writer"
"""Role that plays every other role for which no writer is named."""
Messages = Sequence[JsonObject]
"""Messages in OpenAI's format."""
