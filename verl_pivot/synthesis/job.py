"""SynthesisJob: the recipe, inputs, models, limits and output folder of one run of `verl-pivot synthesize`."""

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
    """Number of worker processes on each node that has CPUs."""
    tools: str | None
    """Tools file or environment of the command; every worker opens it."""
    modules: tuple[str, ...]
    """Modules that register steps, verifiers and filters; every worker imports them."""
    say: Callable[[str], None]
    """Called with a message for the user when a worker is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesisJob:
    """Options of one run of `verl-pivot synthesize`."""

    recipe: Recipe
    inputs: Inputs
    writers: Mapping[str, Writer]
    """{role: the role's writer}"""
    out: Path
    """Folder of the output."""
    identity: JsonObject
    """Everything else that the output depends on; an interrupted run is resumed only if it is the same."""
    seed: int = 0
    limits: BudgetLimits
    retries: Retries
    concurrency: int = 32
    """Maximum number of concurrent questions, and of concurrent items, over all workers together."""
    on_ray: SpreadOptions | None = None
    """Options of a Ray cluster; None makes all items in this process. The output is the same."""

    def gate_settings(self, folder: Path) -> GateSettings:
        """Settings of the job's gate.

        Args:
            folder: Folder of the ledger, which records the spent budget.
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
            "writers": {role: [writer.identity, writer.answer_format] for role, writer in self.writers.items()},
            **self.identity,
        }
