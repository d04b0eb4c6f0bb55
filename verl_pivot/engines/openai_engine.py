"""Engine of OpenAI-compatible servers: prompt token ids -> text, with token ids where the server returns them."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from verl_pivot.all_at_once import all_at_once
from verl_pivot.engines.chat import ABORTED, decoded, openai_client
from verl_pivot.engines.engine import Completion, Sampling
from verl_pivot.engines.retries import Retries, UnavailableError, with_retries


class _CachedTokens(msgspec.Struct):
    cached_tokens: int | None = None


class _CompletionUsage(msgspec.Struct):
    completion_tokens: int
    prompt_tokens_details: _CachedTokens | None = None


class _CompletionChoice(msgspec.Struct):
    text: str
    finish_reason: Literal["stop", "length", "abort", "aborted"]
    token_ids: tuple[int, ...] | None = None


class _TextCompletion(msgspec.Struct):
    """Answer of /v1/completions. The prompt's token ids, which vLLM repeats in it, are skipped."""

    choices: tuple[_CompletionChoice]
    usage: _CompletionUsage


class OpenAIEngine:
    """An OpenAI-compatible server that takes prompts of token ids at /v1/completions: vLLM, SGLang and others.

    If a server returns token ids (vLLM's `return_token_ids`), completions hold them; otherwise they hold text only.
    """

    def __init__(self, url: str, model: str, api_key: str, retries: Retries | None = None) -> None:
        self._url = url.rstrip("/")
        self._model = model
        self._retries = retries or Retries()
        self._client = openai_client(url, api_key, self._retries)

    @property
    def url(self) -> str:
        return self._url

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, n: int) -> tuple[Completion, ...]:
        prompt = msgspec.Raw(msgspec.json.encode(prompt_ids))
        return tuple(await all_at_once(self._sample(prompt, sampling, k) for k in range(n)))

    async def close(self) -> None:
        await self._client.close()

    async def _sample(self, prompt: msgspec.Raw, sampling: Sampling, k: int) -> Completion:
        body = completion_body(self._model, prompt, sampling, k)
        return await with_retries(self._retries, lambda: self._attempt(body))

    async def _attempt(self, body: bytes) -> Completion:
        answer = decoded(await self._client.try_post("/completions", body), _TextCompletion, self._url)
        choice, usage = answer.choices[0], answer.usage
        if choice.finish_reason in ABORTED:
            raise UnavailableError(f"{self._url} aborted the request; see its log", may_concern_one_question=True)
        details = usage.prompt_tokens_details
        return Completion(
            token_ids=choice.token_ids or (),
            text=choice.text,
            ended=choice.finish_reason == "stop",
            num_tokens=usage.completion_tokens,
            num_cached_tokens=(details.cached_tokens or 0) if details is not None else 0,
        )


def completion_body(model: str, prompt: msgspec.Raw, sampling: Sampling, k: int) -> bytes:
    """JSON body of the request for sample k of a prompt, whose token ids are already encoded as JSON.

    All sampling parameters are set, because servers otherwise use the model's defaults (top_k 20 for Qwen).
    """
    return msgspec.json.encode(
        {
            "model": model,
            "prompt": prompt,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_new_tokens,
            "seed": sampling.seed_of(k),
            "top_k": sampling.top_k,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "return_token_ids": True,
        }
    )
