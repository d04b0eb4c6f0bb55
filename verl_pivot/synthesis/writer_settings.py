"""The user's settings of writers, checked -> the writers of a run by role."""

import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import yaml
from pydantic import model_validator

from verl_pivot.data.files import make_folder
from verl_pivot.engines.chat import AnswerFormat
from verl_pivot.engines.model_identity import template_digest, weights_digest
from verl_pivot.engines.retries import Retries
from verl_pivot.engines.server import sglang_server
from verl_pivot.errors import ConfigError
from verl_pivot.playing.endpoint_player import ChatSampling, ChosenEndpoint
from verl_pivot.synthesis.writer import EndpointWriter, ProgramWriter, Writer
from verl_pivot.validation import Options, validated


class WriterSettings(Options):
    """Writer of one role: a model behind an endpoint, a model that SGLang serves for the run, or a function.

    Example:
        WriterSettings(openai="http://gpu1:8000", model="qwen", answer_format="json_schema")
    """

    openai: str | None = None
    """URL of an OpenAI-compatible server. Its API key is the environment variable OPENAI_API_KEY."""
    model: str | None = None
    """Name of the model on the server, by default its only model; without `openai`, a checkpoint that SGLang serves."""
    program: str | None = None
    """Function that answers instead of a model, as `package.module:name` or `folder/file.py:name`."""
    answer_format: AnswerFormat = "text"
    """How the endpoint is told the form of structured answers. Do not use "json_schema" with SGLang on a CPU."""
    server_flags: tuple[str, ...] = ()
    """Extra flags of the server that is started for `model`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.program is not None and (self.openai is not None or self.model is not None):
            raise ValueError("program and a model were both given; give one of them")
        if self.program is None and self.openai is None and self.model is None:
            raise ValueError("no writer is given: give openai, model or program")
        if self.server_flags and (self.openai is not None or self.program is not None):
            raise ValueError("server_flags are for a server that is started here: leave openai and program out")
        if self.program is not None and self.answer_format != "text":
            raise ValueError("answer_format is for models: leave it out; the last message tells a program the form")
        return self

    def serving(self, model: Path) -> Self:
        """A copy of these settings with another checkpoint for SGLang to serve."""
        return self.model_copy(update={"model": str(model)})


def read_writers(path: Path) -> dict[str, WriterSettings]:
    """{role: settings} of a YAML file.

    Raises:
        ConfigError: If the file cannot be read, or the settings of a role are wrong.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--writers {path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not content:
        raise ConfigError(f"--writers {path} must map roles to writers, as in `writer: {{openai: http://gpu1:8000}}`")
    return {str(role): validated(WriterSettings, settings, f"{path}, {role}") for role, settings in content.items()}


@contextmanager
def open_writers(
    settings: Mapping[str, WriterSettings], retries: Retries, *, logs: Path, seed: int
) -> Iterator[dict[str, Writer]]:
    """{role: writer}; servers are started as needed, one per checkpoint and flags, and run until the block ends.

    Args:
        settings: {role: settings of its writer}.
        retries: Retries and timeouts of requests to endpoints.
        logs: Path whose name is the prefix of the servers' log files.
        seed: Seed of the started servers.

    Raises:
        ConfigError: If an endpoint has no such model, or there is no such function.
        EngineError: If an endpoint cannot be reached, or a server does not start.
    """
    with ExitStack() as servers:
        urls: dict[tuple[str, tuple[str, ...]], str] = {}
        writers: dict[str, Writer] = {}
        for role, each in settings.items():
            if each.program is not None:
                writers[role] = ProgramWriter(each.program)
                continue
            served = str(each.model), each.server_flags
            if each.openai is None and served not in urls:
                log = logs.with_name(f"{logs.name}.{role}.server.log")
                make_folder(log.parent)
                server = sglang_server(str(each.model), log=log, seed=seed, extra_flags=each.server_flags)
                urls[served] = servers.enter_context(server)
            url = each.openai or urls[served]
            endpoint = ChosenEndpoint(url=url, model=each.model, sampling=ChatSampling(), retries=retries)
            model = asyncio.run(endpoint.served_model(os.environ.get("OPENAI_API_KEY", "none")))
            digest = _digest(str(each.model)) if each.openai is None else ""
            writers[role] = EndpointWriter(url, model, answer_format=each.answer_format, retries=retries, digest=digest)
        yield writers


def _digest(model: str) -> str:
    """Digest of the weights and the chat template of a checkpoint; "" for a model of the Hugging Face hub."""
    weights = weights_digest(model)
    return "" if weights is None else f"{weights} {template_digest(model)}"
