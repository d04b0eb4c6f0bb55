"""Prompts -> structured answers of a model behind an OpenAI-compatible endpoint: paced, retried and counted."""

import asyncio
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from verl_pivot.data.json_values import object_of_unique_names
from verl_pivot.engines.answer_cache import AnswerCache
from verl_pivot.engines.chat import AnswerFormat, ChatAnswer, ChatClient, response_format
from verl_pivot.engines.retries import Retries
from verl_pivot.errors import ConfigError, EngineError, VerifierError
from verl_pivot.loop_local import LoopLocal
from verl_pivot.types import JsonObject
from verl_pivot.validation import first_problem
from verl_pivot.verifiers.judge_prompts import JudgeQuestion
from verl_pivot.verifiers.judge_usage import usage

ReplyT = TypeVar("ReplyT", bound=BaseModel)
_CODE_BLOCK = re.compile(r"```(?:json)?\n(.*)\n```", re.DOTALL)
_MAX_ATTEMPTS = 3
"""Most times that a model is asked until its answer has the required form."""


class UnansweredQuestionError(VerifierError):
    """The judge refuses one question, or never answers it in the required form; it may answer others."""


class UnprovenAnswerError(VerifierError):
    """The judge answers in the required form, but none of its answers passes the checks of a program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One model behind an OpenAI-compatible endpoint, and the limits on its load."""

    base_url: str
    model: str
    api_key_variable: str
    """Name of the environment variable that holds the key, so that the key itself never stands in a row."""
    max_concurrency: int
    requests_per_minute: float
    max_retries: int
    """Number of retries of a request after a refusal because of load, a timeout or a server error."""
    timeout_seconds: float
    max_tokens: int
    answer_format: AnswerFormat
    cache_dir: str | None
    """Folder in which its answers are cached; None for no cache."""


async def ask(
    endpoint: Endpoint,
    question: JudgeQuestion,
    reply: type[ReplyT],
    problem_of: Callable[[ReplyT], str | None] | None = None,
    *,
    is_control: bool = False,
) -> ReplyT:
    """The model's answer to a question, as a `reply`; while there is none, the model is asked again with another seed.

    With a `cache_dir`, each question is asked once per seed, also across several processes and after a resume.

    Args:
        endpoint: The model.
        question: The question; a content may be a list of parts, with pictures as `image_url`.
        reply: Form of the answer.
        problem_of: Gives the problem of an answer in this form, or None; without it, every such answer is accepted.
        is_control: Whether the question shows if the endpoint answers now, so that no kept answer counts.

    Raises:
        UnansweredQuestionError: If the endpoint refuses the question each time, or never answers in this form.
        UnprovenAnswerError: If answers have this form, but `problem_of` finds a problem in each of them.
        VerifierError: If the endpoint does not answer.
        ConfigError: If the environment variable of the key is not set, or answers cannot be kept in `cache_dir`.
    """
    connection = await _connection(endpoint).get()
    problem, unproven = "", ""
    for attempt in range(_MAX_ATTEMPTS):
        try:
            cache_key = None if is_control else question.name
            text = await connection.complete(question, reply, seed=attempt, cache_key=cache_key)
            written = without_wrapping(text) if endpoint.answer_format == "text" else text
            answer = json.loads(written, object_pairs_hook=object_of_unique_names)
            replied = reply.model_validate(answer, strict=True)
            unproven = (problem_of(replied) if problem_of is not None else None) or ""
            if not unproven:
                return replied
        except ConfigError as error:
            problem = str(error)
        except ValidationError as error:
            problem = f"{text[:200]!r}: {first_problem(error)}"
        except (ValueError, RecursionError) as error:
            problem = f"{text[:200]!r}: {error}"
    if unproven:
        raise UnprovenAnswerError(f"judge {endpoint.model} gave no valid proof in {_MAX_ATTEMPTS} answers: {unproven}")
    raise UnansweredQuestionError(
        f"judge {endpoint.model} at {endpoint.base_url} does not answer in the form asked for with answer_format="
        f"{endpoint.answer_format}: {problem}"
    )


def without_wrapping(text: str) -> str:
    """An answer without the model's reasoning before it, and without one code block around it.

    A JSON object inside other text is not looked for, since that text may quote an object that the policy wrote.
    """
    answer = text.strip()
    if not answer.startswith("{") and answer.count("</think>") == 1:
        answer = answer.partition("</think>")[2].strip()
    fenced = _CODE_BLOCK.fullmatch(answer)
    return fenced[1] if fenced else answer


class _EndpointConnection:
    """Connection of one event loop to one endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        key = os.environ.get(endpoint.api_key_variable, "")
        if not key:
            name = endpoint.api_key_variable
            raise ConfigError(
                f"the judge's key is missing; set {name} in the environment (to any text if the endpoint needs no key)"
            )
        self._endpoint = endpoint
        self._client = ChatClient(
            endpoint.base_url,
            endpoint.model,
            key,
            Retries(num_attempts=endpoint.max_retries + 1, timeout_seconds=endpoint.timeout_seconds),
            remedy="check base_url and model in the judge's options",
            cache=None if endpoint.cache_dir is None else AnswerCache(Path(endpoint.cache_dir)),
            max_concurrency=endpoint.max_concurrency,
            before_request=self._wait_for_start,
        )
        self._next_start = 0.0

    async def __aenter__(self) -> "_EndpointConnection":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def complete(
        self, question: JudgeQuestion, reply: type[BaseModel], *, seed: int, cache_key: str | None
    ) -> str:
        """Text of one answer; with a `cache_key` of None it is neither read from the cache nor kept there.

        Raises:
            VerifierError: If the endpoint does not answer, or its response holds no answer of a model.
            ConfigError: If the endpoint refuses the request.
        """
        endpoint = self._endpoint
        parameters: JsonObject = {
            **response_format(endpoint.answer_format, reply.__name__, reply.model_json_schema()),
            "temperature": 0.0,
            "seed": seed,
            "max_tokens": endpoint.max_tokens,
        }
        try:
            answer = await self._client.ask(question.messages, parameters, cache_key=cache_key)
        except EngineError as error:
            raise VerifierError(f"judge {endpoint.model}: {error}") from error
        if not answer.is_cached:
            self._count(answer)
        return answer.text

    async def _wait_for_start(self) -> None:
        """Wait until the rate limit lets the next request start."""
        now = asyncio.get_running_loop().time()
        start = max(now, self._next_start)
        self._next_start = start + 60.0 / self._endpoint.requests_per_minute
        await asyncio.sleep(start - now)

    def _count(self, answer: ChatAnswer) -> None:
        model = self._endpoint.model
        usage[model, "requests"] += 1
        usage[model, "prompt_tokens"] += answer.num_prompt_tokens
        usage[model, "completion_tokens"] += answer.num_completion_tokens


@cache
def _connection(endpoint: Endpoint) -> LoopLocal[_EndpointConnection]:
    return LoopLocal(lambda: _EndpointConnection(endpoint))
