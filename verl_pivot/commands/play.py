"""`verl-pivot play`: tools or an environment, and a model or a person -> conversations with rewards, no training."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from verl_pivot.commands.next_steps import next_command
from verl_pivot.commands.options import json_object, out_of_json_lines, refuse_given
from verl_pivot.commands.play_loops import DEFAULT_RESPONSE_TOKENS, PlayLoop, check_options, notebook_rules
from verl_pivot.errors import ConfigError
from verl_pivot.rollout.context import DEFAULT_CONTEXT_TOKENS, DEFAULT_STEP_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable

    from verl_pivot.commands.play_display import PlayDisplay
    from verl_pivot.playing.endpoint_player import ChosenEndpoint
    from verl_pivot.playing.played_rows import PlayedProblem
    from verl_pivot.playing.problems import Problem
    from verl_pivot.playing.running import PlayedTotals, PlayingJob

_CONCURRENCY = 8
_WALL_SECONDS = 1800.0
_OF_MODEL = ("model", "temperature", "top_p", "seed", "extra_body", "concurrency", "attempts", "quiet")
"""Parameters that do nothing where a person plays."""


def play_command(
    ctx: typer.Context,
    tools: Annotated[
        str,
        typer.Argument(help="Tools file (YAML), or an environment as path/to/file.py:Class or package.module:Class."),
    ],
    question: Annotated[
        str | None, typer.Argument(help="The user's message, instead of rows; the same as --prompt.")
    ] = None,
    loop: Annotated[
        PlayLoop,
        typer.Option(help="How the model acts: by calls of tools, or by code in a notebook that calls them (L0)."),
    ] = PlayLoop.TOOLS,
    openai: Annotated[
        str | None,
        typer.Option(help="URL of an OpenAI-compatible server. Its API key is the variable OPENAI_API_KEY."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Name of the model on that server; by default the only one that it serves.")
    ] = None,
    human: Annotated[bool, typer.Option("--human", help="Play yourself, at the keyboard.")] = False,
    rows: Annotated[Path | None, typer.Option(help="Rows as for training, parquet or JSON lines.")] = None,
    prompt: Annotated[str | None, typer.Option(help="The user's message, instead of rows.")] = None,
    metadata: Annotated[str, typer.Option(help="With --prompt: JSON object with the metadata of a row.")] = "{}",
    num: Annotated[int | None, typer.Option(min=1, help="Play only the first N rows.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Number of conversations for each row.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            callback=out_of_json_lines,
            help="The played.jsonl to write, a new file with the conversations, which `import` can read.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print a summary only.")] = False,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Maximum number of conversations at the same time; by default {_CONCURRENCY} with --openai."
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature.")] = 1.0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Nucleus sampling; 1 is off.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of all sampling, as far as the server supports seeds.")] = 0,
    extra_body: Annotated[
        str, typer.Option(help='JSON object with other keys of the request, such as {"top_k": -1}.')
    ] = "{}",
    max_turns: Annotated[
        int, typer.Option(min=1, help="Maximum number of turns of the model, or of steps in a notebook.")
    ] = 10,
    max_turn_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of tokens of one turn; by default all that are left, in a notebook "
            f"{DEFAULT_STEP_TOKENS}.",
        ),
    ] = None,
    max_response_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of tokens after the prompt, observations included; by default "
            f"{DEFAULT_RESPONSE_TOKENS}.",
        ),
    ] = None,
    max_context_tokens: Annotated[
        int | None,
        typer.Option(
            min=2,
            help=f"Number of tokens at which a notebook's context is trimmed; by default {DEFAULT_CONTEXT_TOKENS}.",
        ),
    ] = None,
    trim: Annotated[
        Literal["hard", "oldest"] | None,
        typer.Option(help="Steps to remove from a notebook's full context: all (hard, the default), or the oldest."),
    ] = None,
    no_notepad: Annotated[bool, typer.Option("--no-notepad", help="Use a notebook without a Notepad.")] = False,
    max_observation_tokens: Annotated[
        int, typer.Option(min=16, help="Maximum number of tokens of one observation, at 4 characters each.")
    ] = 1024,
    max_calls_per_turn: Annotated[
        int, typer.Option(min=1, help="Maximum number of calls that are run in a turn or cell.")
    ] = 16,
    max_wall_seconds: Annotated[
        float | None,
        typer.Option(min=0.0, help="Time limit of a conversation in seconds; by default 1800, or none with --human."),
    ] = None,
    parallel_calls: Annotated[
        bool, typer.Option("--parallel-calls", help="Run the calls of one turn in parallel.")
    ] = False,
    verifier_module: Annotated[
        list[str] | None, typer.Option(help="Module or .py file that registers verifiers of your own; repeatable.")
    ] = None,
    reward_function: Annotated[
        str | None,
        typer.Option(help="verl reward function, as file.py:name, for rows that no environment scores."),
    ] = None,
    attempts: Annotated[int, typer.Option(min=1, help="Attempts at a request before the server counts as failed.")] = 6,
) -> None:
    """Play conversations with tools or an environment, without a trainer, and show the reward of each.

    Calls, limits, masks and rewards are those of training, and the limits have the names and defaults of
    pivot.rollout. Conversations are written as they end.

    \b
    Examples:
      verl-pivot play tools.yaml --openai http://gpu1:8000 --rows rows.parquet
      verl-pivot play shop.py:Shop --human --prompt "Order two packs of tea."
      verl-pivot play tools.yaml --loop notebook --human "Who founded Orlen?"
    """
    from verl_pivot.engines.retries import Retries
    from verl_pivot.launch_checks.sandbox_pool import check_pool
    from verl_pivot.playing.endpoint_player import ChatSampling, ChosenEndpoint
    from verl_pivot.playing.rewarding import load_reward_function
    from verl_pivot.playing.running import PlayingJob, open_toolset
    from verl_pivot.rollout.limits import RolloutLimits
    from verl_pivot.verifiers.registry import load_verifier_modules

    check_options(
        loop,
        of_tools={"--max-response-tokens": max_response_tokens is not None, "--parallel-calls": parallel_calls},
        of_notebook={
            "--max-context-tokens": max_context_tokens is not None,
            "--trim": trim is not None,
            "--no-notepad": no_notepad,
        },
    )
    if question is not None and prompt is not None:
        raise ConfigError("the message is given twice, as an argument and with --prompt; give only one of them")
    prompt = question if prompt is None else prompt
    _check_choices(openai, rows, prompt, is_human=human)
    if human:
        refuse_given(ctx, _OF_MODEL, "with --human, who answers instead of a model")
    refuse_given(ctx, ("num",) if rows is None else ("metadata",), f"with{'out' if rows is None else ''} --rows")
    wall_seconds = _wall_seconds(max_wall_seconds, is_human=human)
    notebook = None
    if loop is PlayLoop.NOTEBOOK:
        notebook = notebook_rules(
            max_steps=max_turns,
            max_step_tokens=max_turn_tokens,
            max_context_tokens=max_context_tokens,
            trim=trim,
            max_observation_tokens=max_observation_tokens,
            max_wall_seconds=wall_seconds,
            max_calls=max_calls_per_turn,
            has_notepad=not no_notepad,
        )
    load_verifier_modules(verifier_module or [])
    toolset = open_toolset(tools)
    check_pool(tools=toolset.built_in, needs_sessions=notebook is not None)
    job = PlayingJob(
        toolset=toolset,
        problems=_problems(rows, prompt, metadata, num),
        limits=RolloutLimits(
            max_response_tokens=max_response_tokens or DEFAULT_RESPONSE_TOKENS,
            max_turns=max_turns,
            max_turn_tokens=max_turn_tokens,
            max_observation_tokens=max_observation_tokens,
            max_wall_seconds=wall_seconds,
        ),
        notebook=notebook,
        num_samples=samples,
        concurrency=1 if human else concurrency or _CONCURRENCY,
        max_calls_per_turn=max_calls_per_turn,
        parallel_calls=parallel_calls,
        reward_function=None if reward_function is None else load_reward_function(reward_function),
    )
    sampling = ChatSampling(
        temperature=temperature, top_p=top_p, seed=seed, extra_body=json_object(extra_body, "--extra-body")
    )
    retries = Retries(num_attempts=attempts)
    endpoint = None if openai is None else ChosenEndpoint(url=openai, model=model, sampling=sampling, retries=retries)
    _run(job, endpoint, out, is_quiet=quiet and not human)


def _wall_seconds(given: float | None, *, is_human: bool) -> float:
    """Time limit of a conversation; infinity is none."""
    if given is None:
        return math.inf if is_human else _WALL_SECONDS
    if given == 0.0:
        raise ConfigError("--max-wall-seconds 0 leaves no time for a turn; give more, or leave the option out")
    return given


def _check_choices(openai: str | None, rows: Path | None, prompt: str | None, *, is_human: bool) -> None:
    if (openai is not None) == is_human:
        raise ConfigError("give either --openai URL, for a model, or --human, to play yourself")
    if rows is not None and prompt is not None:
        raise ConfigError("--rows and --prompt were both given; give only one of them")


def _problems(rows: Path | None, prompt: str | None, metadata: str, num: int | None) -> "list[Problem]":
    from verl_pivot.playing.problems import read_problems, text_problem

    if rows is not None:
        return read_problems(rows, num)
    text = _first_message() if prompt is None else prompt
    if not text.strip():
        raise ConfigError("there is no first message; give --prompt TEXT, or --rows with a file of training rows")
    return [text_problem(text, json_object(metadata, "--metadata"))]


def _first_message() -> str:
    try:
        return input("user> ")
    except (EOFError, UnicodeDecodeError):
        return ""


def _run(job: "PlayingJob", endpoint: "ChosenEndpoint | None", out: Path | None, *, is_quiet: bool) -> None:
    import asyncio

    from verl_pivot.commands.play_display import PlayDisplay, print_totals
    from verl_pivot.errors import PivotError
    from verl_pivot.playing.human_player import PlayerLeftError
    from verl_pivot.playing.played_rows import writing_played
    from verl_pivot.playing.running import PlayedTotals

    totals = PlayedTotals()
    display = PlayDisplay(
        num_conversations=job.num_conversations,
        is_live=min(job.concurrency, job.num_conversations) == 1,
        is_human=endpoint is None,
        is_quiet=is_quiet,
    )
    try:
        with nullcontext() if out is None else writing_played(out) as write, _progress(job, is_quiet) as on_done:
            asyncio.run(_play(job, endpoint, display, _keeper(totals, display, write, on_done)))
    except KeyboardInterrupt:
        typer.echo(f"Stopped; {_kept(totals, out)}.", err=True)
        raise typer.Exit(130) from None
    except PlayerLeftError as error:
        typer.echo(f"{error}; {_kept(totals, out)}.", err=True)
        raise typer.Exit(1) from error
    except PivotError:
        if totals.num_played:
            typer.echo(f"Stopped by an error; {_kept(totals, out)}.", err=True)
        raise
    if is_quiet or job.num_conversations > 1:
        print_totals(totals)
    if out is not None:
        typer.echo(f"Wrote {out}: {totals.num_played} conversations.")
        typer.echo(f"Next: {next_command(['import', str(out), '--out', 'trajectories.jsonl'])}")
    if totals.num_masked == totals.num_played:
        raise ConfigError(f"every conversation was masked; the last failure: {totals.last_failure}")


def _kept(totals: "PlayedTotals", out: Path | None) -> str:
    if not totals.num_played:
        return "no conversation had ended"
    if out is None:
        return f"{totals.num_played} conversations had ended; with --out they are kept in a file"
    return f"{totals.num_played} conversations that had ended are in {out}"


def _keeper(
    totals: "PlayedTotals",
    display: "PlayDisplay",
    write: "Callable[[PlayedProblem], None] | None",
    on_done: "Callable[[int], None]",
) -> "Callable[[PlayedProblem], None]":
    """Function to call with each finished conversation, which it writes before it does anything else."""

    def on_end(played: "PlayedProblem") -> None:
        if write is not None:
            write(played)
        totals.add(played)
        display.on_end(played)
        on_done(1)

    return on_end


@contextmanager
def _progress(job: "PlayingJob", is_quiet: bool) -> "Iterator[Callable[[int], None]]":
    """A progress bar where no conversation is printed."""
    from verl_pivot.commands.progress import progress_bar

    if not is_quiet:
        yield lambda count: None
        return
    with progress_bar("conversations", job.num_conversations) as on_done:
        yield on_done


async def _play(
    job: "PlayingJob",
    endpoint: "ChosenEndpoint | None",
    display: "PlayDisplay",
    on_end: "Callable[[PlayedProblem], None]",
) -> None:
    from verl_pivot.commands.typed_lines import TypedLines
    from verl_pivot.playing.human_player import HumanPlayer
    from verl_pivot.playing.running import play_problems

    if endpoint is not None:
        await play_problems(job, await endpoint.player(), on_begin=display.on_begin, on_end=on_end)
        return
    lines = TypedLines()
    with lines.terminal_restored():
        await play_problems(job, HumanPlayer(lines.read, display.say), on_begin=display.on_begin, on_end=on_end)
