"""Engine of SGLang servers, through SGLang's native API: prompt token ids -> sampled token ids."""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import TypeVar

import msgspec

from verl_pivot.engines.engine import Completion, Sampling
from verl_pivot.engines.http_client import HttpClient
from verl_pivot.engines.retries import CHECK_URL, TOO_LONG, Retries, UnavailableError, excerpt, not_json, with_retries
from verl_pivot.errors import EngineError
from verl_pivot.types import Json, JsonObject

ResultT = TypeVar("ResultT")
CHECK_SECONDS = 60.0
"""Seconds between two health checks of a server with requests in flight."""
HUNG_SECONDS = 300.0
"""Seconds for which /health may fail before the server counts as hung; /health succeeds while a request progresses."""


class SGLangEngine:
    """One SGLang server, used through /generate, which takes token ids and returns token ids."""

    def __init__(
        self,
        url: str,
        retries: Retries | None = None,
        *,
        check_seconds: float = CHECK_SECONDS,
        hung_seconds: float = HUNG_SECONDS,
    ) -> None:
        self._url = url.rstrip("/")
        self._retries = retries or Retries()
        self._client = HttpClient(url, self._retries, remedy=TOO_LONG)
        self._check_seconds = check_seconds
        self._hung_seconds = hung_seconds
        self._num_waiting = 0
        self._healthy_at = self._checked_at = time.monotonic()

    @property
    def url(self) -> str:
        return self._url

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, n: int) -> tuple[Completion, ...]:
        # A batch of n prompts instead of SGLang's parameter `n`, which gives every sample the same seed.
        payload: JsonObject = {
            "input_ids": [list(prompt_ids) for _ in range(n)],
            "sampling_params": [_sglang_parameters(sampling, k) for k in range(n)],
        }
        body = msgspec.json.encode(payload)
        return await self._watched(with_retries(self._retries, lambda: self._attempt(body, n)))

    async def close(self) -> None:
        await self._client.close()

    async def _attempt(self, body: bytes, n: int) -> tuple[Completion, ...]:
        text = await self._client.try_post("/generate", body)
        try:
            answer: Json = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise EngineError(not_json(self._url, text)) from error
        if not isinstance(answer, list) or len(answer) != n:
            raise EngineError(f"{self.url} was asked for {n} samples and answered {excerpt(answer)}; {CHECK_URL}")
        return tuple(_sglang_completion(sample, self.url) for sample in answer)

    async def _watched(self, request: Awaitable[ResultT]) -> ResultT:
        """Result of a request; raises EngineError once health checks show that the server hangs."""
        if not self._num_waiting:
            self._healthy_at = time.monotonic()
        self._num_waiting += 1
        task = asyncio.ensure_future(request)
        try:
            while not (await asyncio.wait({task}, timeout=self._check_seconds))[0]:
                await self._check()
            self._healthy_at = time.monotonic()
            return await task
        finally:
            self._num_waiting -= 1
            task.cancel()

    async def _check(self) -> None:
        """Send a health check, one for all requests in flight.

        Raises:
            EngineError: If health checks have failed for `hung_seconds`, and no request was answered meanwhile.
        """
        now = time.monotonic()
        if now - self._checked_at >= self._check_seconds:
            self._checked_at = now
            if await self._client.is_ok("/health", self._check_seconds):
                self._healthy_at = time.monotonic()
        if time.monotonic() - self._healthy_at > self._hung_seconds:
            raise EngineError(
                f"{self._url} hangs: for {self._hung_seconds:.0f} s it answered no request and /health failed"
            )


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
    """Completion in one item of SGLang's answer; raises UnavailableError if the server aborted the request."""
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
            raise UnavailableError(
                f"{url} aborted the request: {details.get('message', 'no reason given')}; see its log",
                may_concern_one_question=True,
            )
    raise EngineError(
        f"{url} answered with a sample that lacks text, output_ids or finish_reason: {excerpt(sample)}; "
        f"{CHECK_URL} of SGLang 0.5 or later (for another kind of server use --openai)"
    )
