"""Stages -> a JSON file with the date, the device, the duration and the exit codes of each."""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.gpu.stages import SHAPE_PLACE, STAGE_SECONDS, Stage, filled
from verl_pivot.data.files import replacing
from verl_pivot.types import JsonObject

RESULTS = "results.json"
_PACKAGES = ("verl-pivot", "verl", "torch", "sglang", "vllm", "ray", "transformers", "flash-attn")
_8B = {
    "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "max_position_embeddings": 40960,
}  # fmt: skip
"""Sizes of Qwen3-8B, as fields of Qwen2's config; the vocabulary is the tiny tokenizer's."""


def recorded(out: Path) -> dict[str, JsonObject]:
    """{number of a stage: its record} of earlier visits."""
    path = out / RESULTS
    return json.loads(path.read_text()) if path.is_file() else {}


def visit(
    stages: Iterable[Stage], out: Path, *, seconds: float = STAGE_SECONDS, again: bool = False
) -> dict[str, JsonObject]:
    """Run the stages that are not recorded yet, and write all records to the disk after each.

    Args:
        stages: Stages in their order.
        out: Folder for logs and results; those of earlier visits are kept.
        seconds: Time limit of one stage, after which its processes are ended and the next one begins.
        again: Whether to run stages again that are recorded already.
    """
    out.mkdir(parents=True, exist_ok=True)
    found = recorded(out)
    for stage in stages:
        if again or str(stage.number) not in found:
            found[str(stage.number)] = run_stage(stage, out, seconds)
            with replacing(out / RESULTS) as path:
                path.write_text(json.dumps(found, indent=2) + "\n")
    return found


def run_stage(stage: Stage, out: Path, seconds: float) -> JsonObject:
    """Record of one stage, whose output is in `stage-<number>.log`."""
    began, codes = time.monotonic(), []
    if any(SHAPE_PLACE in word for command in stage.commands for word in command):
        write_shape(out / "shape")
    with (out / f"stage-{stage.number}.log").open("wb") as log:
        for command in stage.commands:
            left = began + seconds - time.monotonic()
            codes.append(_run([sys.executable, "-m", *filled(command, out)], log.fileno(), left))
    return {
        "title": stage.title,
        "commands": [shlex.join(filled(command, out)) for command in stage.commands],
        "exit_codes": list(codes),
        "seconds": round(time.monotonic() - began, 1),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "device": device(),
        "versions": versions(),
    }


def _run(words: list[str], log: int, seconds: float) -> int | str:
    """Run a program; returns its exit code, or the reason why it has none."""
    if seconds <= 0:
        return "not begun: the stage's time was over"
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.terminate()  # every program here ends its own processes when it is asked to
        process.wait()
        return f"ended after {seconds:.0f} s"


def write_shape(folder: Path) -> None:
    """Write tokenizer and config of a large model without its weights, for an engine that makes them up."""
    if folder.is_dir():
        return
    from transformers import AutoConfig

    from benchmarks.bench_profile import WORDS
    from verl_pivot.smoke.tiny_model import write_tokenizer

    config = AutoConfig.from_pretrained(write_tokenizer(folder, [" ".join(WORDS)]))
    layers = {"layer_types": ["full_attention"] * _8B["num_hidden_layers"]}
    config.update({**_8B, **layers, "dtype": "bfloat16"})
    config.save_pretrained(folder)


def device() -> str:
    """The GPUs, as torch names them."""
    import torch

    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return ", ".join(names) or "no GPU"


def versions() -> JsonObject:
    """{package: version} of those among `_PACKAGES` that are installed."""
    found: JsonObject = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
