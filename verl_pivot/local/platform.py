"""CPU platform for verl, and patches of verl and torch code that assumes a GPU. Not imported on machines with one.

Each patch names the upstream change that would make it unnecessary. Patches for SGLang are in `local/shims/`.
"""

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import psutil
import torch
import torch.multiprocessing
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

from verl_pivot.local.environment import activate_shims, cpu_engine_variables

CPU = torch.device("cpu")


class CpuDevice(ModuleType):
    """Module with the functions of `torch.cuda` that verl calls, implemented for the CPU and main memory."""

    def __init__(self) -> None:
        super().__init__("verl_pivot_cpu_device")

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> torch.device:
        return CPU

    def get_device_name(self, device: object = None) -> str:
        return "cpu"

    def set_device(self, device: object) -> None:
        pass

    def synchronize(self, device: object = None) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def ipc_collect(self) -> None:
        pass

    def set_per_process_memory_fraction(self, fraction: float, device: object = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_rng_state(self, device: object = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: object = None) -> None:
        torch.set_rng_state(state)

    def memory_allocated(self, device: object = None) -> int:
        return int(psutil.Process().memory_info().rss)

    memory_reserved = max_memory_allocated = max_memory_reserved = memory_allocated

    def reset_peak_memory_stats(self, device: object = None) -> None:
        pass

    def mem_get_info(self, device: object = None) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return int(memory.available), int(memory.total)

    def current_stream(self, device: object = None) -> Any:
        return torch.cpu.current_stream()

    def stream(self, stream: Any) -> Any:
        return torch.cpu.stream(stream)


class CpuPlatform(PlatformBase):  # type: ignore[misc]  # verl is untyped here
    """Platform with one logical device, the CPU, and gloo as its only communication backend."""

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "nvidia"  # the FSDP engines register for (cuda, nvidia) and (npu, huawei) only

    @property
    def device_module(self) -> ModuleType:
        return _DEVICE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """False, so that verl's own search never finds it: only VERL_PLATFORM=cpu chooses it."""
        return False

    def current_device(self) -> torch.device:
        return CPU  # verl's annotation asks for an index, but torch takes an index for cuda:0

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "GPU"  # verl's resource check counts only GPU or NPU; local/cpu.yaml starts Ray with one logical GPU

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        return {"num_gpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def rollout_env_vars(self) -> dict[str, str]:
        return cpu_engine_variables(os.environ)

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


_DEVICE = CpuDevice()


def activate() -> None:
    """Register the platform with verl and patch this process; it may be called repeatedly.

    A torch built for CUDA needs the shims too: verl's workers import sglang, whose kernels load only with a GPU.
    """
    activate_shims()
    PlatformRegistry.register("cpu")(CpuPlatform)
    _default_to_gloo()
    _share_weights_by_file()
    _leave_memory_unpinned()


def _default_to_gloo() -> None:
    """Make gloo the default backend of process groups.

    verl asks torch for "cpu:gloo,cpu:gloo", which torch refuses. Unnecessary once verl's
    `initialize_global_process_group_ray` names each device once.
    """
    from verl.utils import distributed

    initialize = inspect.unwrap(distributed.initialize_global_process_group_ray)

    def initialize_global_process_group_ray(timeout_second: int | None = None, backend: str | None = None) -> None:
        _load_critics_with_sdpa()  # this runs in the processes of actor and critic alone, before they load a model
        initialize(timeout_second=timeout_second, backend=backend or "gloo")

    initialize_global_process_group_ray.__wrapped__ = initialize  # type: ignore[attr-defined]
    distributed.initialize_global_process_group_ray = initialize_global_process_group_ray


def _share_weights_by_file() -> None:
    """Let workers pass weights to the engine as shared CPU tensors.

    They are shared by file name, since the engine is not a child process of the worker. SGLang replaces torch's
    pickling of tensors by one for CUDA handles only, unless this attribute says that it was replaced already.
    Unnecessary once `sglang.srt.utils.patch_torch` leaves CPU tensors alone.
    """
    from torch.multiprocessing import reductions

    torch.multiprocessing.set_sharing_strategy("file_system")  # type: ignore[no-untyped-call]  # torch has no types here
    reductions._reduce_tensor_original = reductions.reduce_tensor  # type: ignore[attr-defined]


def _leave_memory_unpinned() -> None:
    """Make `pin_memory` of tensors do nothing.

    verl keeps the reference policy in pinned memory, which torch refuses without an accelerator. Unnecessary once
    verl's FSDP2 engine takes `pin_memory` for its CPUOffloadPolicy from the platform.
    """
    torch.Tensor.pin_memory = _unpinned  # type: ignore[method-assign,assignment]  # this is the patch


def _unpinned(tensor: torch.Tensor, device: object = None) -> torch.Tensor:
    return tensor


def _load_critics_with_sdpa() -> None:
    """Load critics with torch's own attention.

    verl's `load_valuehead_model` asks for flash_attention_2, whatever the config says. Unnecessary once it takes the
    attention of the model's config, as it does for the policy.
    """
    from transformers import AutoModelForTokenClassification

    load = AutoModelForTokenClassification.from_pretrained.__func__
    if load.__module__ == __name__:
        return

    def from_pretrained(cls: type, /, *args: Any, attn_implementation: str | None = None, **kwargs: Any) -> Any:
        on_cpu = "sdpa" if attn_implementation == "flash_attention_2" else attn_implementation
        return load(cls, *args, attn_implementation=on_cpu, **kwargs)

    AutoModelForTokenClassification.from_pretrained = classmethod(from_pretrained)
