"""Tasks in portions -> the trajectories that each method makes from a portion, and the environment calls it takes."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from examples.quickstart.environment import ShopEnvironment
from examples.quickstart.tasks import VERIFIER, make_task
from verl_pivot.data.files import replacing
from verl_pivot.data.json_values import as_object, encode_json
from verl_pivot.data.trajectories import parse_trajectory, read_trajectories, trajectory_as_dict
from verl_pivot.engines.retries import Retries
from verl_pivot.playing.running import open_toolset
from verl_pivot.synthesis.budget import BudgetLimits
from verl_pivot.synthesis.job import SynthesisJob
from verl_pivot.synthesis.recipes import read_recipe
from verl_pivot.synthesis.running import run_synthesis
from verl_pivot.synthesis.workshop import Inputs
from verl_pivot.synthesis.writer import ProgramWriter, Writer
from verl_pivot.tools.contract import Observation
from verl_pivot.types import Json, JsonObject, Trajectory

METHODS = ("rejection", "hindsight", "calibration")
_SHOP = "examples.synthesis_sft.portions:CountedShop"
_RECIPES = Path(__file__).parent
_NARRATOR = ProgramWriter("examples.synthesis_sft.narrator:narrate")
_FIRST_SEED = 500_000
"""First seed of the tasks, which differ from those of the policy's logs and of the quickstart's expert."""
_MOST_IDLE = 5
"""Number of portions in a row without an environment call after which the policy counts as making no calls."""
_calls: Counter[str] = Counter()


class CountedShop(ShopEnvironment):
    """The shop, which counts all calls in this process, replays and copies included."""

    def _call(self, tool_name: str, /, **arguments: Json) -> Observation:
        _calls["all"] += 1
        return super()._call(tool_name, **arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortionPart:
    """Trajectories that one method made from a portion of tasks."""

    trajectories: list[Trajectory]
    num_calls: int
    """Number of environment calls that this took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Portions:
    """The portions of one seed, each made when it is first needed, and kept in a folder."""

    folder: Path
    policy: Writer
    seed: int
    size: int = 10
    """Number of tasks in a portion."""

    def within(self, methods: tuple[str, ...], num_calls: int) -> list[Trajectory]:
        """Trajectories of the portions that these methods can make with `num_calls` environment calls.

        Raises:
            SystemExit: If several portions in a row take no call, so that the calls would never be spent.
        """
        made: list[Trajectory] = []
        left, num_idle = num_calls, 0
        for number in count():
            parts = [self._part(number, method) for method in methods]
            spent = sum(part.num_calls for part in parts)
            left -= spent
            if left < 0:
                break
            num_idle = 0 if spent else num_idle + 1
            if num_idle == _MOST_IDLE:
                raise SystemExit(
                    f"the policy {self.policy.name} called no tool in {num_idle} portions of {self.size} tasks in a "
                    f"row, up to {self.folder / f'portion-{number}'}, so that {num_calls} calls would never be spent: "
                    "teach it longer, or give another --seed"
                )
            made += [trajectory for part in parts for trajectory in part.trajectories]
        return made

    def _part(self, number: int, method: str) -> PortionPart:
        """The part that a method makes from a portion, or that an earlier run made."""
        folder = self.folder / f"portion-{number}"
        stamp = folder / f"{method}.json"
        if not stamp.is_file():
            before = _calls["all"]
            self._make(number, method, folder)
            with replacing(stamp) as unfinished:
                unfinished.write_text(json.dumps({"num_calls": _calls["all"] - before}))
        kept = folder / method / "trajectories.jsonl"
        trajectories = list(read_trajectories(kept)) if kept.is_file() else []
        return PortionPart(trajectories=trajectories, num_calls=json.loads(stamp.read_text())["num_calls"])

    def _make(self, number: int, method: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        rows = list(self._rows(number, method, folder))
        if not rows:
            return
        source = folder / f"{method}.in.jsonl"
        source.write_text("".join(f"{encode_json(row)}\n" for row in rows))
        is_tasks = method == "rejection"
        job = SynthesisJob(
            recipe=read_recipe(str(_RECIPES / f"{method}.yaml"), {}),
            inputs=Inputs(
                tasks=source if is_tasks else None,
                trajectories=None if is_tasks else source,
                toolset=open_toolset(_SHOP),
            ),
            writers={"policy": self.policy, "writer": _NARRATOR},
            out=folder / method,
            identity={},
            seed=self.seed,
            limits=BudgetLimits(),
            retries=Retries(num_attempts=1),
        )
        run_synthesis(job, lambda _: None)

    def _rows(self, number: int, method: str, folder: Path) -> Iterator[JsonObject]:
        """Input rows of a method: the tasks of a portion, their failed rollouts, or their kept rollouts."""
        if method == "rejection":
            first = _FIRST_SEED * (self.seed + 1) + number * self.size
            yield from (_task_row(seed) for seed in range(first, first + self.size))
        elif method == "hindsight":
            rejected = _lines(folder / "rejection" / "rejected.jsonl")
            yield from (as_object(row["trajectory"], "it") for row in rejected if row["reason"] == "not_solved")
        else:
            for row in _lines(folder / "rejection" / "trajectories.jsonl"):
                options: JsonObject = {"environment": _SHOP}
                yield trajectory_as_dict(replace(parse_trajectory(row), verifier=VERIFIER, verifier_options=options))


def _lines(path: Path) -> list[JsonObject]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def _task_row(seed: int) -> JsonObject:
    task = make_task(seed, held_out=False)
    prompt: list[Json] = [message.as_dict() for message in task.opening]
    return {"prompt": prompt, "metadata": encode_json(task.metadata)}


def families(trajectories: list[Trajectory]) -> Mapping[str, int]:
    """{family: number of trajectories}"""
    return dict(sorted(Counter(str(each.metadata["family"]) for each in trajectories).items()))
