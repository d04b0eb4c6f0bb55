"""Engine of OpenAI-compatible servers: prompt token ids -> text, with token ids where the server returns them."""

import asyncio
import json
from collections.abc import Sequence
from urllib.parse import urlsplit

from verl_pivot.engines.engine import Completion, Sampling
from verl_pivot.engines.retries import (
    CHECK_URL,
    Retries,
    UnavailableError,
    check_status,
    excerpt,
    http_client,
    unreachable,
    with_retries,
)
from verl_pivot.errors import ConfigError, EngineError
from verl_pivot.extras import extra
from verl_pivot.types import Json

with extra("data"):
    import openai


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
        answer = await with_retries(self._retries, lambda: self._post(prompt_ids, sampling, k))
        return _openai_completion(answer, self._url)

    async def _post(self, prompt_ids: Sequence[int], sampling: Sampling, k: int) -> str:
        try:
            response = await self._client.completions.with_raw_response.create(
                model=self._model,
                prompt=list(prompt_ids),
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=sampling.max_new_tokens,
                seed=sampling.seed_of(k),
                # Every parameter is given, since servers otherwise use the model's defaults (top_k 20 for Qwen).
                extra_body={"top_k": sampling.top_k, "min_p": 0.0, "repetition_penalty": 1.0, "return_token_ids": True},
            )
        except openai.APIStatusError as error:
            check_status(self._url, error.status_code, error.response.text)
            raise
        except openai.APIConnectionError as error:
            raise UnavailableError(unreachable(self._url, error)) from error
        return response.text


async def served_model(url: str, model: str, api_key: str, retries: Retries | None = None) -> str:
    """Name under which an OpenAI-compatible server offers `model`: `model` itself, or that of its only model.

    Raises:
        ConfigError: If the server offers several models and none has that name.
        EngineError: If the server does not list its models.
    """
    async with _openai_client(url, api_key, retries or Retries()) as client:
        try:
            names = [served.id for served in (await client.models.list()).data]
        except (openai.APIError, TypeError) as error:
            raise EngineError(f"{url} does not list its models ({error}); {CHECK_URL}") from error
    if model in names:
        return model
    if len(names) != 1:
        raise ConfigError(f"{url} serves {names}, not {model!r}: start the server with --served-model-name {model}")
    return names[0]


def _openai_completion(body: str, url: str) -> Completion:
    try:
        answer: Json = json.loads(body)
    except json.JSONDecodeError as error:
        raise EngineError(f"{url} answered with something that is not JSON: {excerpt(body)}; {CHECK_URL}") from error
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
        f"{url} answered without a completion that has text, finish_reason and usage: {excerpt(answer)}; "
        f"{CHECK_URL} with /v1/completions"
    )


def _openai_cached_tokens(details: object) -> int:
    match details:
        case {"cached_tokens": int(num_cached_tokens)}:
            return num_cached_tokens
    return 0


def _openai_client(url: str, api_key: str, retries: Retries) -> openai.AsyncOpenAI:
    base_url = url if urlsplit(url).path.strip("/") else f"{url.rstrip('/')}/v1"
    return openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0, http_client=http_client(url, retries))
