"""MCP-RL in a shop behind an MCP server, with a judge instead of labels: `python -m examples.mcp_rl --help`."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

from examples.arms import ToolArm, console, train_arms  # noqa: E402
from examples.evaluated_training import train_and_evaluate  # noqa: E402
from examples.mcp_rl.tasks import make_tasks, write_rows, write_tools  # noqa: E402
from examples.mcp_rl.training import ARMS, BASE, RULER, overrides_of  # noqa: E402
from examples.options import Out, Seeds, Steps, all_of, chosen_names, names_option  # noqa: E402
from examples.quickstart.policy import SftConfig, make_policy  # noqa: E402
from examples.quickstart.run import FIRST_EXPERT_SEED  # noqa: E402
from examples.scripted_judge import served  # noqa: E402
from examples.success import Result, draw, read_dump, show, success_rows, write  # noqa: E402

NUM_TASKS = 2000
NUM_HELD_OUT = 300


def main(
    out: Out = Path("outputs/mcp-rl"),
    arms: Annotated[str, names_option("Arms to run", ARMS)] = all_of(ARMS),
    seeds: Seeds = 3,
    steps: Steps = 40,
    wrong_share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the trajectories that the judge takes for the opposite.")
    ] = 0.1,
) -> None:
    """Train a small policy on a shop's MCP server by RULER, without labels, and by the outcome of the tasks.

    Run the command again to continue: a finished unit (one arm with one seed) is not repeated. An interrupted training
    starts over, since its only checkpoint is the one after its last step.

    Example: python -m examples.mcp_rl --arms base,ruler --seeds 1 --out outputs/mcp-rl-1
    """
    results: list[Result] = []
    missing: list[str] = []
    for arm, missing in train_arms(
        chosen_names(arms, ARMS),
        range(seeds),
        out,
        about_policy="a tiny Qwen2 that a careless clerk taught bad habits",
        sft_config=lambda seed: SftConfig(seed=seed),
        make_policy=make_policy,
        make_arm=partial(make_arm, num_steps=steps),
        train=partial(_train, wrong_share=wrong_share),
        settings=lambda arm: {"wrong_share": wrong_share},
    ):
        results.append(Result(arm=arm.name, seed=arm.seed, held_out=read_dump(arm.evaluated), training={}))
        found = success_rows(results, ARMS)
        write(found, missing, out)  # after each unit, since all units together take hours
        draw(found, out / "mcp_rl.png")
    show(success_rows(results, ARMS), missing, console)
    console.print(f"\nWrote {out / 'summary.json'}, {out / 'mcp_rl.png'}.")


def make_arm(name: str, policy: Path, folder: Path, seed: int, *, num_steps: int) -> ToolArm:
    """One arm of a seed; all arms of a seed start from one policy and see the same tasks."""
    tasks = make_tasks(_seeds(seed))
    rows = folder / ("unlabelled.parquet" if name == RULER else "labelled.parquet")
    return ToolArm(
        name=name,
        model=policy,
        rows=write_rows(rows, tasks, labelled=name != RULER),
        held_out=write_rows(folder / "held_out.parquet", make_tasks(range(NUM_HELD_OUT), held_out=True), labelled=True),
        tools=write_tools(folder / "tools.yaml"),
        folder=folder / name,
        seed=seed,
        num_steps=num_steps,
        learning_rate=2e-4,
        batch_size=16,
        group_size=8,
        project="mcp_rl",
        overrides=overrides_of(name),
        is_base=name == BASE,
    )


def _seeds(seed: int) -> range:
    """Seeds of the training tasks for one seed of the study; the policy's SFT never saw these tasks."""
    first = FIRST_EXPERT_SEED * (seed + 1)
    return range(first, first + NUM_TASKS)


def _train(arm: ToolArm, wrong_share: float) -> None:
    """Run the training command; if the arm has a judge, it is served meanwhile."""
    if arm.name != RULER:
        train_and_evaluate(arm, console)
        return
    seeds = _seeds(arm.seed)
    arguments = (str(seeds.start), str(len(seeds)), str(wrong_share))
    with served("ruler", "examples.mcp_rl.judge", *arguments, log=arm.folder / "judge.log") as url:
        train_and_evaluate(replace(arm, overrides=overrides_of(arm.name, url)), console)


def start() -> None:
    """Run `main` with the command line's arguments."""
    typer.run(main)
