"""The study's arms: which rules of ReLook count, as tools files, and the commands."""

from collections.abc import Mapping
from pathlib import Path
from random import Random

import yaml

from examples.arms import Lengths, ToolArm
from examples.render.pages import layouts, write_requests

BASE = "base"
ARMS: Mapping[str, str] = {
    BASE: "verl_pivot.tools.look:LookEnvironment",
    "relook": "verl_pivot.tools.look:LookEnvironment",
    "last_page": "examples.render.looks:LastPage",
    "broken_paid": "examples.render.looks:BrokenPagesPaid",
}
"""{name: environment whose outcome is paid}; the first arm is not trained."""
LENGTHS = Lengths(max_turns=4, prompt=64, turn=96, response=448)


def make_arm(name: str, policy: Path, folder: Path, seed: int, *, num_steps: int) -> ToolArm:
    """One arm of a seed; all arms of a seed start from one policy and see the same requests in the same order."""
    known = layouts(held_out=False)
    Random(seed).shuffle(known)
    return ToolArm(
        name=name,
        model=policy,
        rows=write_requests(folder / "requests.parquet", known),
        held_out=write_requests(folder / "held_out.parquet", layouts(held_out=True)),
        tools=write_tools(folder / f"{name}.yaml", ARMS[name]),
        folder=folder / name,
        seed=seed,
        num_steps=num_steps,
        learning_rate=3e-4,
        batch_size=8,
        group_size=8,
        project="render",
        overrides=("+method=tool_rollout",),
        is_base=name == BASE,
        lengths=LENGTHS,
    )


def write_tools(path: Path, environment: str) -> Path:
    """Write a tools file with one environment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump([{"environment": environment}]))
    return path
