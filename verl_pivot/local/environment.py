"""Shims and environment variables with which SGLang's and torchvision's CUDA wheels work without an accelerator."""

import os
import sys
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

SHIMS = Path(__file__).parent / "shims"
"""Folder that is put on PYTHONPATH, so that Python imports its sitecustomize.py at start."""
GRPC_PORT = {"SGLANG_GRPC_PORT": "50051"}
"""Variable that fixes SGLang's gRPC port: SGLang 0.5.12 otherwise adds 10,000 to the HTTP port, even with gRPC off,
and refuses HTTP ports above 55535."""


def activate_shims() -> None:
    """Install the import finder of `shims/sitecustomize.py` in this process; later calls change nothing.

    Call it before the first import of transformers, which imports torchvision.
    """
    if any(type(finder).__name__ == "Shims" for finder in sys.meta_path):
        return
    spec = spec_from_file_location("verl_pivot_shims", SHIMS / "sitecustomize.py")
    loader = spec.loader if spec else None
    assert spec is not None, SHIMS
    assert loader is not None, SHIMS
    loader.exec_module(module_from_spec(spec))


def has_accelerator() -> bool:
    """Whether torch sees a GPU or another accelerator; the shims use the same test."""
    return num_accelerators() > 0


def num_accelerators() -> int:
    """Number of GPUs, or of other accelerators, that torch sees.

    Asking torch whether one is available would initialise CUDA in this process, whose forks could then not use CUDA.
    """
    import torch

    return int(torch.accelerator.device_count())


def cpu_engine_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that SGLang needs in addition on a machine without an accelerator.

    Args:
        environment: Variables of the process that will start SGLang, from which values are taken over.
    """
    inherited = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    others = [entry for entry in inherited if entry != str(SHIMS)]
    return {
        "PYTHONPATH": os.pathsep.join([str(SHIMS), *others]),
        "SGLANG_USE_CPU_ENGINE": "1",
        # One thread per engine: with more, two engines on few cores took 19 s instead of 1 s for 16 x 64 tokens.
        "OMP_NUM_THREADS": environment.get("OMP_NUM_THREADS", "1"),
        "TOKENIZERS_PARALLELISM": "false",
        **GRPC_PORT,
    }
