"""Gymnasium's Blackjack, learnt from its rewards alone: `python -m examples.blackjack --help`."""

from dataclasses import asdict
from functools import partial
from pathlib import Path

import typer
from rich.console import Console

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

from examples.blackjack import report  # noqa: E402
from examples.blackjack.hands import write_hands  # noqa: E402
from examples.blackjack.policy import make_policy, sft_config  # noqa: E402
from examples.blackjack.training import ARMS, Arm  # noqa: E402
from examples.blackjack.transcripts import TOOLS  # noqa: E402
from examples.evaluated_training import train_and_evaluate  # noqa: E402
from examples.options import Out, Seeds, Steps  # noqa: E402
from examples.quickstart.run import phase  # noqa: E402
from examples.success import Result, read_dump  # noqa: E402
from examples.units import Unit, finish, gaps  # noqa: E402
from verl_pivot.data.rollout_dumps import FOLDER  # noqa: E402
from verl_pivot.local.supervision import run_supervised  # noqa: E402

HELD_OUT = range(100_000, 101_000)
"""Seeds of the held-out hands."""
_FIRST_SEED, _SEEDS_OF_A_TRAINING = 200_000, 10_000
console = Console()


def main(out: Out = Path("outputs/blackjack"), seeds: Seeds = 3, steps: Steps = 40) -> None:
    """Let a small policy that plays at random learn Gymnasium's Blackjack by GRPO, from the return of each hand.

    Run the command again to continue: a finished unit is not repeated, and one that was ended goes on from its last
    checkpoint.

    Example: python -m examples.blackjack --seeds 1 --out outputs/blackjack-1
    """
    seconds: dict[str, float] = {}
    units: list[Unit] = []
    results: list[Result] = []
    others = report.players(HELD_OUT)
    for seed in range(seeds):
        folder = out / f"seed-{seed}"
        with phase(f"policy {seed}", f"Seed {seed}: a tiny Qwen2 that tosses a coin for each move", seconds):
            policy = make_policy(folder / "policy", sft_config(seed))
        for name in ARMS:
            arm = make_arm(name, policy, folder, seed, steps)
            settings = {**arm.settings, "sft": asdict(sft_config(seed))}
            units.append(Unit(arm=name, seed=seed, folder=arm.folder, settings=settings))
            with phase(f"{name} {seed}", f"Seed {seed}: {name}, in the stock trainer", seconds):
                finish(units[-1], partial(train_and_evaluate, arm, console))
            results.append(_result(arm))
            report.write(results, others, gaps(units), out)
    report.show(results, others, gaps(units), console)
    console.print(f"\nWrote {out / 'summary.json'} and {out / 'blackjack.png'}.")


def make_arm(name: str, policy: Path, folder: Path, seed: int, num_steps: int) -> Arm:
    """One arm of a seed, whose training deals each hand once."""
    first = _FIRST_SEED + _SEEDS_OF_A_TRAINING * seed
    return Arm(
        name=name,
        model=policy,
        rows=write_hands(folder / "hands.parquet", range(first, first + _SEEDS_OF_A_TRAINING)),
        held_out=write_hands(folder / "held_out.parquet", HELD_OUT),
        tools=TOOLS,
        folder=folder / name,
        seed=seed,
        num_steps=num_steps,
        learning_rate=5e-4,
        batch_size=32,
        group_size=8,
    )


def _result(arm: Arm) -> Result:
    paths = (arm.rollouts / FOLDER).glob("*.jsonl") if arm.is_trained else ()
    steps = sorted(paths, key=lambda path: int(path.stem))
    training = {int(path.stem): read_dump(path) for path in steps}
    return Result(arm=arm.name, seed=arm.seed, held_out=read_dump(arm.evaluated), training=training)


def start() -> None:
    """Run `main` with the arguments of this process; killed in any way, it leaves no process behind."""
    run_supervised(lambda: typer.run(main))
