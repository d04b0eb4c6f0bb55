"""Shims with which SGLang's CUDA wheel can be imported and run on a machine without an accelerator.

Python imports this file at start, because `verl_pivot.local` puts its folder on PYTHONPATH; so does every process that
SGLang or Ray starts. It only installs an import finder, which costs nothing unless a process imports sglang or
torchvision. If torch sees an accelerator, nothing is changed. Written against sglang 0.5.12 and torch 2.13.
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
_ATTENTION = "sglang.srt.layers.attention.torch_native_backend"
_NAMES = ("sglang", "sgl_kernel", "torchvision._meta_registrations", _ATTENTION)
_FACTORIES = ("tensor", "empty", "zeros", "ones", "arange", "full")


class Shims:
    """Import finder that patches what a package needs just before the package is first imported."""

    def __init__(self) -> None:
        self._libraries: list[object] = []
        """Libraries of declared operators; torch forgets an operator when its Library is garbage-collected."""
        self._running = False
        """Whether the finder is at work, so that imports of its own are left to other finders."""

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

        if torch.accelerator.device_count():  # a fork can still use CUDA after this question
            return None
        if name == "sgl_kernel":
            # sglang imports sgl_kernel.kvcacheio unconditionally (srt/mem_cache/memory_pool_host.py:47). Unnecessary
            # once that import checks for CUDA, or once there is a sgl-kernel wheel for plain CPUs.
            return PathFinder.find_spec(name, [_STUBS])
        if name == _ATTENTION:
            return _with_faster_attention()
        if name == "sglang":
            _ignore_pinned_memory()
        else:
            self._declare_torchvision_operators()
        return None

    def _declare_torchvision_operators(self) -> None:
        """Declare operators of torchvision that a CPU build of torch cannot load.

        torchvision's wheel on PyPI is the CUDA build. Without its operators its Python code fails
        (torchvision/_meta_registrations.py), and sglang imports it for image decoding (srt/utils/common.py:90).
        Unnecessary once torchvision guards these registrations, once sglang imports it lazily, or with torchvision's
        CPU wheel from PyTorch's own index, which has the operators.
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
    """Make pin_memory=True do nothing, as in torch before 2.13, instead of raising an error.

    sglang pins index tensors on every device (srt/layers/logits_processor.py:541). Unnecessary once it calls
    `is_pin_memory_available()` there, as it does elsewhere.
    """
    import torch
    from torch.utils import _device

    # torch looks its factories up once, for all later `with torch.device(...)`; it has to find its own, not ours.
    # transformers would otherwise build models outside of "meta", and leave the buffers of those it loads unset.
    _device._device_constructors()
    for name in _FACTORIES:
        setattr(torch, name, _without_pinning(getattr(torch, name)))
    setattr(torch.Tensor, "pin_memory", lambda self, device=None: self)  # noqa: B010  mypy would refuse a plain assignment


def _with_faster_attention() -> "ModuleSpec | None":
    """Replace the loops of attention when sglang has imported them.

    They take most of the time of decoding (verl_pivot/local/attention.py says why). Unnecessary once sglang gathers
    whole rows of its cache there, and computes the new tokens alone.
    """
    from importlib.util import find_spec

    spec = find_spec(_ATTENTION)
    if spec is None or spec.loader is None:
        return spec
    execute = spec.loader.exec_module

    def execute_and_replace(module: "ModuleType") -> None:
        from verl_pivot.local.attention import replace_attention

        execute(module)
        replace_attention(module.TorchNativeAttnBackend)

    setattr(spec.loader, "exec_module", execute_and_replace)  # noqa: B010  mypy would refuse a plain assignment
    return spec


def _without_pinning(factory: "Callable[..., Any]") -> "Callable[..., Any]":
    from functools import wraps

    @wraps(factory)
    def unpinned(*args: "Any", pin_memory: bool = False, **kwargs: "Any") -> "Any":
        return factory(*args, **kwargs)

    return unpinned


def _run_shadowed_sitecustomize() -> None:
    """Run the sitecustomize that this one hides, since Python imports only one; Debian's Python comes with one."""
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
