"""A process -> one in which SGLang's and torchvision's CUDA wheels work where there is no accelerator."""

import os
import sys
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

SHIMS = Path(__file__).parent / "shims"
GRPC_PORT = {"SGLANG_GRPC_PORT": "50051"}
"""SGLang 0.5.12 refuses an HTTP port above 55535, since the one for its gRPC, which is off, is 10,000 higher."""


def activate_shims() -> None:
    """Install the finder of `shims/sitecustomize.py` in this process: imports nothing, harmless to repeat.

    It must come before the first import of transformers, which imports torchvision.
    """
    if any(type(finder).__name__ == "Shims" for finder in sys.meta_path):
        return
    spec = spec_from_file_location("verl_pivot_shims", SHIMS / "sitecustomize.py")
    loader = spec.loader if spec else None
    assert spec is not None, SHIMS
    assert loader is not None, SHIMS
    loader.exec_module(module_from_spec(spec))


def has_accelerator() -> bool:
    """Whether torch sees a GPU or the like; the shims ask the same question."""
    import torch

    return bool(torch.accelerator.is_available())


def cpu_engine_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What SGLang needs beside `environment` on a machine without an accelerator."""
    inherited = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    others = [entry for entry in inherited if entry != str(SHIMS)]
    return {
        "PYTHONPATH": os.pathsep.join([str(SHIMS), *others]),
        "SGLANG_USE_CPU_ENGINE": "1",
        # Two engines on few cores starve each other otherwise: 19 s against 1 s for 16 x 64 tokens.
        "OMP_NUM_THREADS": environment.get("OMP_NUM_THREADS", "1"),
        "TOKENIZERS_PARALLELISM": "false",
        **GRPC_PORT,
    }
