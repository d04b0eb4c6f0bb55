"""Expert trajectories of a seed -> rows of each arm of single turns, and what the profile cost."""

import json
import random
from pathlib import Path
from typing import NamedTuple

import pyarrow
import pyarrow.parquet

from examples.arms import Lengths
from examples.quickstart.run import run
from examples.study.arms import Arm, Rows, TurnReward
from verl_pivot.data.files import replacing
from verl_pivot.types import JsonObject

NUM_SAMPLES = 8
"""Samples of each turn in the profile."""
STRICT_VERIFIER = "tool_call"
STRICT_OPTIONS: JsonObject = {"mode": "strict"}
"""Options with which this verifier accepts only exactly the expert's action (PivotRL, equation 2)."""


class ProfiledTurns(NamedTuple):
    """Files with the profiled turns of one seed."""

    pivots: Path
    all_turns: Path
    profile: Path

    @property
    def num_sampled(self) -> int:
        """Number of turns that the profile sampled; each sample of a turn counts as one."""
        return NUM_SAMPLES * sum(1 for line in self.profile.read_text().splitlines() if '"turn_index"' in line)


def profiled_turns(folder: Path) -> ProfiledTurns:
    """Paths of the files in the folder of a seed."""
    return ProfiledTurns(folder / "pivots.parquet", folder / "turns.parquet", folder / "profile.jsonl")


def find_pivots(trajectories: Path, policy: Path, url: str, files: ProfiledTurns, seed: int, lengths: Lengths) -> None:
    """Run the commands profile and select as a user would; both continue after an interruption."""
    limit = ("--max-prompt-tokens", str(lengths.prompt))
    sampling = ("--samples", str(NUM_SAMPLES), "--max-new-tokens", str(lengths.turn), "--seed", str(seed))
    run("profile", trajectories, "--model", policy, "--endpoint", url, "--out", files.profile, *limit, *sampling)
    for keep, out in (("pivots", files.pivots), ("all", files.all_turns)):
        select = ("--profile", files.profile, "--out", out, "--keep", keep, "--validation-share", "0")
        run("select", trajectories, *select, *limit, "--seed", str(seed))


def rows_of(arm: Arm, files: ProfiledTurns, out: Path, seed: int) -> Path:
    """Write the rows that an arm trains on; the same arm and seed always give the same rows."""
    table = pyarrow.parquet.read_table(files.pivots)
    if arm.rows is Rows.RANDOM:
        every = pyarrow.parquet.read_table(files.all_turns)
        number = min(len(table), len(every))
        table = every.take(sorted(random.Random(f"rows-{seed}").sample(range(len(every)), number)))
    if arm.reward is TurnReward.STRICT:
        for name, value in (("verifier", STRICT_VERIFIER), ("verifier_options", json.dumps(STRICT_OPTIONS))):
            column = pyarrow.array([value] * len(table), table.schema.field(name).type)
            table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), column)
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as unfinished:
        pyarrow.parquet.write_table(table, unfinished)
    return out
