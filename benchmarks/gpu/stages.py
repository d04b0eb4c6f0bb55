"""Stages of a visit to a machine with a GPU: they run one after the other, and each writes its own results."""

from dataclasses import dataclass
from pathlib import Path

STAGE_SECONDS = 540.0
"""Time limit of one stage in seconds, so that it fits into a visit of ten minutes."""
SHAPE_PLACE = "{shape}"
"""Placeholder in commands for the folder of the large model without weights."""
OUT_PLACE = "{out}"
"""Placeholder in commands for the folder of the results."""
_SERVER_FLAGS = ("--load-format=dummy", "--sampling-backend=pytorch", "--disable-piecewise-cuda-graph")
"""Flags for weights that the engine makes up, and for a start without kernels that take minutes to compile."""
_FLAGS = tuple(f"--flag={flag}" for flag in _SERVER_FLAGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One measurement, useful without the others."""

    number: int
    title: str
    commands: tuple[tuple[str, ...], ...]
    """Arguments of `python -m`, the module first."""


def _smoke(*words: str) -> tuple[str, ...]:
    return ("verl_pivot.cli", "smoke", *words, "--json", "--out", f"{OUT_PLACE}/smoke")


STAGES = (
    Stage(number=1, title="what the machine lacks, and the plugin in a Ray worker",
          commands=(("verl_pivot.cli", "doctor", "--json"),)),
    Stage(number=2, title="PivotRL: two steps",
          commands=(_smoke("pivotrl"),)),
    Stage(number=3, title="GRPO-RoC with tools in the sandbox, L0 and PPR: two steps each",
          commands=(_smoke("grpo_roc"), _smoke("l0"), _smoke("ppr"))),
    Stage(number=4, title="PivotRL on the quickstart's shop: its figures",
          commands=(("examples.quickstart", "--out", f"{OUT_PLACE}/quickstart"),)),
    Stage(number=5, title="profile of a model in the shape of 8B, beside the engine's own benchmark",
          commands=(("benchmarks.bench_profile", "--model", SHAPE_PLACE, "--trajectories", "8", "--new-tokens",
                     "128", "--rounds", "3", "--server-flags", " ".join(_SERVER_FLAGS)),)),
    Stage(number=6, title="routing policies on two engines, and the error of the simulator",
          commands=(
              ("benchmarks.bench_engines", "--model", SHAPE_PLACE, *_FLAGS, "--flag=--mem-fraction-static=0.4",
               "--rounds", "1", "--out", f"{OUT_PLACE}/engines.json"),
              ("benchmarks.bench_calibration", "--model", SHAPE_PLACE, *_FLAGS, "--seeds", "1"))),
    Stage(number=7, title="512 rollouts with tools in the sandbox: share of a step by phase",
          commands=(_smoke("tool_rollout", "--rollouts", "512"),)),
)  # fmt: skip


def filled(command: tuple[str, ...], out: Path) -> list[str]:
    """The words of a command with its placeholders filled in."""
    return [word.replace(SHAPE_PLACE, str(out / "shape")).replace(OUT_PLACE, str(out)) for word in command]
