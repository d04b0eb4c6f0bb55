"""SGLang's own interface: token ids in, token ids out."""

import json
from collections.abc import Sequence

import httpx

from verl_pivot.errors import EngineError
from verl_pivot.rollout.engine import Completion, Sampling
from verl_pivot.rollout.http import (
    CHECK_URL,
    Retries,
    UnavailableError,
    check_status,
    excerpt,
    http_client,
    unreachable,
    with_retries,
)
from verl_pivot.types import Json, JsonObject


class SGLangEngine:
    """SGLang's /generate: token ids in, token ids out, nothing rendered or decoded on the way."""

    def __init__(self, url: str, retries: Retries | None = None) -> None:
        self._url = url.rstrip("/")
        self._retries = retries or Retries()
        self._client = http_client(url, self._retries)

    @property
    def url(self) -> str:
        return self._url

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, n: int) -> tuple[Completion, ...]:
        # As n separate requests in one: SGLang's own `n` gives every sample the same seed.
        payload: JsonObject = {
            "input_ids": [list(prompt_ids) for _ in range(n)],
            "sampling_params": [_sglang_parameters(sampling, k) for k in range(n)],
        }
        answer = await with_retries(self._retries, lambda: self._post(payload))
        if not isinstance(answer, list) or len(answer) != n:
            raise EngineError(f"{self.url} answered {excerpt(answer)} where {n} samples were asked for; {CHECK_URL}")
        return tuple(_sglang_completion(sample, self.url) for sample in answer)

    async def close(self) -> None:
        await self._client.aclose()

    async def _post(self, payload: JsonObject) -> Json:
        try:
            response = await self._client.post(f"{self._url}/generate", json=payload)
        except httpx.TransportError as error:
            raise UnavailableError(unreachable(self._url, error)) from error
        check_status(self._url, response.status_code, response.text)
        try:
            answer: Json = response.json()
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise EngineError(f"{self._url} answered no JSON: {excerpt(response.text)}; {CHECK_URL}") from error
        return answer


def _sglang_parameters(sampling: Sampling, k: int) -> JsonObject:
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "max_new_tokens": sampling.max_new_tokens,
        "sampling_seed": sampling.seed_of(k),
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
        f"{url} answered a sample without text, output_ids and finish_reason: {excerpt(sample)}; "
        f"{CHECK_URL} of SGLang 0.5 or later (for another one use --openai)"
    )
