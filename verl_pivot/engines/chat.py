"""ChatClient: messages -> an answer of a model behind an OpenAI-compatible server; used by judges and `play`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from verl_pivot.engines.http_client import HttpClient
from verl_pivot.engines.retries import CHECK_URL, TOO_LONG, Retries, excerpt, not_json
from verl_pivot.errors import ConfigError, EngineError
from verl_pivot.types import JsonObject

AnswerT = TypeVar("AnswerT", bound=msgspec.Struct)
_REMEDY: Final = "see that the server takes these parameters"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """One message of the assistant, as the server returned it."""

    message: JsonObject
    """The message with its role, content and tool_calls, in OpenAI's format."""
    finish_reason: str
    """"stop", "tool_calls", "length" for a message that was cut off, or a word of the server's own."""
    num_prompt_tokens: int
    num_completion_tokens: int
    """Tokens as the server counts them; 0 where it does not say."""

    @property
    def text(self) -> str:
        """Text of the message; "" where it holds calls only."""
        content = self.message.get("content")
        return content if isinstance(content, str) else ""


class _ChatUsage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _ChatChoice(msgspec.Struct):
    message: dict[str, object]
    finish_reason: str | None = None


class _ChatCompletion(msgspec.Struct):
    choices: tuple[_ChatChoice]
    usage: _ChatUsage | None = None


class ChatClient:
    """One model behind /v1/chat/completions, for any number of requests at once, within one event loop."""

    def __init__(
        self, url: str, model: str, api_key: str, retries: Retries | None = None, *, remedy: str = _REMEDY
    ) -> None:
        """Keep the address; nothing is sent yet.

        Args:
            url: Address of the server, with or without /v1.
            model: Name under which the server offers the model.
            api_key: Key of the server; any text where it needs none.
            retries: How failures that may pass are repeated.
            remedy: What a user can do where the server refuses a request; ends the message.
        """
        self._model = model
        self._client = openai_client(url, api_key, retries or Retries(), remedy)

    async def ask(self, messages: Sequence[JsonObject], parameters: JsonObject) -> ChatAnswer:
        """The model's next message.

        Args:
            messages: The conversation so far, in OpenAI's format.
            parameters: Other keys of the request, such as temperature, max_tokens and tools.

        Raises:
            EngineError: If the server cannot be reached, keeps failing, or answers something else.
            ConfigError: If the server refuses the request itself.
        """
        body = msgspec.json.encode({"model": self._model, "messages": list(messages), **parameters})
        answer = decoded(await self._client.post("/chat/completions", body), _ChatCompletion, self._client.url)
        usage = answer.usage or _ChatUsage()
        return ChatAnswer(
            message=answer.choices[0].message,  # type: ignore[arg-type]  # msgspec decodes JSON into JSON's types
            finish_reason=answer.choices[0].finish_reason or "",
            num_prompt_tokens=usage.prompt_tokens,
            num_completion_tokens=usage.completion_tokens,
        )

    async def close(self) -> None:
        await self._client.close()


def openai_client(url: str, api_key: str, retries: Retries, remedy: str = TOO_LONG) -> HttpClient:
    """Client of an OpenAI-compatible server; "/v1" is added to a URL without a path."""
    base_url = url if urlsplit(url).path.strip("/") else f"{url.rstrip('/')}/v1"
    return HttpClient(base_url, retries, api_key=api_key, remedy=remedy)


def decoded(body: bytes, answer: type[AnswerT], url: str) -> AnswerT:
    """An answer of a server, as its type says.

    Raises:
        EngineError: If the answer is not JSON, or lacks what the type has.
    """
    try:
        return msgspec.json.decode(body, type=answer)
    except msgspec.ValidationError as error:
        shown = excerpt(body.decode(errors="replace"))
        raise EngineError(f"{url} answered something else than asked for ({error}): {shown}; {CHECK_URL}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineError(not_json(url, body)) from error


class _ServedModel(msgspec.Struct):
    id: str


class _ServedModelList(msgspec.Struct):
    data: tuple[_ServedModel, ...]


async def served_models(url: str, api_key: str, retries: Retries | None = None) -> list[str]:
    """Names of the models that an OpenAI-compatible server offers.

    Raises:
        EngineError: If the server cannot be reached, or does not list its models.
        ConfigError: If the server refuses the key.
    """
    client = openai_client(url, api_key, retries or Retries())
    try:
        return [served.id for served in decoded(await client.get("/models"), _ServedModelList, client.url).data]
    finally:
        await client.close()


async def served_model(url: str, model: str, api_key: str, retries: Retries | None = None) -> str:
    """Name under which an OpenAI-compatible server offers `model`: `model` itself, or that of its only model.

    Raises:
        ConfigError: If the server offers several models and none has that name.
        EngineError: If the server does not list its models.
    """
    try:
        names = await served_models(url, api_key, retries)
    except EngineError as error:
        raise EngineError(f"{url} does not list its models ({error})") from error
    if model in names:
        return model
    if len(names) != 1:
        raise ConfigError(f"{url} serves {names}, not {model!r}: start the server with --served-model-name {model}")
    return names[0]
