"""Writes docs/compatibility.md: pinned versions and the names of verl that are used; docs/reference.py calls it."""

# ruff: noqa: E501  rows of a table stand on one line

import re
from pathlib import Path

from option_tables import row

from verl_pivot.configuration import config_groups
from verl_pivot.hook_check import TESTED_RELEASE
from verl_pivot.hooks import HOOKS

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("verl", "sglang", "torch", "transformers", "ray", "transferqueue", "hydra-core", "mcp", "gymnasium")
"""Packages whose versions users compare with theirs."""
INTRODUCTION = """# Compatibility

What ran with which versions, and how it is known; written by `python docs/reference.py` from `requirements/` and
`verl_pivot/hooks.py`. Everything else was not tried. `verl-pivot doctor` compares the machine that it runs on.

| what | ran with | how it is known |
|---|---|---|
| verl | {release}, its default V1 trainer | the suite; `tests/contract` compares every name below |
| a verl from git | main of August 2026, 0.10.0.dev | `+method=pivotrl +local=cpu` ran two steps, once ([Installing](installing.md#beside-an-existing-verl)) |
| rollouts | SGLang, on a CPU | the suite, and two steps of every method ([Smoke](smoke.md#seen-to-run)) |
| rollouts on a GPU | SGLang 0.5.12, torch 2.11 for CUDA 13, one H100 | the profile's server and two engines behind the router ran; no training step was seen ([Routing](routing.md#measured-on-real-engines)) |
| vLLM | 0.24 | its installation is resolved by a test; its server is compared by verl's source with what our loops send and expect, and the router reads the form of its `/metrics`; no rollout was seen |
| two workers with an engine each | on one machine's CPU | two steps of `pivotrl` and of `grpo_roc` ([Smoke](smoke.md#seen-to-run)) |
| engines of training | FSDP2 | the suite; FSDP, Megatron, veomni and torchtitan were not tried |
| Python | 3.11 | the suite |
| Python | 3.12 | as far as [Installing](installing.md#python-312) says |
| machine | Linux on x86_64 | the suite; for aarch64 see [System calls](sandbox.md#system-calls) |
| several machines | several Ray nodes on one | tests |
| OpenEnv, NeMo Gym | 0.3.0, 0.7.0 | tests against the real packages, where they are installed ([Environments](environments.md)) |
| environments of verifiers | 0.1.14, and task sets of 0.4.0 | [Environments](environments.md#verifiers) |

## Versions

Of the suite, which runs without a GPU, and of the file for SGLang on GPUs:

| package | `requirements/cpu.txt` | `requirements/sglang.txt` |
|---|---|---|
"""
NAMES = """
## Names of verl

A launch on another verl than {release} compares these {count} names, and their parameters or fields, with what is there. It
stops only where its own method, router or `+local=cpu` needs one that differs.

| name | used by | needed by |
|---|---|---|
"""


def page() -> str:
    """The text of docs/compatibility.md."""
    cpu, gpu = (pins(ROOT / "requirements" / f"{name}.txt") for name in ("cpu", "sglang"))
    versions = [row(name, cpu[name], gpu.get(name, "not in it")) for name in PACKAGES]
    names = [row(f"`{hook}`", hook.used_by, _parts(hook.needed_by)) for hook in HOOKS]
    head = INTRODUCTION.format(release=TESTED_RELEASE)
    return (
        head
        + "\n".join(versions)
        + "\n"
        + NAMES.format(release=TESTED_RELEASE, count=len(HOOKS))
        + "\n".join(names)
        + "\n"
    )


def pins(path: Path) -> dict[str, str]:
    """{package in small letters: version} of a file of requirements."""
    return {
        name.lower(): version for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", path.read_text(), re.MULTILINE)
    }


def _parts(names: tuple[str, ...]) -> str:
    methods = set(config_groups()["method"])
    if methods <= set(names):
        return "every method"
    return (
        "every method but `pivotrl`"
        if set(names) == methods - {"pivotrl"}
        else ", ".join(f"`{name}`" for name in names)
    )


def write() -> None:
    """Write docs/compatibility.md."""
    (ROOT / "docs" / "compatibility.md").write_text(page())
