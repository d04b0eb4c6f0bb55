"""L0 compared with GRPO, and with L0 without some of its parts, in a generated world: see `--help`."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from verl_pivot.commands.tables import table_console
from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

from examples.evaluated_training import train_and_evaluate  # noqa: E402
from examples.l0 import report  # noqa: E402
from examples.l0.corpus import Corpus, make_corpus  # noqa: E402
from examples.l0.measures import read_dump, read_training  # noqa: E402
from examples.l0.policy import make_policy, sft_config  # noqa: E402
from examples.l0.training import ARMS, Arm  # noqa: E402
from examples.options import Out, Seeds, Steps, all_of, chosen_names, names_option  # noqa: E402
from examples.quickstart.run import phase  # noqa: E402
from examples.units import Unit, finish, gaps  # noqa: E402
from verl_pivot.types import JsonObject  # noqa: E402

console = table_console()


def main(
    out: Out = Path("outputs/l0"),
    arms: Annotated[str, names_option("Arms to run", ARMS)] = all_of(ARMS),
    seeds: Seeds = 3,
    steps: Steps = 30,
    questions: Annotated[int, typer.Option(min=8, help="Held-out questions that each policy answers.")] = 600,
) -> None:
    """Train a small policy that answers questions in a notebook by L0 and by other methods, and compare them.

    Run the command again to continue: a finished unit (one arm with one seed) is not repeated, and an interrupted one
    resumes from its last checkpoint.

    Example: python -m examples.l0 --arms scaffold,l0,grpo --seeds 1 --steps 20 --out outputs/l0-1
    """
    chosen = chosen_names(arms, ARMS)  # first the scaffold, with which the others are compared
    seconds: dict[str, float] = {}
    with phase("corpus", "The world: an index, and questions of one to three hops", seconds):
        corpus = make_corpus(out / "world", questions)
    units: list[Unit] = []
    results: list[report.Result] = []
    for seed in range(seeds):
        with phase(f"policy {seed}", f"Seed {seed}: a tiny Qwen2 that learns a careless agent's ways", seconds):
            policy = make_policy(out / f"seed-{seed}" / "policy", sft_config(seed))
        for name in chosen:
            arm = make_arm(name, policy, corpus, out / f"seed-{seed}" / name, seed, steps)
            units.append(Unit(arm=name, seed=seed, folder=arm.folder, settings=_settings(arm, questions)))
            with phase(f"{name} {seed}", f"Seed {seed}: {name}, in the stock trainer", seconds):
                finish(units[-1], partial(train_and_evaluate, arm, console))
            played, training = read_dump(arm.evaluated), read_training(arm.rollouts)
            results.append(report.Result(arm=name, seed=seed, held_out=played, training=training))
            found = report.rows(results, corpus.questions)
            report.write(results, found, gaps(units), out)  # after each unit, since all units together take hours
    report.show(found, gaps(units), console)
    console.print(f"\nWrote {out / 'summary.json'}.")


def make_arm(name: str, policy: Path, corpus: Corpus, folder: Path, seed: int, num_steps: int) -> Arm:
    """One arm of a seed; all arms of a seed start from one policy, and all but the hard ones see the same questions."""
    return Arm(
        name=name,
        model=policy,
        rows=corpus.hard if ARMS[name].questions == "hard" else corpus.training,
        held_out=corpus.held_out,
        tools=corpus.tools,
        folder=folder,
        seed=seed,
        num_steps=num_steps,
        learning_rate=5e-4,
        batch_size=8,
        group_size=8,
    )


def _settings(arm: Arm, num_held_out: int) -> JsonObject:
    return {**arm.settings, "sft": asdict(sft_config(arm.seed)), "num_held_out": num_held_out}


def start() -> None:
    """Run `main` with the command line's arguments."""
    typer.run(main)
