"""A method's SmokeCase and a folder -> the files of a short launch, and its overrides."""

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_pivot.configuration import configs_dir
from verl_pivot.diagnosis.installation import locked_command
from verl_pivot.diagnosis.machine import compute_capability
from verl_pivot.engines.installed import installed_engine
from verl_pivot.errors import ConfigError
from verl_pivot.local.environment import num_accelerators
from verl_pivot.planning.overrides import override_value
from verl_pivot.smoke.methods import ENVIRONMENT, JUDGE_PLACE, QUESTION, TOOLS, RowKind, SmokeCase, ToolsKind
from verl_pivot.smoke.rows import write_rows
from verl_pivot.smoke.trial_launch import NUM_STEPS, nothing_saved, training

_MAX_PROMPT_TOKENS = 2048
_MAX_RESPONSE_TOKENS = 512
_AMPERE, _HOPPER = 8.0, 9.0
"""Compute capabilities of the first and the last GPUs on which SGLang's kernels `fa3` run."""
ADDRESS = "++ray_kwargs.ray_init.address"
"""Key of the Ray cluster that a launch joins, whether or not a config of the user's own has it."""
OWN_CLUSTER = "local"
"""Value of ADDRESS with which a launch starts a cluster of this machine alone, also beside one that runs here."""
_DEFAULT_SERVICE = re.compile(r"http://127\.0\.0\.1:8000\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeMachine:
    """Machine on which launches run."""

    has_accelerator: bool
    num_workers: int
    """GPUs that a launch uses, or processes that stand for them."""
    engine: str
    """`actor_rollout_ref.rollout.name`"""
    num_rollouts: int = 16
    """Rollouts of a step for each worker."""
    compute_capability: float | None = None
    """Compute capability of its GPUs, such as 9.0 for Hopper; None if it is not known."""

    def batch_size(self, group_size: int) -> int:
        """Number of prompts in a step."""
        return max(1, self.num_rollouts // group_size) * self.num_workers

    @property
    def overrides(self) -> list[str]:
        """Overrides for this machine."""
        if not self.has_accelerator:
            workers = [
                f"trainer.n_gpus_per_node={self.num_workers}",
                f"ray_kwargs.ray_init.num_gpus={self.num_workers}",
            ]
            return ["+local=cpu", "pivot.trial_steps=null", *(workers if self.num_workers > 1 else [])]
        return [
            "trainer.nnodes=1",
            f"trainer.n_gpus_per_node={self.num_workers}",
            f"actor_rollout_ref.rollout.name={self.engine}",
            "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
            "actor_rollout_ref.rollout.gpu_memory_utilization=0.3",
            "actor_rollout_ref.rollout.enforce_eager=True",
            f"{ADDRESS}={OWN_CLUSTER}",
            *self._attention,
            *self._engine_kernels,
        ]

    @property
    def _attention(self) -> list[str]:
        if importlib.util.find_spec("flash_attn") is not None:
            return []
        return [
            "actor_rollout_ref.model.use_remove_padding=False",
            "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        ]

    @property
    def _engine_kernels(self) -> list[str]:
        """SGLang's own kernels, unless `flashinfer-cubin` is there: FlashInfer would compile for minutes.

        SGLang refuses these kernels on GPUs before Ampere and after Hopper, whose launches therefore compile.
        """
        if self.engine != "sglang" or importlib.util.find_spec("flashinfer_cubin") is not None:
            return []
        if self.compute_capability is not None and not _AMPERE <= self.compute_capability <= _HOPPER:
            return []
        kwargs = "+actor_rollout_ref.rollout.engine_kwargs.sglang"
        return [f"{kwargs}.attention_backend=fa3", f"{kwargs}.sampling_backend=pytorch"]


def compose(
    method: str, case: SmokeCase, folder: Path, model: Path, machine: SmokeMachine, services: str | None
) -> list[str]:
    """Write rows and tools of a case into a folder; returns the overrides of its launch.

    Args:
        method: Name of the method.
        case: Its case.
        folder: Folder for the files.
        model: Checkpoint of the policy.
        machine: Machine on which it runs.
        services: Address of a judge and of a search service; None if the case needs neither.
    """
    batch_size = machine.batch_size(case.group_size)
    rows = write_rows(folder / "rows.parquet", case.rows, 16 * batch_size)
    tools = _write_tools(case, method, folder, services)
    lengths = [] if method == "l0" else [f"data.max_response_length={_MAX_RESPONSE_TOKENS}"]  # l0 has a window
    return [
        f"+method={method}",
        *case.groups,
        *machine.overrides,
        *training(model, rows, batch_size=batch_size, n=case.group_size, num_steps=NUM_STEPS),
        f"actor_rollout_ref.actor.ppo_mini_batch_size={batch_size}",
        f"data.max_prompt_length={_MAX_PROMPT_TOKENS}",
        *lengths,
        *([] if case.rows is RowKind.PIVOTS else [f"data.val_files={override_value(str(rows))}"]),
        *([] if tools is None else [f"pivot.rollout.tools={override_value(str(tools))}"]),
        *(override.replace(JUDGE_PLACE, f"{services}/v1") for override in case.overrides),
        *(f"{key}={value}" for key, value in nothing_saved(folder).items()),
    ]


def _write_tools(case: SmokeCase, method: str, folder: Path, services: str | None) -> Path | None:
    """Write the tools file of a case; None if the case takes the method's own file, or none."""
    path = folder / "tools.yaml"
    match case.tools:
        case ToolsKind.FUNCTION:
            (folder / "tools.py").write_text(TOOLS)
            path.write_text(f"- function: {folder / 'tools.py'}:add\n")
        case ToolsKind.ENVIRONMENT:
            (folder / "adder.py").write_text(ENVIRONMENT)
            path.write_text(f"- environment: {folder / 'adder.py'}:Adder\n")
        case ToolsKind.SEARCH:
            name = "research" if method == "research" else "search_r1"
            shipped = (configs_dir() / "tools" / f"{name}.yaml").read_text()
            path.write_text(_DEFAULT_SERVICE.sub(str(services), shipped))
        case _:
            return None
    return path


def needs_services(case: SmokeCase) -> bool:
    """Whether a case needs a judge or a search service."""
    return case.tools is ToolsKind.SEARCH or any(JUDGE_PLACE in override for override in case.overrides)


def texts_of(case: SmokeCase) -> Sequence[str]:
    """Texts that a policy reads and writes, for training a tokenizer."""
    shown = [path.read_text() for path in sorted((configs_dir() / "tools").glob("*.yaml"))]
    return [QUESTION, TOOLS, ENVIRONMENT, *case.turns, *shown]


def this_machine(num_workers: int, num_rollouts: int = 16) -> SmokeMachine:
    """The machine that this process runs on.

    Args:
        num_workers: GPUs that a launch uses, or processes that stand for them.
        num_rollouts: Rollouts of a step for each of them.

    Raises:
        ConfigError: If it has fewer GPUs than workers, or no rollout engine.
    """
    num_found, engine = num_accelerators(), installed_engine()
    if num_found and num_workers > num_found:
        raise ConfigError(f"--workers {num_workers}: this machine has {num_found} GPUs")
    if engine is None or (engine != "sglang" and not num_found):
        raise ConfigError(f"SGLang is not installed: {locked_command()}")
    return SmokeMachine(
        has_accelerator=num_found > 0,
        num_workers=num_workers,
        engine=engine,
        num_rollouts=num_rollouts,
        compute_capability=compute_capability() if num_found else None,
    )
