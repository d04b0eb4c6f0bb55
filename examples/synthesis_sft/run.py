"""A policy's own rollouts -> SFT data by three methods at equal environment calls -> policies that are compared."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from verl_pivot.commands.tables import table_console
from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

from transformers import Qwen2ForCausalLM  # noqa: E402

from examples.options import HeldOutTasks, Out, Seed  # noqa: E402
from examples.quickstart.evaluate import Accuracy, evaluate  # noqa: E402
from examples.quickstart.policy import SftConfig, encode, make_policy, train  # noqa: E402
from examples.synthesis_sft.portions import METHODS, Portions, families  # noqa: E402
from examples.synthesis_sft.tiny_writer import TinyPolicy, TinyWriter  # noqa: E402
from verl_pivot.statistics import paired_difference  # noqa: E402
from verl_pivot.types import Trajectory  # noqa: E402

ARMS = {" + ".join(METHODS[:number]): METHODS[:number] for number in range(1, len(METHODS) + 1)}
console = table_console()


def main(
    out: Out = Path("outputs/synthesis_sft"),
    seed: Seed = 0,
    calls: Annotated[int, typer.Option(min=100, help="Environment calls of each arm.")] = 1500,
    steps: Annotated[int, typer.Option(min=1, help="Steps of SFT, of 12 trajectories each.")] = 150,
    tasks: HeldOutTasks = 200,
) -> None:
    """Train the careless clerk's policy on its own rollouts, by rejection sampling, with hindsight and calibration.

    The base policy and the SFT data in the folder are used again; the trainings and evaluations are repeated.

    Example: python -m examples.synthesis_sft --seed 1 --out outputs/sft-1
    """
    config = SftConfig(seed=seed)
    base = make_policy(out / "policy", config)
    policy = TinyPolicy(base)
    portions = Portions(folder=out / "portions", policy=TinyWriter(policy, f"clerk-{seed}"), seed=seed)
    results = {"base": _evaluated(policy, tasks)}
    data: dict[str, list[Trajectory]] = {}
    for arm, methods in ARMS.items():
        data[arm] = portions.within(methods, calls)
        console.print(
            f"{arm}: {len(data[arm])} trajectories, {dict(families(data[arm]))}", highlight=False, soft_wrap=True
        )
        trained = _trained(base, data[arm], config, steps, out / f"arm-{len(methods)}")
        results[arm] = _evaluated(TinyPolicy(trained), tasks)
    _show(results, {"base": [], **data}, seed)
    summary = {
        arm: {**accuracy.as_dict(), "num_trajectories": len(data.get(arm, []))} for arm, accuracy in results.items()
    }
    path = out / "summary.json"
    settings = {"seed": seed, "calls": calls, "steps": steps, "tasks": tasks}
    path.write_text(json.dumps({**settings, "arms": summary}, indent=2) + "\n")
    console.print(f"Wrote {path}.")


def _evaluated(policy: TinyPolicy, num_tasks: int) -> Accuracy:
    """Success on whole held-out tasks, with greedy decoding."""
    return asyncio.run(evaluate(policy.greedy, policy.tokenizer, num_tasks=num_tasks, num_turn_tasks=1)).tasks


def _trained(base: Path, trajectories: list[Trajectory], config: SftConfig, steps: int, folder: Path) -> Path:
    """The base policy after SFT on the trajectories."""
    policy = TinyPolicy(base)
    model = Qwen2ForCausalLM.from_pretrained(base)
    examples = [encode(policy.tokenizer, each) for each in trajectories]
    lessons = SftConfig(
        seed=config.seed, num_copy_steps=0, num_careful_steps=0, num_careless_steps=steps, learning_rate=3e-4
    )
    if len(examples) < 3 * lessons.part_size:
        raise SystemExit(f"only {len(examples)} trajectories were made, and a step takes 12: give more --calls")
    train(model, [], examples, lessons)
    model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return folder


def _show(results: dict[str, Accuracy], data: dict[str, list[Trajectory]], seed: int) -> None:
    table = Table(title=f"Held-out tasks, greedy (seed {seed})", title_justify="left")
    for column in ("arm", "trajectories", "solved", "points over base"):
        table.add_column(column, justify="left" if column == "arm" else "right")
    base = results["base"].outcomes
    for arm, accuracy in results.items():
        low, high = accuracy.interval
        gain, (least, most) = paired_difference(base, accuracy.outcomes)
        solved = f"{100 * accuracy.value:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"
        points = "" if arm == "base" else f"{100 * gain:+.0f} [{100 * least:+.0f}, {100 * most:+.0f}]"
        table.add_row(arm, str(len(data[arm])), solved, points)
    console.print(table)


def start() -> None:
    """Run `main` with the command line's arguments."""
    typer.run(main)
