"""ChatClient: messages -> a model's answer from OpenAI-compatible servers; used by judges and `play`."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec

from verl_pivot.engines.answer_cache import AnswerCache
from verl_pivot.engines.http_client import HttpClient
from verl_pivot.engines.retries import CHECK_URL, TOO_LONG, Retries, UnavailableError, excerpt, not_json
from verl_pivot.engines.server_group import ServerGroup
from verl_pivot.errors import ConfigError, EngineError
from verl_pivot.types import JsonObject

AnswerT = TypeVar("AnswerT", bound=msgspec.Struct)
AnswerFormat = Literal["json_schema", "json_object", "text"]
"""How a server is told the form of its answers: a JSON schema, JSON of any form, or by the prompt alone."""
_CLAIM_SECONDS: Final = 0.05
"""Seconds between two checks whether a question that another caller asks has been answered."""
_REMEDY: Final = "check that the server supports these parameters"
ABORTED: Final = ("abort", "aborted")
"""Values of finish_reason for an answer that the server gave up, for example because it was stopped."""
HARMLESS_QUESTION: Final[tuple[JsonObject, ...]] = ({"role": "user", "content": "Answer with the word yes."},)
"""Question that tells whether a server or a question is at fault, after the server has refused or failed at it."""


class LikelyToken(msgspec.Struct, frozen=True):
    """A candidate token for one position of an answer, and its log-probability."""

    token: str
    logprob: float


class TokenLogprob(msgspec.Struct, frozen=True):
    """One token that a model wrote, and its log-probability."""

    token: str
    logprob: float
    top_logprobs: tuple[LikelyToken, ...] = ()
    """The most probable tokens at this position, if the request asks for `top_logprobs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """One message of the assistant, as the server returned it."""

    message: JsonObject
    """The message with its role, content and tool_calls, in OpenAI's format."""
    finish_reason: str
    """"stop", "tool_calls", "length" for a message that was cut off, or another word that the server uses."""
    num_prompt_tokens: int
    num_completion_tokens: int
    """Number of tokens by the server's count; 0 if the server does not report it."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """[num_tokens] log-probabilities; empty unless the request asks for them."""
    stop_text: str = ""
    """The stop text of the request that ended the answer, as SGLang and vLLM report it; "" if none did."""
    is_cached: bool = False
    """Whether the answer comes from the cache, so that no request was sent."""

    @property
    def is_filtered(self) -> bool:
        """Whether a content filter of the endpoint withholds the answer, or the rest of it."""
        return self.finish_reason == "content_filter"

    @property
    def text(self) -> str:
        """Text of the message; "" if it holds tool calls only."""
        content = self.message.get("content")
        return content if isinstance(content, str) else ""


class _ChatUsage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _ChatLogprobs(msgspec.Struct):
    content: tuple[TokenLogprob, ...] | None = None


class _ChatChoice(msgspec.Struct):
    message: dict[str, object]
    finish_reason: str | None = None
    logprobs: _ChatLogprobs | None = None
    matched_stop: object = None
    """The stop text or stop token that ended the answer, in SGLang's field."""
    stop_reason: object = None
    """The stop text or stop token that ended the answer, in vLLM's field."""


class _ChatCompletion(msgspec.Struct):
    choices: tuple[_ChatChoice]
    usage: _ChatUsage | None = None


class ChatClient:
    """One model behind /v1/chat/completions, for any number of requests at once, within one event loop."""

    def __init__(
        self,
        url: str | Sequence[str],
        model: str,
        api_key: str,
        retries: Retries | None = None,
        *,
        remedy: str = _REMEDY,
        cache: AnswerCache | None = None,
        max_concurrency: int | None = None,
        before_request: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """Keep the address; nothing is sent yet.

        Args:
            url: Address of the server, with or without /v1, or addresses of several servers of the same model.
            model: Name under which the servers offer the model.
            api_key: API key of the servers; any text if they need none.
            retries: How requests are retried after failures that may be temporary.
            remedy: Advice to the user at the end of the error message when a server refuses a request.
            cache: Cache of the answers to questions with a `cache_key`; None caches nothing.
            max_concurrency: Maximum number of concurrent requests; None is unlimited.
            before_request: Awaited before each request, such as a rate limit; None waits for nothing.
        """
        chosen = retries or Retries()
        urls = [url] if isinstance(url, str) else list(url)
        self._model = model
        self._cache = cache
        self._before_request = before_request
        self._slots = None if max_concurrency is None else asyncio.Semaphore(max_concurrency)
        self._servers = ServerGroup([openai_client(each, api_key, chosen, remedy) for each in urls], chosen)

    async def ask(
        self,
        messages: Sequence[JsonObject],
        parameters: JsonObject,
        *,
        logprobs: bool = False,
        cache_key: str | None = None,
    ) -> ChatAnswer:
        """The model's next message.

        Args:
            messages: The conversation so far, in OpenAI's format.
            parameters: Other keys of the request, such as temperature, max_tokens and tools.
            logprobs: Whether the answer has the logprobs of its tokens.
            cache_key: Key of the question in the cache, if there is one. A question with the same key, parameters and
                model is answered from the cache. While one process asks it, other processes that share the cache wait.
                Messages of the same key may differ in details without meaning, such as the words of fences.

        Raises:
            EngineError: If no server can be reached, the servers keep failing or aborting their answers, or an answer
                has another format, or if the cache cannot be read or written.
            ConfigError: If a server refuses the request itself.
        """
        asked = {**parameters, **({"logprobs": True} if logprobs else {})}
        if self._cache is None or cache_key is None:
            async with self._slots or nullcontext():
                return (await self._post(messages, asked, logprobs=logprobs))[1]
        key = sha256(msgspec.json.encode([self._model, asked, cache_key], order="sorted")).hexdigest()
        num_failures = None
        while True:
            if (kept := self._kept(self._cache, key, logprobs=logprobs)) is not None:
                return kept
            failures = self._cache.failures(key)
            num_failures = len(failures) if num_failures is None else num_failures
            if len(failures) > num_failures:  # another caller's request failed meanwhile: do not wait as long again
                raise EngineError(failures[-1])
            async with self._slots or nullcontext():
                if self._cache.claim(key):
                    return await self._ask_claimed(messages, asked, self._cache, key, logprobs=logprobs)
            await asyncio.sleep(_CLAIM_SECONDS)

    async def _ask_claimed(
        self, messages: Sequence[JsonObject], parameters: JsonObject, cache: AnswerCache, key: str, *, logprobs: bool
    ) -> ChatAnswer:
        """The answer to a question that this caller has claimed."""
        try:
            if (kept := self._kept(cache, key, logprobs=logprobs)) is not None:
                return kept
            body, answer = await self._post(messages, parameters, logprobs=logprobs)
        except EngineError as error:
            cache.put_failure(key, str(error))
            raise
        else:
            cache.put(key, _as_one_line(body))
            return answer
        finally:
            cache.release(key)

    def _kept(self, cache: AnswerCache, key: str, *, logprobs: bool) -> ChatAnswer | None:
        """The answer in the cache; None if there is none, or if it was aborted, as earlier versions kept it."""
        body = cache.get(key)
        if body is None:
            return None
        answer = self._read(body, logprobs=logprobs, is_cached=True)
        if answer is None:
            cache.forget(key)
        return answer

    async def _post(
        self, messages: Sequence[JsonObject], parameters: JsonObject, *, logprobs: bool
    ) -> tuple[bytes, ChatAnswer]:
        """Body of a server's answer, and the answer in it; an aborted answer is a failure that may be temporary."""
        if self._before_request is not None:
            await self._before_request()
        asked = msgspec.json.encode({"model": self._model, "messages": list(messages), **parameters})

        def whole(body: bytes) -> tuple[bytes, ChatAnswer]:
            answer = self._read(body, logprobs=logprobs)
            if answer is None:
                raise UnavailableError(
                    f"{self._servers.url} kept aborting answers; see the server's log, and run the same command again "
                    "once the server works",
                    may_concern_one_question=True,
                )
            return body, answer

        return await self._servers.post("/chat/completions", asked, whole)

    def _read(self, body: bytes, *, logprobs: bool, is_cached: bool = False) -> ChatAnswer | None:
        """The answer in a body; None if the server aborted it."""
        answer = decoded(body, _ChatCompletion, self._servers.url)
        choice, usage = answer.choices[0], answer.usage or _ChatUsage()
        if choice.finish_reason in ABORTED:
            return None
        found = choice.logprobs.content if choice.logprobs is not None else None
        if logprobs and found is None:
            raise EngineError(f"{self._servers.url} returns no logprobs; use a server that does, as SGLang or vLLM")
        return ChatAnswer(
            message=choice.message,  # type: ignore[arg-type]  # msgspec decodes JSON into JSON's types
            finish_reason=choice.finish_reason or "",
            num_prompt_tokens=usage.prompt_tokens,
            num_completion_tokens=usage.completion_tokens,
            logprobs=found or (),
            stop_text=next((each for each in (choice.matched_stop, choice.stop_reason) if isinstance(each, str)), ""),
            is_cached=is_cached,
        )

    async def close(self) -> None:
        await self._servers.close()


def response_format(answer_format: AnswerFormat, name: str, schema: JsonObject) -> JsonObject:
    """Parameters of a request that ask the server for answers in a JSON format.

    Args:
        answer_format: How the server is told the format.
        name: Name of the schema.
        schema: JSON schema of the answer, which is sent only with "json_schema".
    """
    if answer_format == "text":
        return {}
    if answer_format == "json_object":
        return {"response_format": {"type": "json_object"}}
    form: JsonObject = {"name": name, "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


def _as_one_line(body: bytes) -> bytes:
    """The same JSON without line breaks."""
    return msgspec.json.encode(msgspec.json.decode(body))


def openai_client(url: str, api_key: str, retries: Retries, remedy: str = TOO_LONG) -> HttpClient:
    """Client of an OpenAI-compatible server; "/v1" is added to a URL without a path."""
    base_url = url if urlsplit(url).path.strip("/") else f"{url.rstrip('/')}/v1"
    return HttpClient(base_url, retries, api_key=api_key, remedy=remedy)


def decoded(body: bytes, answer: type[AnswerT], url: str) -> AnswerT:
    """A server's answer, decoded from JSON into the given type.

    Raises:
        EngineError: If the answer is not JSON, or does not match the type.
    """
    try:
        return msgspec.json.decode(body, type=answer)
    except msgspec.ValidationError as error:
        shown = excerpt(body.decode(errors="replace"))
        raise EngineError(f"{url} answered in an unexpected format ({error}): {shown}; {CHECK_URL}") from error
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
    """Name under which an OpenAI-compatible server offers `model`: `model` itself, or the name of its only model.

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
