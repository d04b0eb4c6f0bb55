"""`verl-pivot profile`: trajectories.jsonl and a checkpoint -> profile.jsonl, and a summary on the console."""

import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from verl_pivot.commands.next_steps import next_command
from verl_pivot.commands.options import (
    CONCURRENCY,
    NO_SERVER_STARTS,
    Address,
    json_object,
    out_of_json_lines,
    refuse_overwriting,
    refuse_void,
    refuse_without_ray,
)
from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from verl_pivot.profiling.early_stopping import EarlyStop
    from verl_pivot.profiling.job import ProfileJob
    from verl_pivot.profiling.running import FinishedProfile

_REQUEST_SECONDS = 24 * 3600.0
"""Time limit of a request to SGLang: long answers may wait behind many others, and SGLangEngine notices servers that
hang."""


def profile_command(
    trajectories: Annotated[Path, typer.Argument(help="trajectories.jsonl from `verl-pivot import`.")],
    model: Annotated[str, typer.Option(help="Checkpoint of the reference policy: a folder or a Hugging Face name.")],
    out: Annotated[
        Path,
        typer.Option(callback=out_of_json_lines, help="The profile.jsonl to write, or an unfinished one to continue."),
    ],
    endpoint: Annotated[
        list[str] | None,
        typer.Option(
            help="URL of an SGLang server with the model; repeatable. By default a server is started on this machine."
        ),
    ] = None,
    openai: Annotated[
        str | None,
        typer.Option(
            help="URL of an OpenAI-compatible server instead, such as vLLM. Its API key is the variable OPENAI_API_KEY."
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="K, the number of actions sampled per turn.")] = 8,
    temperature: Annotated[float, typer.Option(help="Sampling temperature, the same as in training.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling; 1 is off.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample from the k most likely tokens; -1 is off.")] = -1,
    max_new_tokens: Annotated[
        int, typer.Option(help="Maximum number of tokens of one action: data.max_response_length in training.")
    ] = 2048,
    max_prompt_tokens: Annotated[
        int,
        typer.Option(
            min=1,
            help="Maximum number of tokens of a prompt: data.max_prompt_length in training. Turns with longer prompts "
            "are not sampled.",
        ),
    ] = 4096,
    chat_template_kwargs: Annotated[
        str,
        typer.Option(
            help="Arguments of the chat template, a JSON object: data.apply_chat_template_kwargs in training."
        ),
    ] = "{}",
    early_stop: Annotated[
        Literal["pivots", "unsolved"] | None,
        typer.Option(help="Stop sampling a turn once more samples cannot change what `select --keep` decides on it."),
    ] = None,
    stages: Annotated[
        str,
        typer.Option(
            help="With --early-stop: numbers of samples after which to check, such as 2,4,8; by default K/2,K."
        ),
    ] = "",
    lambda_diff: Annotated[float, typer.Option(help="With --early-stop pivots: --lambda-diff of `select`.")] = 1.0,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Maximum turns sampled at once on each server.")
    ] = CONCURRENCY,
    seed: Annotated[int, typer.Option(help="Seed of all sampling, as far as the server supports seeds.")] = 0,
    verifier_module: Annotated[
        list[str] | None, typer.Option(help="Module or .py file that registers verifiers of your own; repeatable.")
    ] = None,
    turns: Annotated[
        Literal["all", "calls"],
        typer.Option(help="calls: only turns at which the expert calls a tool; `select` then chooses among these."),
    ] = "all",
    allow_no_tools: Annotated[
        bool,
        typer.Option("--allow-no-tools", help="Go on if trajectories call tools but have no schemas."),
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Profile only the first N trajectories.")] = None,
    draw: Annotated[
        int | None,
        typer.Option(min=1, help="Profile only N trajectories, drawn by --seed; run again without it to go on."),
    ] = None,
    attempts: Annotated[int, typer.Option(min=1, help="Attempts at a request before its server counts as failed.")] = 6,
    server_flags: Annotated[
        str, typer.Option(help="More flags for the server that is started here, such as '--tp-size 8'.")
    ] = "",
    ray: Annotated[
        bool,
        typer.Option(
            "--ray", help="Profile on every node of a Ray cluster; without --endpoint each node starts servers."
        ),
    ] = False,
    address: Address = "auto",
    workers_per_node: Annotated[
        int, typer.Option(min=1, help="With --ray and --endpoint: processes per node that render and score.")
    ] = 1,
    gpus_per_server: Annotated[
        int, typer.Option(min=1, help="With --ray and no --endpoint: GPUs of each server that a node starts.")
    ] = 1,
) -> object:  # a FinishedProfile, for `verl-pivot plan`; not named here, since typer evaluates annotations
    """Sample K actions of the frozen policy at every turn, and score them with the turn's verifier.

    An interrupted profile continues when it is run again.

    \b
    Examples:
      verl-pivot profile trajectories.jsonl --model ./sft --out profile.jsonl
      verl-pivot profile trajectories.jsonl --model ./sft --out profile.jsonl \\
          --endpoint http://gpu1:30000
    """
    from verl_pivot.engines.engine import Sampling
    from verl_pivot.engines.model_check import check_model
    from verl_pivot.engines.model_identity import template_digest, weights_digest
    from verl_pivot.engines.retries import Retries
    from verl_pivot.launch_checks.sandbox_pool import check_pool_of
    from verl_pivot.profiling.job import ProfileJob, RayOptions
    from verl_pivot.profiling.profiles import ProfileSettings, file_sha256
    from verl_pivot.verifiers.registry import load_verifier_modules

    if endpoint and openai:
        raise ConfigError("--endpoint and --openai were both given; give only one kind of server")
    has_servers = bool(endpoint or openai)
    _refuse_void(address, workers_per_node, gpus_per_server, server_flags, ray=ray, has_servers=has_servers)
    server_words = _words_of(server_flags)
    stopping = _early_stop(early_stop, stages, samples, lambda_diff)
    refuse_overwriting([out], [trajectories, *(verifier_module or [])])
    load_verifier_modules(verifier_module or [])
    check_pool_of(trajectories)
    settings = ProfileSettings(
        model=model,
        input_sha256=file_sha256(trajectories),
        num_samples=samples,
        sampling=Sampling(temperature=temperature, top_p=top_p, top_k=top_k, max_new_tokens=max_new_tokens, seed=seed),
        max_prompt_tokens=max_prompt_tokens,
        chat_template_kwargs=json_object(chat_template_kwargs, "--chat-template-kwargs"),
        early_stop=stopping,
        turns=turns,
    )
    check_model(model)
    settings = replace(settings, model_digest=weights_digest(model), template_digest=template_digest(model))
    on_ray = RayOptions(
        address=address,
        workers_per_node=workers_per_node,
        gpus_per_server=gpus_per_server,
        verifier_modules=tuple(verifier_module or ()),
    )
    return _run(
        tuple(verifier_module or ()),
        ProfileJob(
            trajectories=trajectories,
            out=out,
            limit=limit,
            num_drawn=draw,
            settings=settings,
            retries=Retries(num_attempts=attempts)
            if openai
            else Retries(num_attempts=attempts, timeout_seconds=_REQUEST_SECONDS),
            seed=seed,
            concurrency=concurrency,
            endpoints=tuple(endpoint or ()),
            openai=openai,
            server_flags=server_words,
            on_ray=on_ray if ray else None,
            allow_no_tools=allow_no_tools,
        ),
    )


def _refuse_void(
    address: str, workers_per_node: int, gpus_per_server: int, server_flags: str, *, ray: bool, has_servers: bool
) -> None:
    """Stop the command if an option of a Ray cluster or of a server would do nothing."""
    if has_servers:
        refuse_void({"--server-flags": bool(server_flags)}, because=NO_SERVER_STARTS)
    if not ray:
        refuse_without_ray(address, workers_per_node, gpus_per_server)
    elif has_servers:
        because = "all workers ask the servers that were named; leave it out"
        refuse_void({"--gpus-per-server": gpus_per_server != 1}, because=because)
    else:
        because = "each worker has a server of its own; leave it out, or name servers with --endpoint or --openai"
        refuse_void({"--workers-per-node": workers_per_node != 1}, because=because)


def _run(verifier_modules: tuple[str, ...], job: "ProfileJob") -> "FinishedProfile":
    from verl_pivot.commands.profile_display import print_summary, turn_progress
    from verl_pivot.commands.tables import message_console
    from verl_pivot.profiling.profiler import Totals
    from verl_pivot.profiling.running import resume_hint, run_profile
    from verl_pivot.verifiers.judge_usage import usage_lines

    console, totals = message_console(), Totals()
    try:
        finished = run_profile(job, totals, console, partial(turn_progress, console=console))
    except KeyboardInterrupt:
        console.print(f"Stopped; {resume_hint(job, totals)}.", highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None
    print_summary(finished, totals, out=job.out)
    typer.echo(f"Next: {next_command(_select_words(job, verifier_modules))}")
    for line in usage_lines():
        typer.echo(line)
    return finished


def _select_words(job: "ProfileJob", verifier_modules: tuple[str, ...]) -> list[str]:
    """Words of the command that selects from the profile, with its prompt length and its rule of early stopping."""
    plan = job.settings.early_stop
    words = ["select", str(job.trajectories), "--profile", str(job.out)]
    words += [
        "--out",
        str(job.out.with_name("pivots.parquet")),
        "--max-prompt-tokens",
        str(job.settings.max_prompt_tokens),
    ]
    if plan is not None:
        words += ["--keep", plan.filter, *(["--lambda-diff", str(plan.lambda_diff)] if plan.filter == "pivots" else [])]
    return [*words, *(word for module in verifier_modules for word in ("--verifier-module", module))]


def _words_of(server_flags: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(server_flags))
    except ValueError as error:
        raise ConfigError(f"--server-flags {server_flags!r} cannot be read ({error}): check its quotes") from error


def _early_stop(
    name: 'Literal["pivots", "unsolved"] | None', stages: str, samples: int, lambda_diff: float
) -> "EarlyStop | None":
    from verl_pivot.profiling.early_stopping import EarlyStop

    if name is None:
        because = "without --early-stop every turn gets all samples; give --early-stop, too"
        refuse_void({"--stages": bool(stages), "--lambda-diff": lambda_diff != 1.0}, because=because)
        return None
    if name == "unsolved":
        refuse_void(
            {"--lambda-diff": lambda_diff != 1.0}, because="--early-stop unsolved looks at no mean; leave it out"
        )
    try:
        sizes = tuple(int(size) for size in stages.split(",")) if stages else (samples // 2, samples)
    except ValueError as error:
        raise ConfigError(f"--stages must be numbers separated by commas, such as 2,4,8, got {stages!r}") from error
    if sizes[-1] != samples:
        raise ConfigError(f"--stages must end with --samples, which is {samples}, got {stages!r}")
    return EarlyStop(filter=name, stages=sizes, lambda_diff=lambda_diff)
