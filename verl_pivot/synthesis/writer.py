"""Writer: writes text for synthesis; a model behind an endpoint, or a Python function."""

import inspect
import os
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final, Protocol

import msgspec

from verl_pivot.data.json_values import BadRowError, encode_json
from verl_pivot.engines.chat import HARMLESS_QUESTION, AnswerFormat, ChatAnswer, ChatClient, response_format
from verl_pivot.engines.retries import Retries
from verl_pivot.errors import ConfigError, PivotError, UserCodeError
from verl_pivot.types import JsonObject
from verl_pivot.user_code import code_error
from verl_pivot.user_modules import load_object, module_path

_MARKERS_OF_MESSAGE: Final = 16
"""Upper bound of the tokens that a chat template puts around one message or tool."""
_REMEDY: Final = "if the context is too long, lower the max_tokens of the step"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterQuestion:
    """One request to a writer; equal questions have equal answers and are asked only once.

    Example:
        WriterQuestion(messages=({"role": "user", "content": "Write a request."},), seed=7, max_tokens=512)
    """

    messages: tuple[JsonObject, ...]
    """The conversation so far, in OpenAI's format."""
    seed: int
    max_tokens: int
    """Maximum number of tokens of the answer."""
    temperature: float = 1.0
    tools: tuple[JsonObject, ...] = ()
    """Schemas of the tools that the writer may call, for example as the policy."""
    schema: JsonObject | None = None
    """JSON schema of the answer; None for an answer in free text."""
    logprobs: bool = False
    """Whether the answer must have the log-probabilities of its tokens."""


class Writer(Protocol):
    """Model or function that answers questions independently of each other, so that equal questions get equal answers.

    `EndpointWriter` asks a model; `ProgramWriter` calls a function of the user.
    """

    @property
    def name(self) -> str:
        """Name of the model, or of the function."""
        ...

    @property
    def identity(self) -> str:
        """The name, and a digest of the model or of the function's file if it can be read; answers are kept by it."""
        ...

    @property
    def answer_format(self) -> AnswerFormat:
        """How the writer is told the form of a structured answer."""
        ...

    def most_tokens(self, question: WriterQuestion) -> int:
        """Upper bound of the tokens of question and answer, which the budget reserves; 0 if the answer is free."""
        ...

    async def answer(self, question: WriterQuestion) -> ChatAnswer:
        """The answer to one question, with one attempt only.

        Raises:
            UnavailableError: If the failure may be temporary, so that a retry can succeed.
            EngineError: If the endpoint's answer is no chat completion.
            ConfigError: If the endpoint refuses the question.
            UserCodeError: If the user's function raises or returns no answer.
        """
        ...

    async def close(self) -> None: ...


class EndpointWriter:
    """A model behind an OpenAI-compatible endpoint, such as SGLang's server."""

    def __init__(
        self, url: str, model: str, *, answer_format: AnswerFormat, retries: Retries, digest: str = ""
    ) -> None:
        """Keep the address; nothing is sent yet.

        Args:
            url: Address of the server, with or without /v1. Its API key is the environment variable OPENAI_API_KEY.
            model: Name under which the server offers the model.
            answer_format: How the server is told the form of a structured answer. Do not use "json_schema" with SGLang
                on a CPU: it ends SGLang's scheduler.
            retries: Timeout of an attempt; its number of attempts is not used.
            digest: Digest of the model, which tells it from another one of the same name; "" if only the name is known.
        """
        self.name = model
        self.identity = f"{model} {digest}" if digest else model
        self.answer_format = answer_format
        api_key = os.environ.get("OPENAI_API_KEY", "none")
        self._client = ChatClient(url, model, api_key, replace(retries, num_attempts=1), remedy=_REMEDY)
        self.has_taken_tools = False
        """Whether an answer to a question with tools is known, also from an earlier run."""

    def most_tokens(self, question: WriterQuestion) -> int:
        """Maximum tokens of the answer, plus one per byte of the request, an upper bound for byte-level BPE."""
        sent = [question.messages, question.tools, question.schema]
        num_markers = _MARKERS_OF_MESSAGE * (len(question.messages) + len(question.tools) + 1)
        return len(msgspec.json.encode(sent)) + num_markers + question.max_tokens

    async def answer(self, question: WriterQuestion) -> ChatAnswer:
        answer = await self._client.ask(question.messages, self._parameters(question), logprobs=question.logprobs)
        self.has_taken_tools = self.has_taken_tools or bool(question.tools)
        return answer

    def harmless(self, question: WriterQuestion) -> WriterQuestion:
        """A question in the same form that no working endpoint refuses.

        It has the tools of the question, unless the endpoint is known to take tools: it may refuse those of one draft.
        """
        tools = () if self.has_taken_tools else question.tools
        return replace(question, messages=HARMLESS_QUESTION, seed=0, tools=tools)

    def _parameters(self, question: WriterQuestion) -> JsonObject:
        parameters: JsonObject = {
            "temperature": question.temperature,
            "seed": question.seed,
            "max_tokens": question.max_tokens,
        }
        if question.tools:
            parameters["tools"] = list(question.tools)
        if question.schema is not None:
            parameters |= response_format(self.answer_format, "answer", question.schema)
        return parameters

    async def close(self) -> None:
        await self._client.close()


class ProgramWriter:
    """A function of the user that replaces a language model.

    Example:
        def clerk(question: WriterQuestion) -> str:  # or async, or a message of the assistant as a dict
            return "Done."
    """

    answer_format: AnswerFormat = "text"

    def __init__(self, name: str) -> None:
        """Import the function.

        Args:
            name: Place of the function, as `package.module:name` or `folder/file.py:name`.

        Raises:
            ConfigError: If there is no such function.
        """
        self.name = name
        self._function = load_object(name, "program")
        if not callable(self._function):
            raise ConfigError(f"program {name} is not a function, but {self._function!r:.80}")
        path = module_path(name.rpartition(":")[0])
        self.identity = f"{name} {sha256(path.read_bytes()).hexdigest()}" if path.is_file() else name

    def __reduce__(self) -> tuple[type["ProgramWriter"], tuple[str]]:
        """Pickle the writer by its name, because another process cannot import the user's file as a module."""
        return ProgramWriter, (self.name,)

    def most_tokens(self, question: WriterQuestion) -> int:
        return 0

    async def answer(self, question: WriterQuestion) -> ChatAnswer:
        if question.logprobs:
            raise ConfigError(
                f"program {self.name} returns no logprobs; use a model for its role, or request no logprobs, as with "
                "greedy_probe.logprobs=false"
            )
        try:
            given = self._function(question)
            if inspect.isawaitable(given):
                given = await given
        except PivotError:
            raise
        except Exception as error:  # the user's function, which may raise anything
            raise code_error(f"program {self.name}", error) from error
        message: JsonObject = {"role": "assistant", "content": given} if isinstance(given, str) else given
        if not isinstance(message, dict) or not isinstance(message.get("content"), str | None):
            raise UserCodeError(
                f"program {self.name} returned {given!r:.80}; return a text, or a message of the assistant as a dict"
            )
        try:
            encode_json(message)
        except BadRowError as error:
            raise UserCodeError(f"program {self.name} returned {given!r:.80}: {error}") from error
        return ChatAnswer(message=message, finish_reason="stop", num_prompt_tokens=0, num_completion_tokens=0)

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


WRITER = "writer"
"""Role whose writer is used for every other role without a writer."""
