"""Writes docs/compatibility.md: pinned versions and the names of verl that are used; docs/reference.py calls it."""

# ruff: noqa: E501  rows of a table stand on one line

import json
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
| rollouts | SGLang, on a CPU | the suite, and two steps of every method, those of `rubrics` and `web_agent` in the suite ([Smoke](smoke.md#seen-to-run)) |
| a GPU | SGLang 0.5.12, torch 2.11 for CUDA 13, one H200 | two steps of `pivotrl`, of `grpo_roc` and of `l0`, one step of `tool_rollout`, and a profile, once each ([On a GPU](gpu.md)); two engines behind the router on one H100 ([Routing](routing.md#measured-on-real-engines)) |
| vLLM | 0.24 | its installation is resolved by a test; its server is compared by verl's source with what our loops send and expect, and the router reads the form of its `/metrics`; no rollout was seen |
| two workers with an engine each | on one machine's CPU | two steps of the methods [below](#several-workers) |
| the update of two workers | FSDP2 over gloo, on one machine's CPU | every method's gradient, with padded, masked and unequal rows, is that of one worker within 1e-7 of its largest component, with an adapter of LoRA and with micro-batches by tokens too; seen once on 2026-11-26 |
| sequences split over GPUs (Ulysses) | not on a CPU | verl splits flash attention alone; with torch's own the gradient was another one (by 0.8 of its largest component), so that a launch is refused |
| LoRA | merged into the weights that the engine gets (`actor_rollout_ref.model.lora.merge=True`) | two steps [below](#several-workers); served by SGLang 0.5.12 as an adapter, verl's default, it was tried and failed: its request has no `serialized_named_tensors`, so that such a launch is refused |
| engines of training | FSDP2 | the suite |
| | Megatron, veomni, torchtitan | a method's settings are keys of their configs, by a test; no launch was tried, nor with FSDP |
| trainer modes | `sync` | the suite |
| | `colocate_async` | launches of `grpo_roc` and `l0` with `+tail=partial` in the suite, with their staleness ([Routing](routing.md)), and those [below](#several-workers) |
| | `separate_async` | two steps [below](#several-workers) on a CPU, with verl's switch of hybrid rollout, over a checkpoint engine of the tests that hands weights over in files; verl's own (NCCL, HCCL, NIXL, Mooncake, Kimi's) wait for a GPU, so that a launch with one of them and `+local=cpu` is refused |
| Python | 3.11 | the suite |
| Python | 3.12 | as far as [Installing](installing.md#python-312) says |
| machine | Linux on x86_64 | the suite; for aarch64 see [System calls](sandbox.md#system-calls) |
| several machines | several Ray nodes on one | tests of `profile` and of sandboxes; a training [below](#several-workers), of which a node was killed: verl waited for the rollouts of the dead node without an end, so that a launch with a method stops and says so, after 10 s or where TransferQueue waits for rows 200 s, and goes on from its last checkpoint once there are as many GPUs. Where the node had the trainer, Ray ends the launch. No clock of a node is compared with another's, by a test |
| OpenEnv, NeMo Gym | 0.3.0, 0.7.0 | tests against the real packages, where they are installed ([Environments](environments.md)) |
| environments of verifiers | 0.1.14, and task sets of 0.4.0 | [Environments](environments.md#verifiers) |

## Versions

Of the suite, which runs without a GPU, and of the file for SGLang on GPUs:

| package | `requirements/cpu.txt` | `requirements/sglang.txt` |
|---|---|---|
"""
SEVERAL = """
## Several workers

`make test-cluster` launches several workers on one machine and writes the outcome of each test here. A test that has no
line below has not run yet.

| what | outcome | date | seconds |
|---|---|---|---|
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
        + SEVERAL
        + "".join(row(*cells) + "\n" for cells in cluster_results())
        + NAMES.format(release=TESTED_RELEASE, count=len(HOOKS))
        + "\n".join(names)
        + "\n"
    )


def cluster_results() -> list[tuple[str, str, str, str]]:
    """[num_tests] fact, outcome, date and seconds of each test of tests/cluster that was run."""
    results = json.loads((ROOT / "docs" / "cluster.json").read_text())
    return [(_fact(name), found["outcome"], found["date"], str(found["seconds"])) for name, found in results.items()]


def _fact(test: str) -> str:
    """The name of a test as words."""
    name, _, parameter = test.removesuffix("]").partition("[")
    words = name.removeprefix("test_").replace("_", " ")
    return f"{words}: `{parameter}`" if parameter else words


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
