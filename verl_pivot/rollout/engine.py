"""Prompt token ids -> sampled Completions, from an inference server over HTTP."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

import httpx
import openai
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from verl_pivot.errors import ConfigError, EngineError
from verl_pivot.types import Json, JsonObject

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the policy samples one turn. The defaults sample from the model's own distribution, as training must."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = -1
    """-1 is off."""
    max_new_tokens: int = 512
    seed: int = 0
    """Sample k of a request uses seed + k. SGLang heeds it with --enable-deterministic-inference only."""

    def __post_init__(self) -> None:
        if self.temperature < 0.0:
            raise ConfigError(f"--temperature must be at least 0, got {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigError(f"--top-p must lie in (0, 1], got {self.top_p}")
        if self.top_k != -1 and self.top_k < 1:
            raise ConfigError(f"--top-k must be -1 (off) or at least 1, got {self.top_k}")
        if self.max_new_tokens < 1:
            raise ConfigError(f"--max-new-tokens must be at least 1, got {self.max_new_tokens}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled turn."""

    token_ids: tuple[int, ...]
    """Empty where the server gives text only."""
    text: str
    """As the server decoded it."""
    ended: bool
    """Whether the turn ended by itself; False where it was cut off at max_new_tokens."""
    num_tokens: int
    num_cached_tokens: int = 0
    """Prompt tokens that the server found in its prefix cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """For refused connections, timeouts and answers 429 and 5xx; waits double, with jitter."""

    attempts: int = 6
    longest_wait_seconds: float = 20.0
    timeout_seconds: float = 1800.0
    """Of one request: a group of long completions on a busy server takes its time."""


class Engine(Protocol):
    """An inference server that serves the policy."""

    @property
    def url(self) -> str: ...

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, n: int) -> tuple[Completion, ...]:
        """[n] independent samples of the same prompt.

        Raises:
            EngineError: If the server cannot be reached, keeps failing or answers garbage.
            ConfigError: If the server refuses the request itself: another server would too.
        """
        ...

    async def close(self) -> None: ...


class _Unavailable(EngineError):
    """A failure that may pass: worth another attempt."""


class SGLangEngine:
    """SGLang's /generate: token ids in, token ids out, nothing rendered or decoded on the way."""

    def __init__(self, url: str, retries: Retries | None = None) -> None:
        self._url = url.rstrip("/")
        self._retries = retries or Retries()
        self._client = _http_client(url, self._retries)

    @property
    def url(self) -> str:
        return self._url

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, n: int) -> tuple[Completion, ...]:
        # As n separate requests in one: SGLang's own `n` gives every sample the same seed.
        payload: JsonObject = {
            "input_ids": [list(prompt_ids) for _ in range(n)],
            "sampling_params": [_sglang_parameters(sampling, k) for k in range(n)],
        }
        answer = await _with_retries(self._retries, lambda: self._post(payload))
        if not isinstance(answer, list) or len(answer) != n:
            raise EngineError(f"{self.url} answered {_excerpt(answer)} where {n} samples were asked for; {_CHECK_URL}")
        return tuple(_sglang_completion(sample, self.url) for sample in answer)

    async def close(self) -> None:
        await self._client.aclose()

    async def _post(self, payload: JsonObject) -> Json:
        try:
            response = await self._client.post(f"{self._url}/generate", json=payload)
        except httpx.TransportError as error:
            raise _Unavailable(_unreachable(self._url, error)) from error
        _check_status(self._url, response.status_code, response.text)
        try:
            answer: Json = response.json()
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise EngineError(f"{self._url} answered no JSON: {_excerpt(response.text)}; {_CHECK_URL}") from error
        return answer


class OpenAIEngine:
    """An OpenAI-compatible server that takes prompts of token ids at /v1/completions: vLLM, SGLang and others.

    Servers that return token ids (vLLM's `return_token_ids`) are read token for token, others by their text.
    """

    def __init__(self, url: str, model: str, api_key: str, retries: Retries | None = None) -> None:
        self._url = url.rstrip("/")
        self._model = model
        self._retries = retries or Retries()
        self._client = _openai_client(url, api_key, self._retries)

    @property
    def url(self) -> str:
        return self._url

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, n: int) -> tuple[Completion, ...]:
        return tuple(await asyncio.gather(*(self._sample(prompt_ids, sampling, k) for k in range(n))))

    async def close(self) -> None:
        await self._client.close()

    async def _sample(self, prompt_ids: Sequence[int], sampling: Sampling, k: int) -> Completion:
        answer = await _with_retries(self._retries, lambda: self._post(prompt_ids, sampling, k))
        return _openai_completion(answer, self._url)

    async def _post(self, prompt_ids: Sequence[int], sampling: Sampling, k: int) -> str:
        try:
            response = await self._client.completions.with_raw_response.create(
                model=self._model,
                prompt=list(prompt_ids),
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=sampling.max_new_tokens,
                seed=_sample_seed(sampling, k),
                # Said aloud, since servers otherwise take the model's own defaults (top_k 20 for Qwen).
                extra_body={"top_k": sampling.top_k, "min_p": 0.0, "repetition_penalty": 1.0, "return_token_ids": True},
            )
        except openai.APIStatusError as error:
            _check_status(self._url, error.status_code, error.response.text)
            raise
        except openai.APIConnectionError as error:
            raise _Unavailable(_unreachable(self._url, error)) from error
        return response.text


async def served_model(url: str, model: str, api_key: str, retries: Retries | None = None) -> str:
    """The name under which an OpenAI-compatible server offers `model`: that name, or the only one it has.

    Raises:
        ConfigError: If it offers several others.
        EngineError: If it cannot be asked.
    """
    async with _openai_client(url, api_key, retries or Retries()) as client:
        try:
            names = [served.id for served in (await client.models.list()).data]
        except (openai.APIError, TypeError) as error:
            raise EngineError(f"{url} does not list its models ({error}); {_CHECK_URL}") from error
    if model in names:
        return model
    if len(names) != 1:
        raise ConfigError(f"{url} serves {names}, not {model!r}: start it with --served-model-name {model}")
    return names[0]


_CHECK_URL = "check that the URL is that of an inference server"


def _sample_seed(sampling: Sampling, k: int) -> int:
    return int((sampling.seed + k) % 2**31)


def _sglang_parameters(sampling: Sampling, k: int) -> JsonObject:
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "max_new_tokens": sampling.max_new_tokens,
        "sampling_seed": _sample_seed(sampling, k),
    }


def _sglang_completion(sample: Json, url: str) -> Completion:
    """Read one sample; an aborted one is a failure of the server, not of the policy."""
    match sample:
        case {
            "text": str(text),
            "output_ids": [*ids],
            "meta_info": {"finish_reason": {"type": "stop" | "length" as end}, **meta},
        } if all(isinstance(token_id, int) for token_id in ids):
            cached = meta.get("cached_tokens")
            return Completion(
                token_ids=tuple(token_id for token_id in ids if isinstance(token_id, int)),
                text=text,
                ended=end == "stop",
                num_tokens=len(ids),
                num_cached_tokens=cached if isinstance(cached, int) else 0,
            )
        case {"meta_info": {"finish_reason": {"type": "abort", **details}}}:
            raise EngineError(f"{url} aborted the request: {details.get('message', 'no reason given')}; see its log")
    raise EngineError(
        f"{url} answered a sample without text, output_ids and finish_reason: {_excerpt(sample)}; "
        f"{_CHECK_URL} of SGLang 0.5 or later (for another one use --openai)"
    )


def _openai_completion(body: str, url: str) -> Completion:
    try:
        answer: Json = json.loads(body)
    except json.JSONDecodeError as error:
        raise EngineError(f"{url} answered no JSON: {_excerpt(body)}; {_CHECK_URL}") from error
    match answer:
        case {
            "choices": [{"text": str(text), "finish_reason": "stop" | "length" as end, **choice}],
            "usage": {"completion_tokens": int(num_tokens), **usage},
        }:
            ids = choice.get("token_ids")
            return Completion(
                token_ids=tuple(i for i in ids if isinstance(i, int)) if isinstance(ids, list) else (),
                text=text,
                ended=end == "stop",
                num_tokens=num_tokens,
                num_cached_tokens=_openai_cached_tokens(usage.get("prompt_tokens_details")),
            )
    raise EngineError(
        f"{url} answered no completion with text, finish_reason and usage: {_excerpt(answer)}; "
        f"{_CHECK_URL} with /v1/completions"
    )


def _openai_cached_tokens(details: object) -> int:
    match details:
        case {"cached_tokens": int(num_cached_tokens)}:
            return num_cached_tokens
    return 0


def _check_status(url: str, status: int, body: str) -> None:
    if status in (408, 409, 429) or status >= 500:
        raise _Unavailable(
            f"{url} kept answering {status}: {_excerpt(body)}; see the server's log, and run the same "
            "command again once it is well"
        )
    if status == 404:
        raise EngineError(f"{url} answered 404; {_CHECK_URL}, without a path")
    if status >= 400:
        raise ConfigError(
            f"{url} refused the request ({status}): {_excerpt(body)}; lower --max-prompt-tokens or "
            "--max-new-tokens where it says the context is too long"
        )


async def _with_retries(retries: Retries, attempt: Callable[[], Awaitable[Result]]) -> Result:
    retrying = AsyncRetrying(
        stop=stop_after_attempt(retries.attempts),
        wait=wait_random_exponential(multiplier=0.5, max=retries.longest_wait_seconds),
        retry=retry_if_exception_type(_Unavailable),
        reraise=True,
    )

    async def run() -> Result:  # tenacity awaits what it sees is a coroutine function, and no lambda
        return await attempt()

    return await retrying(run)


def _http_client(url: str, retries: Retries) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        timeout=httpx.Timeout(retries.timeout_seconds, connect=10.0),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        trust_env=urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1"),  # no proxy leads back here
    )


def _openai_client(url: str, api_key: str, retries: Retries) -> openai.AsyncOpenAI:
    base_url = url if urlsplit(url).path.strip("/") else f"{url.rstrip('/')}/v1"
    return openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0, http_client=_http_client(url, retries))


def _unreachable(url: str, error: Exception) -> str:
    return (
        f"{url} cannot be reached ({type(error).__name__}: {error}); see the server's log, and run the same "
        "command again once it is up"
    )


def _excerpt(value: Json) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return repr(text if len(text) <= 200 else text[:200] + "...")
