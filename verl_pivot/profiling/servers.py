"""Addresses of inference servers -> engines that send requests to them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from verl_pivot.engines.chat import served_model
from verl_pivot.engines.engine import Engine
from verl_pivot.engines.openai_engine import OpenAIEngine
from verl_pivot.engines.retries import Retries
from verl_pivot.engines.sglang_engine import SGLangEngine
from verl_pivot.profiling.job import ProfileJob


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIServer:
    """An OpenAI-compatible server that serves the policy."""

    url: str
    model: str
    """Name under which the server offers the model."""
    api_key: str


async def find_openai_server(job: ProfileJob) -> OpenAIServer | None:
    """The server of --openai and the model's name on it; None if the job does not use --openai.

    Raises:
        ConfigError: If the server does not offer the model; a server's only model is accepted under any name.
        EngineError: If the server does not list its models.
    """
    if job.openai is None:
        return None
    api_key = os.environ.get("OPENAI_API_KEY", "none")
    name = await served_model(job.openai, job.settings.model, api_key, job.retries)
    return OpenAIServer(url=job.openai, model=name, api_key=api_key)


def make_engines(openai: OpenAIServer | None, urls: Sequence[str], retries: Retries) -> list[Engine]:
    """One engine for the OpenAI-compatible server, or without it one engine for each SGLang server in `urls`."""
    if openai is not None:
        return [OpenAIEngine(openai.url, openai.model, openai.api_key, retries)]
    return [SGLangEngine(url, retries) for url in urls]
