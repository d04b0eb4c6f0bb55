"""Command `verl-pivot profile`: trajectories.jsonl and a checkpoint -> profile.jsonl and a summary."""

import asyncio
import json
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from verl_pivot.commands.sandbox import Address
from verl_pivot.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from rich.console import Console

    from verl_pivot.commands.profile_display import TurnCounts
    from verl_pivot.profiling.early_stopping import EarlyStop
    from verl_pivot.profiling.profiler import Totals
    from verl_pivot.profiling.profiles import ProfileSettings
    from verl_pivot.profiling.writer import ProfileWriter
    from verl_pivot.rollout.engine import Engine
    from verl_pivot.rollout.http import Retries
    from verl_pivot.types import JsonObject, Turn

_REQUEST_SECONDS = 24 * 3600.0
"""Of one with long answers behind many others; SGLangEngine notices by itself when a server hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """Of --ray."""

    address: str
    workers_per_node: int
    gpus_per_server: int
    verifier_modules: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the command line asks for, checked."""

    trajectories: Path
    out: Path
    limit: int | None
    settings: "ProfileSettings"
    retries: "Retries"
    seed: int
    concurrency: int
    endpoints: tuple[str, ...]
    openai: str | None
    server_flags: tuple[str, ...]
    on_ray: RayOptions | None

    def turns(self) -> "Iterator[Turn]":
        from verl_pivot.data.trajectories import read_trajectories
        from verl_pivot.data.turns import turns

        for trajectory in islice(read_trajectories(self.trajectories), self.limit):
            yield from turns(trajectory)


def profile_command(
    trajectories: Annotated[Path, typer.Argument(help="What `verl-pivot import` wrote.")],
    model: Annotated[str, typer.Option(help="Checkpoint of the reference policy: a folder or Hugging Face name.")],
    out: Annotated[Path, typer.Option(help="Profile to write, or an unfinished one to go on with.")],
    endpoint: Annotated[
        list[str] | None, typer.Option(help="SGLang server of the model; repeatable. Without one, one is started here.")
    ] = None,
    openai: Annotated[
        str | None, typer.Option(help="OpenAI-compatible server instead, as vLLM is; key in OPENAI_API_KEY.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="K, actions sampled per turn.")] = 8,
    temperature: Annotated[float, typer.Option(help="Sampling, as in training.")] = 1.0,
    top_p: Annotated[float, typer.Option()] = 1.0,
    top_k: Annotated[int, typer.Option(help="-1 is off.")] = -1,
    max_new_tokens: Annotated[int, typer.Option(help="Of one turn: data.max_response_length in training.")] = 512,
    max_prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Longer prompts are counted, not sampled: data.max_prompt_length in training.")
    ] = 4096,
    chat_template_kwargs: Annotated[
        str, typer.Option(help="JSON object: data.apply_chat_template_kwargs in training.")
    ] = "{}",
    early_stop: Annotated[
        Literal["pivots", "unsolved"] | None,
        typer.Option(help="Stop sampling a turn once this filter of `select` is sure of it; off unless given."),
    ] = None,
    stages: Annotated[
        str,
        typer.Option(help="With --early-stop: look after so many samples, such as '2,4,8'; half and all of K if not."),
    ] = "",
    lambda_diff: Annotated[float, typer.Option(help="With --early-stop pivots: that of `select`.")] = 1.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Turns in flight at each server.")] = 128,
    seed: Annotated[int, typer.Option(help="Of all sampling, as far as the engine heeds it.")] = 0,
    verifier_module: Annotated[
        list[str] | None, typer.Option(help="Module or .py file that registers verifiers of your own; repeatable.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many trajectories.")] = None,
    attempts: Annotated[int, typer.Option(min=1, help="Of one request, before its endpoint is given up.")] = 6,
    server_flags: Annotated[
        str, typer.Option(help="More flags for the server started here, such as '--tp-size 8'.")
    ] = "",
    ray: Annotated[
        bool,
        typer.Option("--ray", help="Measure on every node of a Ray cluster; without --endpoint each starts servers."),
    ] = False,
    address: Address = "auto",
    workers_per_node: Annotated[
        int, typer.Option(min=1, help="With --ray and --endpoint: processes that render and score.")
    ] = 1,
    gpus_per_server: Annotated[
        int, typer.Option(min=1, help="With --ray and no --endpoint: that many servers as a node's GPUs suffice for.")
    ] = 1,
) -> None:
    """Sample K actions at every turn from the frozen policy and score them. Run it again to go on.

    Example: verl-pivot profile trajectories.jsonl --model Qwen/Qwen3-8B --out profile.jsonl
    """
    from verl_pivot.profiling.profiles import ProfileSettings, file_sha256
    from verl_pivot.rollout.engine import Sampling
    from verl_pivot.rollout.http import Retries
    from verl_pivot.verifiers.registry import load_verifier_modules

    if endpoint and openai:
        raise ConfigError("--endpoint and --openai exclude each other; give one kind of server")
    load_verifier_modules(verifier_module or [])
    settings = ProfileSettings(
        model=model,
        input_sha256=file_sha256(trajectories),
        num_samples=samples,
        sampling=Sampling(temperature=temperature, top_p=top_p, top_k=top_k, max_new_tokens=max_new_tokens, seed=seed),
        max_prompt_tokens=max_prompt_tokens,
        chat_template_kwargs=_json_object(chat_template_kwargs),
        early_stop=_early_stop(early_stop, stages, samples, lambda_diff),
    )
    run_profile(
        Job(
            trajectories=trajectories,
            out=out,
            limit=limit,
            settings=settings,
            retries=Retries(attempts=attempts)
            if openai
            else Retries(attempts=attempts, timeout_seconds=_REQUEST_SECONDS),
            seed=seed,
            concurrency=concurrency,
            endpoints=tuple(endpoint or ()),
            openai=openai,
            server_flags=tuple(shlex.split(server_flags)),
            on_ray=RayOptions(
                address=address,
                workers_per_node=workers_per_node,
                gpus_per_server=gpus_per_server,
                verifier_modules=tuple(verifier_module or ()),
            )
            if ray
            else None,
        )
    )


def run_profile(job: Job) -> None:
    """Measure what the file lacks, then print the summary of all of it.

    Raises:
        PivotError: With the way to go on, where the file holds finished turns.
    """
    from rich.console import Console

    from verl_pivot.commands.profile_display import print_summary
    from verl_pivot.profiling.profiler import Totals
    from verl_pivot.profiling.profiles import TurnKey, iter_profiles
    from verl_pivot.profiling.summary import summarize
    from verl_pivot.profiling.writer import open_profile
    from verl_pivot.verifiers.judge_usage import usage_lines

    console, totals, begin = Console(stderr=True), Totals(), time.monotonic()
    with open_profile(job.out, job.settings) as writer:
        counts = _count_turns(job, writer, console)
        try:
            if counts.num_left:
                begin = _measure(job, writer, counts, totals, console)
            with console.status(f"putting the lines of {job.out} in order"):
                writer.put_in_order(TurnKey(turn.trajectory_id, turn.index) for turn in job.turns())
        except EngineError as error:
            raise EngineError(f"{error}\n{_resume_hint(job, totals)}") from error
        except KeyboardInterrupt:
            console.print(f"Stopped; {_resume_hint(job, totals)}.", highlight=False, soft_wrap=True)
            raise typer.Exit(130) from None
    summary, seconds = summarize(iter_profiles(job.out), job.settings.early_stop), time.monotonic() - begin
    print_summary(summary, totals, seconds=seconds, trajectories=job.trajectories, out=job.out)
    for line in usage_lines():
        typer.echo(line)


def _count_turns(job: Job, writer: "ProfileWriter", console: "Console") -> "TurnCounts":
    """Read the whole input once, so that broken lines and unknown verifiers stop the run before it begins."""
    from verl_pivot.commands.profile_display import TurnCounts
    from verl_pivot.profiling.profiles import TurnKey
    from verl_pivot.verifiers.registry import get_verifier

    num_turns = num_left = 0
    with console.status(f"reading {job.trajectories}"):
        for turn in job.turns():
            get_verifier(turn.verifier, turn.verifier_options)
            num_turns += 1
            num_left += TurnKey(turn.trajectory_id, turn.index) not in writer.done
    return TurnCounts(num_turns=num_turns, num_left=num_left)


def _measure(job: Job, writer: "ProfileWriter", counts: "TurnCounts", totals: "Totals", console: "Console") -> float:
    """Returns when sampling began (time.monotonic), start of the server not included."""
    from verl_pivot.commands.profile_display import progress
    from verl_pivot.profiling.profiler import EnginePool, Profiler, profile_turns
    from verl_pivot.rollout.rendering import PromptRenderer

    if job.on_ray is not None:
        from verl_pivot.commands.profile_ray import measure_on_ray

        return measure_on_ray(job, job.on_ray, writer, counts, totals, console)
    with console.status(f"loading the tokenizer of {job.settings.model}"):
        renderer = PromptRenderer(job.settings.model, job.settings.chat_template_kwargs)

    async def run(urls: Sequence[str]) -> None:
        engines = await _engines(job, urls)
        pool = EnginePool(engines, lambda message: console.print(message, highlight=False))
        profiler = Profiler(renderer=renderer, pool=pool, settings=job.settings, seed=job.seed, totals=totals)
        with progress(counts, totals, console) as on_turn:
            concurrency = job.concurrency * len(engines)
            await profile_turns(job.turns(), profiler, writer, concurrency=concurrency, on_turn=on_turn)

    with _endpoints(job, console) as urls:
        begin = time.monotonic()
        asyncio.run(run(urls))
    return begin


@contextmanager
def _endpoints(job: Job, console: "Console") -> Iterator[tuple[str, ...]]:
    from verl_pivot.local.server import sglang_server

    if job.endpoints or job.openai:
        yield job.endpoints
        return
    log = job.out.with_name(f"{job.out.name}.server.log")
    with sglang_server(
        job.settings.model, log=log, seed=job.seed, extra_flags=job.server_flags, console=console
    ) as url:
        yield (url,)


async def _engines(job: Job, urls: Sequence[str]) -> "list[Engine]":
    from verl_pivot.rollout.openai_engine import OpenAIEngine, served_model
    from verl_pivot.rollout.sglang_engine import SGLangEngine

    if job.openai is None:
        return [SGLangEngine(url, job.retries) for url in urls]
    api_key = os.environ.get("OPENAI_API_KEY", "none")
    name = await served_model(job.openai, job.settings.model, api_key, job.retries)
    return [OpenAIEngine(job.openai, name, api_key, job.retries)]


def _resume_hint(job: Job, totals: "Totals") -> str:
    return f"{totals.num_turns} more turns are finished in {job.out}: run the same command again to go on"


def _json_object(text: str) -> "JsonObject":
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--chat-template-kwargs {text!r} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"--chat-template-kwargs must be a JSON object such as {{}}, got {text!r}")
    return value


def _early_stop(
    name: 'Literal["pivots", "unsolved"] | None', stages: str, samples: int, lambda_diff: float
) -> "EarlyStop | None":
    from verl_pivot.profiling.early_stopping import EarlyStop

    if name is None:
        return None
    try:
        sizes = tuple(int(size) for size in stages.split(",")) if stages else (samples // 2, samples)
    except ValueError as error:
        raise ConfigError(f"--stages must be numbers with commas between, such as 2,4,8, got {stages!r}") from error
    if sizes[-1] != samples:
        raise ConfigError(f"--stages must end with --samples, which is {samples}, got {stages!r}")
    return EarlyStop(filter=name, stages=sizes, lambda_diff=lambda_diff)
