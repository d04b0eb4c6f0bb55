"""A fifth of the labels of a set broken on purpose -> how many `closed_loop` repairs, and how many it breaks."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from examples.synthesis.clerk import is_right, labelled_turn, tasks
from verl_pivot.data.json_values import encode_json
from verl_pivot.data.messages import parse_message
from verl_pivot.data.trajectories import trajectory_as_dict
from verl_pivot.engines.retries import Retries
from verl_pivot.playing.running import open_toolset
from verl_pivot.statistics import wilson_interval
from verl_pivot.synthesis.budget import BudgetLimits
from verl_pivot.synthesis.job import SynthesisJob
from verl_pivot.synthesis.recipes import read_recipe
from verl_pivot.synthesis.running import run_synthesis
from verl_pivot.synthesis.workshop import Inputs
from verl_pivot.synthesis.writer import ProgramWriter
from verl_pivot.synthesis.wrong_calls import wrong_calls
from verl_pivot.types import JsonObject, Message, Trajectory, Turn

_CLERK = "examples.synthesis.clerk"
_SHOP = "examples.quickstart.environment:ShopEnvironment"
_RECIPE = Path(__file__).parent / "labels.yaml"
_ROLES = ("first_judge", "second_judge", "third_judge")
BROKEN_SHARE = 5
"""Number of labels of which one is broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelReport:
    """Fates of the labels, counted apart for broken and for right labels."""

    judges: int
    """Number of judges that are asked; with 0 judges the outcomes alone decide."""
    fates: dict[str, dict[str, int]]
    """{"broken" or "right": {fate: number of labels}}"""
    num_solved: int
    """Number of broken labels for which the policy's own action is right, and the policy then solves the task."""
    num_repaired: int
    """Number of these labels that were replaced by a right one."""

    def lines(self) -> list[str]:
        """The report for people."""
        num_right = sum(self.fates["right"].values())
        num_broken_now = self.fates["right"].get("wrong label", 0)
        low, high = wilson_interval(self.num_repaired / max(self.num_solved, 1), max(self.num_solved, 1))
        worst = wilson_interval(num_broken_now / num_right, num_right).high
        return [
            f"judges: {self.judges}",
            f"  broken labels: {self.fates['broken']}; repaired {self.num_repaired} of the {self.num_solved} that the "
            f"policy solves ({100 * low:.1f} to {100 * high:.1f} %)",
            f"  right labels: {self.fates['right']}; {num_broken_now} of {num_right} were made wrong (at most "
            f"{100 * worst:.1f} %)",
        ]


async def labelled_rows(num: int) -> tuple[list[bool], list[Trajectory]]:
    """[num] whether each label is broken, and its row."""
    broken: list[bool] = []
    rows: list[Trajectory] = []
    for number, task in enumerate(tasks(num)):
        turn = labelled_turn(task)
        wrong = await _broken(turn) if number % BROKEN_SHARE == 0 else None
        broken.append(wrong is not None)
        rows.append(_row(turn, wrong or turn.expert))
    return broken, rows


async def _broken(turn: Turn) -> Message | None:
    """A call with a value from elsewhere, or of another tool, that the verifier refuses; None if there is none."""
    for call in wrong_calls(turn, random.Random(f"broken-{turn.id}")):
        action = replace(turn.expert, tool_calls=(call,))
        if not await is_right(action, turn):
            return action
    return None


def _row(turn: Turn, label: Message) -> Trajectory:
    return Trajectory(
        id=turn.trajectory_id,
        messages=(*turn.state, label),
        tools=turn.tools,
        verifier=turn.verifier,
        verifier_options=turn.verifier_options,
        metadata=turn.metadata,
        expert_turns="last",
    )


def repair_labels(out: Path, num: int, *, with_judges: bool) -> LabelReport:
    """Break a fifth of the labels, run the steps of `closed_loop` that verify labels, and count.

    Args:
        out: Folder for the labels and for the results.
        num: Number of labels.
        with_judges: Whether three judges are asked where the label does not solve its task.
    """
    labels = out / "labels.jsonl"
    broken, rows = asyncio.run(labelled_rows(num))
    labels.parent.mkdir(parents=True, exist_ok=True)
    labels.write_text("".join(encode_json(trajectory_as_dict(row)) + "\n" for row in rows))
    roles = [*_ROLES] if with_judges else []
    made = out / ("with_judges" if with_judges else "by_outcomes")
    job = SynthesisJob(
        recipe=read_recipe(str(_RECIPE), {"verified_label.roles": roles}),
        inputs=Inputs(trajectories=labels, toolset=open_toolset(_SHOP)),
        writers={
            "policy": ProgramWriter(f"{_CLERK}:answer"),
            **{role: ProgramWriter(f"{_CLERK}:{role}") for role in roles},
        },
        out=made,
        identity={},
        limits=BudgetLimits(),
        retries=Retries(num_attempts=1),
    )
    run_synthesis(job, lambda count: None)
    return asyncio.run(_count(made, broken, judges=len(roles)))


async def _count(made: Path, broken: list[bool], *, judges: int) -> LabelReport:
    fates: dict[str, Counter[str]] = {"broken": Counter(), "right": Counter()}
    num_solved = num_repaired = 0
    known = tasks(len(broken))
    rows = [*_lines(made / "trajectories.jsonl"), *_lines(made / "rejected.jsonl")]
    for row in rows:
        values = _values(row)
        number = int(str(row["id"]).partition("/")[0].rpartition("-")[2]) - 1
        turn = labelled_turn(known[number])
        if "reason" in row:
            fate = f"left out as {row['reason']}"
        else:
            label = parse_message(row["messages"][-1])  # type: ignore[index]
            fate = "right label" if await is_right(label, turn) else "wrong label"
        fates["broken" if broken[number] else "right"][fate] += 1
        action = values.get("policy_action")
        if broken[number] and values.get("policy_solves") and await is_right(parse_message(action), turn):
            num_solved += 1
            num_repaired += fate == "right label"
    counts = {kind: dict(each.most_common()) for kind, each in fates.items()}
    return LabelReport(judges=judges, fates=counts, num_solved=num_solved, num_repaired=num_repaired)


def _lines(path: Path) -> list[JsonObject]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def _values(row: Mapping[str, object]) -> JsonObject:
    """Values that the steps of the recipe stored in a row, whether the row was kept or rejected."""
    if "reason" in row:
        return row["provenance"]["values"]  # type: ignore[index,no-any-return]
    return row["metadata"]["verl_pivot"]["synthesis"]["values"]  # type: ignore[index,no-any-return]
