"""Model calls per CPU second of `verl-pivot synthesize`, and its memory for many drafts.

Run by `make bench-synthesis`, or with other sizes by `python -m benchmarks.bench_synthesis --help`. The server answers
at once and runs in a process of its own; its CPU time is not counted.
"""

import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from aiohttp import web
from rich.table import Table

from verl_pivot.commands.tables import table_console
from verl_pivot.engines.retries import Retries
from verl_pivot.synthesis.budget import BudgetLimits
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.job import SynthesisJob
from verl_pivot.synthesis.recipes import read_recipe
from verl_pivot.synthesis.running import run_synthesis
from verl_pivot.synthesis.steps import MakeStep, make_step
from verl_pivot.synthesis.workshop import Inputs, Workshop
from verl_pivot.synthesis.writer import EndpointWriter, ProgramWriter, Writer
from verl_pivot.types import Message, Role, Trajectory
from verl_pivot.validation import Options

_MODULE = "benchmarks.bench_synthesis"
_MIB = 1024


class QuestionsOptions(Options):
    num: int
    """Questions about each item."""


@make_step("bench_questions", options=QuestionsOptions)
def questions(options: QuestionsOptions) -> MakeStep:
    """Ask questions about an item; each answer becomes a draft with a short trajectory."""

    async def make(draft: Draft, workshop: Workshop) -> Sequence[Draft]:
        made = []
        for k in range(options.num):
            asked = Message(role=Role.USER, content=f"Question {k} about item {draft.id}. " * 20)
            answer = await workshop.ask([asked.as_dict()], k=k)
            messages = (asked, Message(role=Role.ASSISTANT, content=answer.text))
            made.append(draft.made(k, trajectory=Trajectory(id=f"{draft.id}/{k}", messages=messages)))
        return made

    return make


def at_once(question: object) -> str:
    """Program that answers every question."""
    return "An answer."


class Cost(NamedTuple):
    """Time and peak memory of a run."""

    seconds: float
    cpu_seconds: float
    peak_mib: float


def measured(writer: Writer, num_items: int, num_questions: int, concurrency: int) -> Cost:
    """Run a recipe with `num_questions` questions about each of `num_items` numbers, and measure it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "bench.yaml").write_text(
            f"- numbers: {{num: {num_items}}}\n- bench_questions: {{num: {num_questions}}}\n"
        )
        job = SynthesisJob(
            recipe=read_recipe(str(folder / "bench.yaml"), {}),
            inputs=Inputs(),
            writers={"writer": writer},
            out=folder / "out",
            identity={},
            limits=BudgetLimits(tokens=10**12),
            retries=Retries(),
            concurrency=concurrency,
        )
        began, cpu_began = time.monotonic(), time.process_time()
        run_synthesis(job, lambda count: None)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _MIB
        return Cost(time.monotonic() - began, time.process_time() - cpu_began, peak)


def main(
    calls: Annotated[int, typer.Option(min=1, help="Calls to the model server.")] = 10_000,
    drafts: Annotated[int, typer.Option(min=1, help="Drafts of the run whose memory is measured.")] = 1_000_000,
    concurrency: Annotated[int, typer.Option(min=1, help="Model calls at a time.")] = 64,
    serve: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Print calls per CPU second beside the target of 500, and peak memory beside the target of 300 MiB."""
    if serve:
        asyncio.run(_serve())
        return
    table = Table()
    for column in ("", "wall s", "CPU s", "calls per CPU s", "peak MiB", "target"):
        table.add_column(column, justify="right" if column else "left")
    with server_process() as url:
        writer = EndpointWriter(url, "bench", answer_format="text", retries=Retries())
        cost = measured(writer, calls // 10, 10, concurrency)
    rate = f"{calls / cost.cpu_seconds:.0f}"
    table.add_row(f"{calls:,} calls", *_times(cost), rate, f"{cost.peak_mib:.0f}", ">= 500 calls per CPU s")
    cost = measured(ProgramWriter("__main__:at_once"), drafts // 10, 10, concurrency)
    rate = f"{drafts / cost.cpu_seconds:.0f}"
    table.add_row(f"{drafts:,} drafts by a program", *_times(cost), rate, f"{cost.peak_mib:.0f}", "<= 300 MiB")
    table_console().print(table)


def _times(cost: Cost) -> tuple[str, str]:
    return f"{cost.seconds:.1f}", f"{cost.cpu_seconds:.1f}"


@contextmanager
def server_process() -> Iterator[str]:
    """Run the model server until the block ends; yields its address."""
    process = subprocess.Popen([sys.executable, "-m", _MODULE, "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


async def _serve() -> None:
    body = (
        b'{"choices": [{"index": 0, "message": {"role": "assistant", "content": "An answer."}, '
        b'"finish_reason": "stop"}], "usage": {"prompt_tokens": 150, "completion_tokens": 3}}'
    )

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", answer)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    print(f"http://{host}:{port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    typer.run(main)
