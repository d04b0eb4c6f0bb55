"""The study's arms: the rules of ReLook that each follows, as a tools file, and its command."""

from collections.abc import Mapping
from pathlib import Path
from random import Random

import yaml

from examples.arms import Lengths, ToolArm
from examples.render.pages import layouts, write_requests
from examples.results_file import sources_digest
from verl_pivot.tools.forced_optimization import MAX_REVISIONS
from verl_pivot.types import JsonObject

BASE, RELOOK, LAST_PAGE, BROKEN_PAID = "base", "relook", "last_page", "broken_paid"
ARMS: Mapping[str, str] = {
    BASE: "verl_pivot.tools.look:LookEnvironment",
    RELOOK: "verl_pivot.tools.look:LookEnvironment",
    LAST_PAGE: "examples.render.looks:LastPage",
    BROKEN_PAID: "examples.render.looks:BrokenPagesPaid",
}
"""{name: environment whose outcome is the reward}; the first arm is not trained."""
LENGTHS = Lengths(max_turns=2 + MAX_REVISIONS, prompt=64, turn=96, response=512)
"""Limits with turns for a page, its revisions, and the message that the policy is done."""
_SAVED_EVERY = 5
_NUM_SAMPLES = 4
"""Number of trajectories for each held-out request."""
_SOURCES = ("looks.py", "pages.py", "transcripts.py")
"""Files that decide results although no setting of a unit shows their contents; their digest is a setting."""


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
        saved_every=_SAVED_EVERY,
        num_samples=_NUM_SAMPLES,
    )


def hidden_settings(arm: ToolArm) -> JsonObject:
    """Settings that the arm's command does not show: its environment, and the digest of the files in _SOURCES."""
    return {"environment": ARMS[arm.name], "sources": sources_digest(Path(__file__).parent, _SOURCES)}


def write_tools(path: Path, environment: str) -> Path:
    """Write a tools file with one environment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump([{"environment": environment}]))
    return path
