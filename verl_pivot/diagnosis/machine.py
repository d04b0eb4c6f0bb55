"""This machine -> diagnoses of its GPUs, memory, limits, addresses and sandbox; nothing here imports verl."""

import asyncio
import importlib.util
import os
import re
import resource
import shutil
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import getproxies, proxy_bypass

from verl_pivot.diagnosis.diagnosis import Diagnosis
from verl_pivot.errors import ConfigError, SandboxError
from verl_pivot.local.environment import has_accelerator

if TYPE_CHECKING:
    from verl_pivot.sandbox.pool_settings import PoolSettings

MIN_OPEN_FILES = 16_384
"""Requests that a step of 512 x 32 rollouts may hold open at once."""
MIN_SHARED_BYTES = 8 * 1024**3
"""Bytes of /dev/shm that Ray's object store and the transfer of weights to the engine need, on a machine with GPUs."""
_GIB = 1024**3
_VERSION = re.compile(r"\d+\.\d+")
_NVIDIA_SMI_SECONDS = 30.0
"""Seconds after which nvidia-smi is given up; without the driver's persistence mode it takes several for each GPU."""
_NO_GPUS = "No devices were found"
"""What nvidia-smi says on a machine whose driver finds no GPU."""


class _NvidiaSmiError(Exception):
    """Why nvidia-smi lists nothing."""


def check_accelerator() -> Diagnosis:
    """Check the GPUs and their memory; a machine without a GPU passes too, since +local=cpu runs there."""
    try:
        listing = _visible(_list_gpus("index,uuid,name,memory.total,memory.free,driver_version"))
    except _NvidiaSmiError as error:
        return Diagnosis(
            name="accelerator",
            passed=False,
            detail=f"nvidia-smi lists no GPU: {error}",
            remedy="repair the driver, as by a restart of the machine; where there is no GPU, remove nvidia-smi",
        )
    if listing:
        return diagnose_gpus(listing, seen_by_torch=has_accelerator())
    hidden = " that CUDA_VISIBLE_DEVICES leaves" if "CUDA_VISIBLE_DEVICES" in os.environ else ""
    found = "found" if has_accelerator() else f"none{hidden}: add +local=cpu to a launch command to try it here"
    return Diagnosis(name="accelerator", passed=True, detail=found)


def compute_capability() -> float | None:
    """Compute capability of this machine's first GPU, such as 9.0 for Hopper; None if nvidia-smi does not tell it."""
    try:
        listing = _list_gpus("compute_cap")
    except _NvidiaSmiError:
        return None
    return float(listing[0][0]) if listing and _VERSION.fullmatch(listing[0][0]) else None


def _list_gpus(fields: str) -> list[list[str]]:
    """[num_gpus, num_fields] these fields of each GPU, as nvidia-smi lists them.

    Raises:
        _NvidiaSmiError: If nvidia-smi fails or gives no answer.
    """
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)
        try:
            code = process.wait(_NVIDIA_SMI_SECONDS)
        except subprocess.TimeoutExpired as error:
            process.kill()
            with suppress(subprocess.TimeoutExpired):  # a driver that hangs may keep it from ending
                process.wait(1.0)
            raise _NvidiaSmiError(f"no answer within {_NVIDIA_SMI_SECONDS:.0f} s") from error
        output.seek(0)
        lines = output.read().strip().splitlines()
    if lines and lines[0].startswith(_NO_GPUS):
        return []
    if code != 0:
        raise _NvidiaSmiError(lines[0] if lines else f"exit code {code}")
    return [[part.strip() for part in line.split(",")] for line in lines]


def _visible(listing: list[list[str]]) -> list[list[str]]:
    """[num_visible] those of the GPUs that CUDA_VISIBLE_DEVICES leaves; all if it names parts of GPUs.

    Args:
        listing: [num_gpus, num_fields] index, uuid and further fields of each GPU.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None or "MIG-" in named:
        return listing
    names = [name.strip() for name in named.split(",")]
    ids = tuple(name for name in names if name.startswith("GPU-"))  # each may be the beginning of a uuid
    return [gpu for gpu in listing if gpu[0] in names or gpu[1].startswith(ids)]


def diagnose_gpus(listing: list[list[str]], *, seen_by_torch: bool) -> Diagnosis:
    """Diagnosis from what nvidia-smi lists.

    Args:
        listing: [num_gpus] index, uuid, name, total and free memory in MiB, and version of the driver.
        seen_by_torch: Whether torch can use a GPU.
    """
    counted = f"{len(listing)} x {listing[0][2]}, driver {listing[0][5]}"
    if not seen_by_torch:
        return Diagnosis(
            name="accelerator",
            passed=False,
            detail=f"{counted}, but torch cannot use them",
            remedy="install a torch that is built for this driver: pip install --no-deps -r requirements/sglang.txt",
        )
    memory = [(number, int(total) / 1024, int(free) / 1024) for number, _, _, total, free, _ in listing
              if total.isdigit() and free.isdigit()]  # fmt: skip
    busy = [f"GPU {number}" for number, total, free in memory if free < total / 2]
    left = f", {min(free for *_, free in memory):.0f} of {memory[0][1]:.0f} GiB free" if memory else ""
    return Diagnosis(
        name="accelerator",
        passed=not busy,
        detail=counted + left + (f"; more than half of the memory is in use on {', '.join(busy)}" if busy else ""),
        remedy="end the processes that nvidia-smi lists, or lower actor_rollout_ref.rollout.gpu_memory_utilization",
    )


def check_flash_attention() -> Diagnosis:
    """Check for flash-attention, which verl's workers use on GPUs unless a launch says otherwise."""
    name = "flash-attention"
    if importlib.util.find_spec("flash_attn") is not None:
        return Diagnosis(name=name, passed=True, detail="installed")
    if not has_accelerator():
        return Diagnosis(name=name, passed=True, detail="not needed without a GPU")
    return Diagnosis(
        name=name,
        passed=False,
        detail="not installed, and verl's workers use it by default",
        remedy="pip install --no-build-isolation flash-attn==2.8.3, or add "
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa to the launch command",
    )


def check_shared_memory() -> Diagnosis:
    """Check the size of the shared memory, /dev/shm, of which Docker gives a container 64 MiB."""
    total = shutil.disk_usage("/dev/shm").total
    return diagnose_shared_memory(total, MIN_SHARED_BYTES if has_accelerator() else 0)


def diagnose_shared_memory(total: int, needed: int) -> Diagnosis:
    """Diagnosis of shared memory with `total` bytes, where `needed` bytes are needed."""
    return Diagnosis(
        name="shared memory",
        passed=total >= needed,
        detail=f"/dev/shm has {total / _GIB:.1f} GiB"
        + (f", but {needed / _GIB:.0f} GiB are needed" if total < needed else ""),
        remedy="docker run --shm-size=10g, or sudo mount -o remount,size=16G /dev/shm",
    )


def check_open_files() -> Diagnosis:
    """Check the limit of open files and sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Diagnosis(
        name="open files",
        passed=soft >= MIN_OPEN_FILES,
        detail=f"{soft} at once" + (f", but {MIN_OPEN_FILES} are needed" if soft < MIN_OPEN_FILES else ""),
        remedy=f"ulimit -n {max(MIN_OPEN_FILES, min(hard, 65_536))}"
        + ("" if hard >= MIN_OPEN_FILES else f" as root: this user's limit is {hard}"),
    )


def check_addresses() -> Diagnosis:
    """Check that processes reach each other by the addresses of this machine, and not through a proxy."""
    addresses = ["127.0.0.1", *([own] if (own := _own_address()) else [])]
    refused = [address for address in addresses if not _accepts(address)]
    proxied = [address for address in addresses if "http" in getproxies() and not proxy_bypass(address)]
    listed = ",".join(["localhost", *addresses])
    if refused:
        detail, remedy = f"no port can be opened and reached on {', '.join(refused)}", "allow it in the firewall"
    elif proxied:
        detail = f"http_proxy is set, and no_proxy does not list {', '.join(proxied)}"
        remedy = f"export no_proxy={listed}, or requests to engines and sandboxes go to the proxy"
    else:
        detail, remedy = f"{', '.join(addresses)}{_port_range()}", ""
    return Diagnosis(name="ports", passed=not refused and not proxied, detail=detail, remedy=remedy)


def _own_address() -> str | None:
    """Address of this machine in the network; connecting a datagram socket sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        try:
            sender.connect(("192.0.2.1", 9))
        except OSError:  # a machine without a network
            return None
        return str(sender.getsockname()[0])


def _accepts(address: str) -> bool:
    try:
        with socket.create_server((address, 0)) as server:
            socket.create_connection(server.getsockname()[:2], timeout=2).close()
    except OSError:
        return False
    return True


def _port_range() -> str:
    path = Path("/proc/sys/net/ipv4/ip_local_port_range")
    return f"; ports {'-'.join(path.read_text().split())}" if path.is_file() else ""


def check_sandbox() -> Diagnosis:
    """Run one program in the foreign pool if there is one, else in bubblewrap with the isolation that programs get."""
    from verl_pivot.sandbox.bubblewrap.probe import Tier, probe
    from verl_pivot.sandbox.bubblewrap.python_view import PythonView
    from verl_pivot.sandbox.pool_settings import pool_of_environment

    name = "sandbox"
    try:
        pool = pool_of_environment()
        if pool is not None:
            return _check_pool(name, pool)
        found = probe(PythonView.of())
    except ConfigError as error:
        what, _, remedy = str(error).partition(": ")
        return Diagnosis(name=name, passed=False, detail=what, remedy=remedy)
    if found.tier <= Tier.T3:
        weaker = "".join(f"; {obstacle.what}: {obstacle.remedy}" for obstacle in found.obstacles)
        tried = "`verl-pivot sandbox audit` tries attacks on it"
        return Diagnosis(name=name, passed=True, detail=f"{found.summary}{weaker}; {tried}")
    what = "; ".join(obstacle.what for obstacle in found.obstacles)
    remedy = "; ".join(obstacle.remedy for obstacle in found.obstacles)
    return Diagnosis(name=name, passed=False, detail=f"{found.summary}: {what}", remedy=remedy)


def _check_pool(name: str, pool: "PoolSettings") -> Diagnosis:
    """Run one program in each server of a foreign pool."""
    from verl_pivot.sandbox.client import Sandbox

    async def answers() -> None:
        for url in pool.urls:
            only = pool.model_copy(update={"urls": (url,), "retries": 0})
            async with Sandbox(pool=only) as sandbox:
                result = await sandbox.run("print(6 * 7)", deadline_seconds=20.0)
            if result.stdout != "42\n":
                raise SandboxError(f"{url} answered {result.stdout!r} to a program that prints 42")

    lacks = ", ".join(sorted(pool.lacks))
    try:
        asyncio.run(answers())
    except SandboxError as error:
        remedy = "start the pool, or correct the settings in VERL_PIVOT_SANDBOX_POOL"
        return Diagnosis(name=name, passed=False, detail=str(error), remedy=remedy)
    servers = f"{len(pool.urls)} server{'s' if len(pool.urls) > 1 else ''}"
    return Diagnosis(name=name, passed=True, detail=f"a pool of {pool.protocol}, {servers}; it has no {lacks}")
