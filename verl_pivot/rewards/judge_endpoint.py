"""JudgeEndpoint: a judge's settings -> its answers to questions, from its endpoint or from the cache."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from verl_pivot.engines.answer_cache import AnswerCache
from verl_pivot.engines.chat import ChatAnswer, ChatClient
from verl_pivot.engines.retries import Retries, UnknownModelError
from verl_pivot.errors import ConfigError, EngineError, VerifierError
from verl_pivot.rewards.judge_settings import JudgeSettings
from verl_pivot.rewards.principle_answers import InvalidAnswerError
from verl_pivot.types import JsonObject

_RETRY_TEMPERATURE: Final = 0.7
"""Lowest temperature of a repeated question, since at 0 the answer would be the same whatever the seed."""


class JudgeEndpoint:
    """A judge that answers questions, many at a time, within one event loop."""

    def __init__(
        self,
        settings: JudgeSettings,
        form: JsonObject,
        *,
        num_workers: int = 1,
        written: Callable[[str], str] | None = None,
    ) -> None:
        """Open the cache; nothing is asked yet.

        Args:
            settings: The judge and its limits.
            form: Parameters of a request that tell the endpoint the form of its answer.
            num_workers: Processes that share `max_concurrency`.
            written: Name of a setting -> how users write it, for messages; by default as a key of the section.

        Raises:
            ConfigError: If the cache cannot be opened, or the API key is not set.
        """
        self._settings = settings
        self._written = written or f"{settings.section}.{{}}".format
        self._parameters: JsonObject = {**form, "max_tokens": settings.max_tokens}
        cache = None if settings.cache_dir is None else AnswerCache(Path(settings.cache_dir))
        self._client = ChatClient(
            settings.urls,
            settings.model or "",
            settings.api_key,
            Retries(num_attempts=settings.max_retries + 1, timeout_seconds=settings.timeout_seconds),
            remedy=f"check that {self._written('base_url')} and {self._written('model')} name the judge",
            cache=cache,
            max_concurrency=-(-settings.max_concurrency // num_workers),
        )

    async def close(self) -> None:
        await self._client.close()

    def temperature(self, seed: int) -> float:
        """Temperature of a question with this seed; the first attempt has seed 0."""
        given = self._settings.temperature
        return given if seed == 0 else max(given, _RETRY_TEMPERATURE)

    async def ask(
        self,
        messages: Sequence[JsonObject],
        seed: int,
        temperature: float,
        cache_key: str | None,
        *,
        form: JsonObject | None = None,
        num_alternatives: int | None = None,
    ) -> ChatAnswer:
        """One answer of the judge, valid or not.

        Args:
            messages: The question.
            seed: Seed of the answer.
            temperature: Temperature of the answer.
            cache_key: Name of the question; None keeps the answer out of the cache.
            form: Parameters of this request that tell the form of its answer; None: those of the endpoint.
            num_alternatives: Number of likeliest tokens to return with each token's logprob; None: no logprobs.

        Raises:
            VerifierError: If the judge cannot be reached or keeps failing, or the cache cannot be written.
            ConfigError: If the judge refuses the question, or its endpoint does not serve its model.
        """
        base = self._parameters if form is None else {**form, "max_tokens": self._settings.max_tokens}
        parameters: JsonObject = {**base, "temperature": temperature, "seed": seed}
        if num_alternatives is not None:
            parameters["top_logprobs"] = num_alternatives
        try:
            return await self._client.ask(
                messages, parameters, logprobs=num_alternatives is not None, cache_key=cache_key
            )
        except UnknownModelError as error:
            raise ConfigError(f"{error}: see {self._written('base_url')} and {self._written('model')}") from error
        except EngineError as error:
            raise VerifierError(f"judge {self._settings.model}: {error}") from error

    def whole_text(self, answer: ChatAnswer) -> str:
        """Text of an answer.

        Raises:
            InvalidAnswerError: If the answer was cut off.
        """
        if answer.finish_reason == "length":
            raise InvalidAnswerError(f"it was cut off; raise {self._written('max_tokens')}")
        return answer.text
