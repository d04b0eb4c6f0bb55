"""SFT trajectories -> a better policy, on one machine without a GPU: `python -m examples.quickstart --help`."""

import asyncio
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from verl_pivot.commands.tables import table_console
from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

from transformers import AutoTokenizer  # noqa: E402

from examples.options import HeldOutTasks, Out, Seed  # noqa: E402
from examples.quickstart import report  # noqa: E402
from examples.quickstart.evaluate import Evaluation, evaluate  # noqa: E402
from examples.quickstart.policy import MAX_NEW_TOKENS, MAX_PROMPT_TOKENS, SftConfig, make_policy  # noqa: E402
from examples.quickstart.tasks import VERIFIER, VERIFIER_OPTIONS, record_logs, write_trajectories  # noqa: E402
from examples.quickstart.training import Training, read_steps, shell, train  # noqa: E402
from verl_pivot.engines.engine import Sampling  # noqa: E402
from verl_pivot.engines.server import sglang_server  # noqa: E402
from verl_pivot.engines.sglang_engine import SGLangEngine  # noqa: E402

FIRST_EXPERT_SEED = 100_000
"""First seed of the expert's tasks, which the policy's SFT never saw; held-out tasks have other names and numbers."""

LESSONS = SftConfig(num_careful_steps=1000, head_size=32)
"""SFT of the base policy. With half as many heads and 600 steps, some policies copied no items and told no count from a
sum: which ones depends on the machine, since it rounds sums of floats in its own way."""

console = table_console()


def main(
    out: Out = Path("outputs/quickstart"),
    seed: Seed = 0,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 35,
    trajectories: Annotated[int, typer.Option(min=60, help="Expert trajectories to profile.")] = 120,
    tasks: HeldOutTasks = 300,
) -> None:
    """Make a small policy, find its pivots, train on them with the stock verl trainer and measure the gain.

    A finished phase is not repeated: run the command again to continue, or remove the folder of --out to start over.

    Example: python -m examples.quickstart --seed 1 --out outputs/seed-1
    """
    out.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, float] = {}

    with phase(
        "policy", "1. A tiny Qwen2, brought to partial skill by SFT on good logs and a careless clerk's", seconds
    ):
        policy = make_policy(out / "policy", replace(LESSONS, seed=seed))

    expert = out / "expert.jsonl"
    first = FIRST_EXPERT_SEED * (seed + 1)
    write_trajectories(expert, record_logs(range(first, first + trajectories)))

    with sglang_server(str(policy), log=out / "base.server.log", seed=seed, console=console) as url:
        with phase("profile", "2. Which turns are pivots? import, profile, select", seconds):
            pivots = find_pivots(out, expert, policy, url, seed)
        with phase("base evaluation", f"3. The base policy on {tasks} held-out tasks", seconds):
            base = measure(url, policy, tasks)

    training = Training(
        model=policy,
        rows=pivots,
        folder=out / "training",
        seed=seed,
        num_steps=steps,
        learning_rate=2e-4,
        batch_size=16,
        group_size=8,
    )
    with phase("training", "4. GRPO on the pivots, in the stock trainer", seconds):
        train_shown(training)
    with phase("trained evaluation", "5. The trained policy on the same tasks", seconds):
        trained = measure_checkpoint(training.trained, out / "trained.server.log", seed, tasks)

    summary = report.Summary(seed=seed, base=base, trained=trained, seconds=seconds, steps=read_steps(training.log))
    report.write(summary, out)
    report.show(summary, console)
    console.print(f"\nWrote {out / 'summary.json'}, {out / 'quickstart.png'} and {pivots.with_suffix('.png')}.")
    console.print(f"Read its rollouts, turn by turn: verl-pivot inspect {training.folder}")
    console.print("Next: your own trajectories.\n  verl-pivot import your-trajectories.jsonl --out trajectories.jsonl")


@contextmanager
def phase(name: str, title: str, seconds: dict[str, float]) -> Iterator[None]:
    """Print a phase's title and store the seconds that it takes under its name."""
    console.rule(title, align="left")
    start = time.monotonic()
    yield
    seconds[name] = time.monotonic() - start


def find_pivots(out: Path, expert: Path, policy: Path, url: str, seed: int) -> Path:
    """Run import, profile and select by the commands that a user would type; returns the file of pivots."""
    trajectories, profile, pivots = out / "trajectories.jsonl", out / "profile.jsonl", out / "pivots.parquet"
    verifier = ("--verifier", VERIFIER, "--verifier-options", json.dumps(VERIFIER_OPTIONS))
    run("import", expert, *verifier, "--out", trajectories)
    limit = ("--max-prompt-tokens", str(MAX_PROMPT_TOKENS))
    sampling = (*limit, "--max-new-tokens", str(MAX_NEW_TOKENS), "--seed", str(seed))
    run("profile", trajectories, "--model", policy, "--endpoint", url, "--out", profile, *sampling)
    run("select", trajectories, "--profile", profile, "--out", pivots, *limit, "--seed", str(seed))
    return pivots


def run(*arguments: str | Path) -> None:
    """Print a `verl-pivot` command and run it.

    Raises:
        SystemExit: If the command fails; it has then printed the reason.
    """
    command = ["verl-pivot", *map(str, arguments)]
    console.print(f"$ {shlex.join(command)}", highlight=False, markup=False, soft_wrap=True, style="dim")
    program = Path(sys.executable).parent / command[0]
    returncode = subprocess.run([program, *command[1:]], check=False).returncode
    if returncode != 0:
        raise SystemExit(returncode)


def train_shown(training: Training) -> None:
    """Print the training command and run it, unless its result exists already."""
    console.print(shell(training.command), highlight=False, markup=False, soft_wrap=True, style="dim")
    if not training.trained.is_dir():
        train(training)


def measure_checkpoint(policy: Path, log: Path, seed: int, num_tasks: int) -> Evaluation:
    """Greedy evaluation of a checkpoint, on a server of its own."""
    with sglang_server(str(policy), log=log, seed=seed, console=console) as url:
        return measure(url, policy, num_tasks)


def measure(url: str, policy: Path, num_tasks: int) -> Evaluation:
    """Greedy evaluation of the policy that is served at `url`."""
    sampling = Sampling(temperature=0.0, top_p=1.0, top_k=-1, max_new_tokens=MAX_NEW_TOKENS, seed=0)

    async def generate_and_close() -> Evaluation:
        engine = SGLangEngine(url)

        async def generate(prompt_ids: list[int]) -> list[int]:
            (completion,) = await engine.generate(prompt_ids, sampling, 1)
            return list(completion.token_ids)

        try:
            return await evaluate(generate, AutoTokenizer.from_pretrained(policy), num_tasks=num_tasks)
        finally:
            await engine.close()

    return asyncio.run(generate_and_close())


def start() -> None:
    """Run `main` with the command line's arguments."""
    typer.run(main)
