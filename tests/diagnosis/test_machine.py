"""What `verl-pivot doctor` says of GPUs, memory, limits and addresses of a machine."""

import resource
from pathlib import Path

import pytest

from verl_pivot.diagnosis.machine import (
    MIN_OPEN_FILES,
    MIN_SHARED_BYTES,
    check_addresses,
    check_open_files,
    compute_capability,
    diagnose_gpus,
    diagnose_shared_memory,
)

TWO = "NVIDIA H100 80GB HBM3, 81559, 81079, 580.82.07\nNVIDIA H100 80GB HBM3, 81559, {}, 580.82.07\n"


def test_gpus_are_counted_with_the_memory_that_the_fullest_has_left() -> None:
    found = diagnose_gpus(TWO.format(80000), seen_by_torch=True)

    assert (found.passed, found.detail) == (True, "2 x NVIDIA H100 80GB HBM3, driver 580.82.07, 78 of 80 GiB free")


def test_a_gpu_that_another_process_fills_is_named() -> None:
    found = diagnose_gpus(TWO.format(2048), seen_by_torch=True)

    assert not found.passed
    assert found.detail.endswith(", 2 of 80 GiB free; more than half of the memory is in use on GPU 1")


def test_gpus_that_torch_cannot_use_are_a_failure() -> None:
    found = diagnose_gpus(TWO.format(81079), seen_by_torch=False)

    assert not found.passed
    assert found.detail == "2 x NVIDIA H100 80GB HBM3, driver 580.82.07, but torch cannot use them"


def test_a_gpu_whose_memory_the_driver_does_not_tell_is_listed_without_it() -> None:
    found = diagnose_gpus("NVIDIA GB10, [N/A], [N/A], 580.95.05\n", seen_by_torch=True)

    assert (found.passed, found.detail) == (True, "1 x NVIDIA GB10, driver 580.95.05")


@pytest.mark.parametrize(
    ("printed", "capability"), [("9.0\n9.0\n", 9.0), ("12.1\n", 12.1), ("[N/A]\n", None), ("", None)]
)
def test_the_compute_capability_is_that_of_the_first_gpu_that_nvidia_smi_lists(
    printed: str, capability: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvidia_smi = tmp_path / "nvidia-smi"
    nvidia_smi.write_text(f"#!/bin/sh\nprintf '{printed}'\n")
    nvidia_smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    assert compute_capability() == capability


def test_a_machine_without_nvidia_smi_has_no_compute_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    assert compute_capability() is None


@pytest.mark.parametrize(
    ("total", "passed", "detail"),
    [(64 * 2**20, False, "/dev/shm has 0.1 GiB, but 8 GiB are needed"), (10 * 2**30, True, "/dev/shm has 10.0 GiB")],
)
def test_the_shared_memory_that_docker_gives_is_too_little(total: int, passed: bool, detail: str) -> None:
    found = diagnose_shared_memory(total, MIN_SHARED_BYTES)

    assert (found.passed, found.detail) == (passed, detail)


def test_a_low_limit_of_open_files_has_the_command_that_raises_it() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        found = check_open_files()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert (found.passed, found.detail) == (False, f"1024 at once, but {MIN_OPEN_FILES} are needed")
    assert found.remedy.startswith("ulimit -n ")


def test_a_proxy_for_this_machine_itself_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://proxy:3128")

    found = check_addresses()

    assert not found.passed
    assert found.detail.startswith("http_proxy is set, and no_proxy does not list 127.0.0.1")
    assert found.remedy.startswith("export no_proxy=localhost,127.0.0.1")

    monkeypatch.setenv("no_proxy", found.remedy.removeprefix("export no_proxy=").partition(", ")[0])
    assert check_addresses().passed
