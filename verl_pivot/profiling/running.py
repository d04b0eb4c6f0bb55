"""ProfileJob -> profile.jsonl: creates or resumes the file, measures the missing turns, and sorts the lines."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from verl_pivot.engines.model_facts import context_tokens
from verl_pivot.engines.pool import EnginePool
from verl_pivot.engines.rendering import PromptRenderer
from verl_pivot.engines.server import sglang_server
from verl_pivot.errors import EngineError
from verl_pivot.profiling.input_check import all_overlong, check_context, count_turns, refuse_overlong
from verl_pivot.profiling.job import ProfileJob, TurnCounts, TurnProgress
from verl_pivot.profiling.profiler import Profiler, Totals, profile_turns
from verl_pivot.profiling.profiles import TurnKey, iter_profiles
from verl_pivot.profiling.servers import find_openai_server, make_engines
from verl_pivot.profiling.summary import ProfileSummary, TurnOutcome, summarize
from verl_pivot.profiling.writer import ProfileWriter, open_profile


class FinishedProfile(NamedTuple):
    """Result of a run that finished."""

    summary: ProfileSummary
    """Summary of the whole file, including turns of earlier runs."""
    seconds: float
    """Seconds since sampling began; the start of servers and workers is not included."""
    totals: Totals
    """Sums of this run alone."""


def run_profile(job: ProfileJob, totals: Totals, console: Console, progress: TurnProgress) -> FinishedProfile:
    """Measure the turns that the profile lacks, and summarize the whole profile.

    Args:
        job: Options of the run.
        totals: Sums of this run, updated with every turn.
        console: Console that shows what the run waits for, and which endpoints fail.
        progress: Shows how many turns are done.

    Raises:
        EngineError: If no endpoint works any more; the message says how to resume the run.
        PivotError: If the input, the settings or the file are invalid.
    """
    begin = time.monotonic()
    with open_profile(job.out, job.settings) as writer:
        with console.status(Text(f"reading {job.trajectories}")):
            counts = count_turns(job, writer.done)
            if not len(writer.done):  # a profile that was begun may go on as long as its server takes the prompts
                check_context(job.settings, context_tokens(job.settings.model))
        try:
            if counts.num_left:
                begin = _measure(job, writer, counts, totals, console, progress)
            with console.status(Text(f"sorting the lines of {job.out}")):
                writer.put_in_order(TurnKey(turn.trajectory_id, turn.index) for turn in job.turns())
        except EngineError as error:
            raise EngineError(f"{error}\n{resume_hint(job, totals)}") from error
    summary = summarize(iter_profiles(job.out), job.settings.early_stop)
    if summary.num_by_outcome[TurnOutcome.OVERLONG] == summary.num_turns:
        lengths = [profile.num_prompt_tokens or 0 for profile in iter_profiles(job.out)]
        raise all_overlong(lengths, job.settings.max_prompt_tokens)
    return FinishedProfile(summary, time.monotonic() - begin, totals)


def resume_hint(job: ProfileJob, totals: Totals) -> str:
    """Sentence that says how to resume a run that did not finish."""
    return f"{totals.num_turns} more turns are finished in {job.out}: run the same command again to go on"


def _measure(
    job: ProfileJob,
    writer: ProfileWriter,
    counts: TurnCounts,
    totals: Totals,
    console: Console,
    progress: TurnProgress,
) -> float:
    """Measure in this process or on a Ray cluster; returns the `time.monotonic()` at which sampling began."""
    if job.on_ray is not None:
        from verl_pivot.profiling.ray_running import measure_on_ray

        return measure_on_ray(job, job.on_ray, writer, counts, totals, console, progress)
    with console.status(Text(f"loading the tokenizer of {job.settings.model}")):
        renderer = PromptRenderer(job.settings.model, job.settings.chat_template_kwargs)
        limit = job.settings.max_prompt_tokens
        refuse_overlong(job.turns(), lambda turn: len(renderer.prompt_ids(turn)), limit)

    def say(message: str) -> None:
        console.print(message, highlight=False)

    async def run(urls: Sequence[str]) -> None:
        engines = make_engines(await find_openai_server(job), urls, job.retries)
        pool = EnginePool(engines, say)
        profiler = Profiler(renderer=renderer, pool=pool, settings=job.settings, seed=job.seed, totals=totals, say=say)
        with progress(counts, totals) as on_turn:
            concurrency = job.concurrency * len(engines)
            await profile_turns(job.turns(), profiler, writer, concurrency=concurrency, on_turn=on_turn)

    with _endpoints(job, console) as urls:
        begin = time.monotonic()
        asyncio.run(run(urls))
    return begin


@contextmanager
def _endpoints(job: ProfileJob, console: Console) -> Iterator[tuple[str, ...]]:
    """URLs of the job's SGLang servers; if the job names no server, one is started and runs until the block ends."""
    if job.endpoints or job.openai:
        yield job.endpoints
        return
    log = job.out.with_name(f"{job.out.name}.server.log")
    with sglang_server(
        job.settings.model, log=log, seed=job.seed, extra_flags=job.server_flags, console=console
    ) as url:
        yield (url,)
