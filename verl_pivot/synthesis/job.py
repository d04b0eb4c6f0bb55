"""SynthesisJob: what one run of `verl-pivot synthesize` makes, from what, by whom, and within what."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from verl_pivot.data.journal import input_identity
from verl_pivot.engines.retries import Retries
from verl_pivot.synthesis.asking import GateSettings
from verl_pivot.synthesis.budget import BudgetLimits
from verl_pivot.synthesis.recipes import Recipe
from verl_pivot.synthesis.workshop import Inputs
from verl_pivot.synthesis.writer import Writer
from verl_pivot.types import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadOptions:
    """How `verl-pivot synthesize --ray` uses a Ray cluster."""

    address: str
    """Address of the cluster, host:port; "auto" is the cluster of this machine."""
    workers_per_node: int
    """Processes on each node that has CPUs."""
    tools: str | None
    """Tools file or environment of the command, which every worker opens."""
    modules: tuple[str, ...]
    """Modules that register steps, verifiers and filters, which every worker imports."""
    say: Callable[[str], None]
    """Called with a message for the user when a worker is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesisJob:
    """What is made, and how."""

    recipe: Recipe
    inputs: Inputs
    writers: Mapping[str, Writer]
    """{role: who plays it}"""
    out: Path
    """Folder of the output."""
    identity: JsonObject
    """Everything else that the output depends on, by which an interrupted run is known again."""
    seed: int = 0
    limits: BudgetLimits
    retries: Retries
    concurrency: int = 32
    """Questions at a time, and items at a time, of all workers together."""
    on_ray: SpreadOptions | None = None
    """Use of a Ray cluster; None makes all items in this process. The output is the same."""

    def gate_settings(self, folder: Path) -> GateSettings:
        """What the gate of the job is made from.

        Args:
            folder: Keeps what the budget has spent.
        """
        return GateSettings(
            out=self.out, folder=folder, limits=self.limits, retries=self.retries, concurrency=self.concurrency
        )

    def settings(self) -> JsonObject:
        """Everything that the output depends on."""
        inputs = [path for path in (self.inputs.tasks, self.inputs.trajectories) if path is not None]
        return {
            "recipe": self.recipe.content,  # type: ignore[dict-item]  # checked to be JSON when it was read
            "seed": self.seed,
            "inputs": [input_identity(path) for path in inputs],
            "writers": {role: [writer.name, writer.answer_format] for role, writer in self.writers.items()},
            **self.identity,
        }
