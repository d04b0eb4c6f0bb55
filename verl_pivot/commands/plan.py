"""`verl-pivot plan`: recorded trajectories and a model -> the commands to type, and what they will cost and give."""

import json
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from verl_pivot.commands.options import CONCURRENCY, NO_SERVER_STARTS, json_object, refuse_void, with_home
from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from verl_pivot.commands.plan_stages import StageRunner
    from verl_pivot.planning.plan import Plan


def plan_command(
    context: typer.Context,
    files: Annotated[
        list[Path], typer.Argument(help="Files of any format that `import` reads, or one trajectories.jsonl.")
    ],
    model: Annotated[str, typer.Option(help="Checkpoint of the policy: a folder or a Hugging Face name.")],
    out: Annotated[Path, typer.Option(callback=with_home, help="Folder for everything that is written.")] = Path(
        "plan"
    ),
    num_profiled: Annotated[
        int, typer.Option(min=1, help="Trajectories to profile for the plan, drawn by --seed.")
    ] = 50,
    run: Annotated[
        bool, typer.Option("--run", help="Then run the printed commands of import, profile and select.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as one JSON object instead.")] = False,
    openai: Annotated[str | None, typer.Option(help="URL of an OpenAI-compatible server to sample from.")] = None,
    endpoint: Annotated[
        list[str] | None,
        typer.Option(help="URL of an SGLang server to sample from; repeatable. By default one is started."),
    ] = None,
    server_flags: Annotated[str, typer.Option(help="As for `profile`: flags of the server that it starts.")] = "",
    gpus: Annotated[int, typer.Option(min=1, help="GPUs for profile and training.")] = 1,
    tokens_per_second: Annotated[
        float | None,
        typer.Option(help="Sampled tokens per second of all GPUs; by default measured in the trial or from a table."),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Training epochs over the pivots.")] = 1,
    samples: Annotated[int, typer.Option(min=1, help="K, the number of actions sampled per turn.")] = 8,
    max_prompt_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of tokens of a prompt; by default chosen from the trajectories."),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of tokens of an action; by default chosen from the expert actions."),
    ] = None,
    chat_template_kwargs: Annotated[str, typer.Option(help="As for `profile`: a JSON object.")] = "{}",
    seed: Annotated[int, typer.Option(help="Seed of the draw, of all sampling and of the split.")] = 0,
    verifier: Annotated[str | None, typer.Option(help="As for `import`.")] = None,
    verifier_options: Annotated[str | None, typer.Option(help="As for `import`: a JSON object.")] = None,
    verifier_module: Annotated[
        list[str] | None, typer.Option(help="Module or .py file that registers verifiers of your own; repeatable.")
    ] = None,
    tools: Annotated[Path | None, typer.Option(help="As for `import`: a JSON file of tool schemas.")] = None,
    format: Annotated[str | None, typer.Option(help="As for `import`.")] = None,
    format_module: Annotated[list[str] | None, typer.Option(help="As for `import`; repeatable.")] = None,
    thinking: Annotated[Literal["keep", "strip"] | None, typer.Option(help="As for `import`.")] = None,
    outcome: Annotated[Literal["passed", "all"] | None, typer.Option(help="As for `import`.")] = None,
    allow_no_tools: Annotated[bool, typer.Option("--allow-no-tools", help="As for `import` and `profile`.")] = False,
) -> None:
    """Plan a training: import the trajectories, profile some of them, and print the commands for all of them.

    The plan says how many pivots and GPU hours to expect, and what will go wrong. Its import and profile are not
    repeated: the printed commands go on from there, and so does `plan` itself when it is run again.

    \b
    Examples:
      verl-pivot plan runs/*.jsonl --model Qwen/Qwen3-8B --tools tools.json
      verl-pivot plan trajectories.jsonl --model ./sft --gpus 8 --run
    """
    from verl_pivot.commands.plan_findings import TrialOptions, find_out
    from verl_pivot.commands.plan_stages import StageRunner, is_imported
    from verl_pivot.engines.model_facts import model_facts
    from verl_pivot.planning.estimates import tensor_parallel_size
    from verl_pivot.planning.plan_commands import PlanRequest
    from verl_pivot.verifiers.registry import load_verifier_modules

    if openai and endpoint:
        raise ConfigError("--endpoint and --openai were both given; give only one kind of server")
    if openai or endpoint:
        refuse_void({"--server-flags": bool(server_flags)}, because=NO_SERVER_STARTS)
    if tokens_per_second is not None and tokens_per_second <= 0.0:
        raise ConfigError(f"--tokens-per-second must be above 0, got {tokens_per_second}")
    load_verifier_modules(verifier_module or [])
    given = _import_words(
        {"--format": format, "--thinking": thinking, "--verifier": verifier, "--verifier-options": verifier_options,
         "--tools": tools, "--outcome": outcome}, format_module or [],
    )  # fmt: skip
    imported = is_imported(files)
    if imported and given:
        raise ConfigError(f"{files[0]} is imported already, so {given[0]} cannot change it; import its rows again")
    facts = model_facts(model)
    parallel = tensor_parallel_size(facts.billions, gpus)
    request = PlanRequest(
        files=tuple(files),
        folder=out,
        model=model,
        is_imported=imported,
        import_words=given,
        allow_no_tools=allow_no_tools,
        engine_words=engine_words(openai, endpoint, server_flags, num_gpus=gpus, parallel=parallel),
        verifier_modules=tuple(verifier_module or ()),
        chat_template_kwargs=json_object(chat_template_kwargs, "--chat-template-kwargs"),
        num_samples=samples,
        seed=seed,
        num_gpus=gpus,
        num_epochs=epochs,
        tensor_parallel_size=gcd(parallel, gpus),  # verl's engines share the GPUs without a rest
    )
    options = TrialOptions(
        num_profiled=num_profiled,
        max_prompt_tokens=max_prompt_tokens,
        max_new_tokens=max_new_tokens,
        tokens_per_second=tokens_per_second,
    )
    runner = StageRunner(program=context.find_root().command, is_quiet=as_json)
    _show_and_run(find_out(request, facts, options, runner), runner, run=run, as_json=as_json)


def _show_and_run(plan: "Plan", runner: "StageRunner", *, run: bool, as_json: bool) -> None:
    """Print the plan, and with --run run its commands, unless there would be nothing to train on.

    Raises:
        typer.Exit: If there would be nothing to train on, or a command fails.
    """
    from verl_pivot.commands.plan_display import print_launch, print_plan
    from verl_pivot.commands.plan_stages import run_stages

    if not as_json:
        print_plan(plan)
    if run and not plan.is_fatal:
        plan = run_stages(plan, runner)
        if not as_json:
            print_launch(plan)
    if as_json:
        typer.echo(json.dumps(plan.as_dict(), indent=2))
    if plan.is_fatal:
        raise typer.Exit(1)


def _import_words(options: "dict[str, object]", format_modules: list[str]) -> tuple[str, ...]:
    """Options of `import` that were given, as words of a command line."""
    given = [str(word) for name, value in options.items() if value is not None for word in (name, value)]
    return (*given, *(word for module in format_modules for word in ("--format-module", module)))


def engine_words(
    openai: str | None, endpoints: list[str] | None, server_flags: str, *, num_gpus: int, parallel: int
) -> tuple[str, ...]:
    """Options of `profile` that say where it samples; a server that it starts uses all GPUs.

    Replicas of the model are one server, and so it gets as many turns at once as that many servers.
    """
    from verl_pivot.local.environment import has_accelerator

    if openai:
        return ("--openai", openai)
    if endpoints:
        return tuple(word for url in endpoints for word in ("--endpoint", url))
    if not server_flags and num_gpus > 1 and has_accelerator():
        num_replicas = num_gpus // parallel
        flags = f"--server-flags=--tp-size {parallel} --dp-size {num_replicas}"
        return (flags, *(("--concurrency", str(CONCURRENCY * num_replicas)) if num_replicas > 1 else ()))
    return (f"--server-flags={server_flags}",) if server_flags else ()
