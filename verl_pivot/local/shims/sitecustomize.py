"""Let SGLang's CUDA wheel import and run on a machine without an accelerator.

Python imports this at start because `verl_pivot.local` puts the folder on PYTHONPATH, so that every
process that SGLang or Ray spawns has it too. At start it only installs a finder; a process that never imports
sglang or torchvision pays nothing. Where torch sees an accelerator, nothing at all is changed. Written
against sglang 0.5.12 and torch 2.13.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

TYPE_CHECKING = False  # importing typing would cost every process 10 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_STUBS = os.path.join(_FOLDER, "without_accelerator")
_NAMES = ("sglang", "sgl_kernel", "torchvision._meta_registrations")
_FACTORIES = ("tensor", "empty", "zeros", "ones", "arange", "full")


class Shims:
    """Meta path finder: applies what a package needs in the moment before it is first imported."""

    def __init__(self) -> None:
        self._libraries: list[object] = []
        """torch forgets an operator's schema when its Library is collected."""
        self._running = False

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> ModuleSpec | None:
        if self._running or name not in _NAMES:
            return None
        self._running = True
        try:
            return self._find_spec(name)
        finally:
            self._running = False

    def _find_spec(self, name: str) -> ModuleSpec | None:
        import torch

        if torch.accelerator.is_available():
            return None
        if name == "sgl_kernel":
            # sglang imports sgl_kernel.kvcacheio outside any check (srt/mem_cache/memory_pool_host.py:47). No longer
            # needed once that import asks for CUDA, or once there is a sgl-kernel wheel for plain CPUs.
            return PathFinder.find_spec(name, [_STUBS])
        if name == "sglang":
            _ignore_pinned_memory()
        else:
            self._declare_torchvision_operators()
        return None

    def _declare_torchvision_operators(self) -> None:
        """torchvision's wheel on PyPI is the CUDA build, whose operators a CPU torch cannot load.

        Its Python half then fails on its own missing operators (torchvision/_meta_registrations.py), and sglang
        imports it for image decoding (srt/utils/common.py:90). No longer needed once torchvision guards these
        registrations, once sglang imports it lazily, or with torchvision's CPU wheel from PyTorch's own index,
        whose operators are there by now.
        """
        from torch import library
        from torchvision.extension import _has_ops  # type: ignore[import-untyped]

        if _has_ops():
            return
        new_library: Any = library.Library  # untyped in torch
        operators = new_library("torchvision", "DEF")
        operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        self._libraries.append(operators)


def _ignore_pinned_memory() -> None:
    """Make pin_memory=True mean nothing, as in torch before 2.13, instead of an error.

    sglang pins index tensors on every device (srt/layers/logits_processor.py:541). No longer needed once it
    asks `is_pin_memory_available()` there, as it does elsewhere.
    """
    import torch

    for name in _FACTORIES:
        setattr(torch, name, _without_pinning(getattr(torch, name)))
    setattr(torch.Tensor, "pin_memory", lambda self, device=None: self)  # noqa: B010  mypy would refuse a plain one


def _without_pinning(factory: "Callable[..., Any]") -> "Callable[..., Any]":
    from functools import wraps

    @wraps(factory)
    def unpinned(*args: "Any", pin_memory: bool = False, **kwargs: "Any") -> "Any":
        return factory(*args, **kwargs)

    return unpinned


def _run_shadowed_sitecustomize() -> None:
    """Python imports one sitecustomize only: run the one that this folder hides, as Debian has one."""
    path = [entry for entry in sys.path if os.path.abspath(entry) != _FOLDER]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    spec.loader.exec_module(module_from_spec(spec))


if not any(type(finder).__name__ == "Shims" for finder in sys.meta_path):
    sys.meta_path.insert(0, Shims())
if __name__ == "sitecustomize":
    _run_shadowed_sitecustomize()
