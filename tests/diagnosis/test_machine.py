"""What `verl-pivot doctor` says of GPUs, memory, limits and addresses of a machine."""

import resource
from pathlib import Path

import pytest

from verl_pivot.diagnosis.machine import (
    MIN_OPEN_FILES,
    MIN_SHARED_BYTES,
    check_accelerator,
    check_addresses,
    check_open_files,
    compute_capability,
    diagnose_gpus,
    diagnose_shared_memory,
)

H100 = "NVIDIA H100 80GB HBM3"


def h100s(*free: int) -> list[list[str]]:
    """[num_gpus] what nvidia-smi lists of GPUs with so much free memory, in MiB."""
    return [[str(number), f"GPU-{number}a", H100, "81559", str(each), "580.82.07"] for number, each in enumerate(free)]


def put_nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a shell script in place of nvidia-smi."""
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_gpus_are_counted_with_the_memory_that_the_fullest_has_left() -> None:
    found = diagnose_gpus(h100s(81079, 80000), seen_by_torch=True)

    assert (found.passed, found.detail) == (True, "2 x NVIDIA H100 80GB HBM3, driver 580.82.07, 78 of 80 GiB free")


def test_a_gpu_that_another_process_fills_is_named() -> None:
    found = diagnose_gpus(h100s(81079, 2048), seen_by_torch=True)

    assert not found.passed
    assert found.detail.endswith(", 2 of 80 GiB free; more than half of the memory is in use on GPU 1")


def test_gpus_that_torch_cannot_use_are_a_failure() -> None:
    found = diagnose_gpus(h100s(81079, 81079), seen_by_torch=False)

    assert not found.passed
    assert found.detail == "2 x NVIDIA H100 80GB HBM3, driver 580.82.07, but torch cannot use them"


def test_a_gpu_whose_memory_the_driver_does_not_tell_is_listed_without_it() -> None:
    found = diagnose_gpus([["0", "GPU-0a", "NVIDIA GB10", "[N/A]", "[N/A]", "580.95.05"]], seen_by_torch=True)

    assert (found.passed, found.detail) == (True, "1 x NVIDIA GB10, driver 580.95.05")


@pytest.mark.parametrize(
    ("printed", "capability"), [("9.0\n9.0\n", 9.0), ("12.1\n", 12.1), ("[N/A]\n", None), ("", None)]
)
def test_the_compute_capability_is_that_of_the_first_gpu_that_nvidia_smi_lists(
    printed: str, capability: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_nvidia_smi(tmp_path, monkeypatch, f"printf '{printed}'")

    assert compute_capability() == capability


@pytest.mark.parametrize(
    ("script", "detail"),
    [
        (
            "echo 'Failed to initialize NVML: Driver/library version mismatch'; echo 'NVML library: 580.82'; exit 18",
            "nvidia-smi lists no GPU: Failed to initialize NVML: Driver/library version mismatch",
        ),
        ("exit 9", "nvidia-smi lists no GPU: exit code 9"),
        ("exec sleep 60", "nvidia-smi lists no GPU: no answer within 0 s"),
    ],
)
def test_an_nvidia_smi_that_fails_or_hangs_is_a_failure(
    script: str, detail: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_nvidia_smi(tmp_path, monkeypatch, script)
    monkeypatch.setattr("verl_pivot.diagnosis.machine._NVIDIA_SMI_SECONDS", 30.0 if "exit" in script else 0.2)

    found = check_accelerator()

    assert (found.passed, found.detail, compute_capability()) == (False, detail, None)
    assert found.remedy.startswith("repair the driver")


@pytest.mark.parametrize("script", ["echo 'No devices were found'; exit 6", "echo 'No devices were found'", "exit 0"])
def test_a_machine_whose_driver_finds_no_gpu_passes(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_nvidia_smi(tmp_path, monkeypatch, script)

    assert check_accelerator().passed


@pytest.mark.parametrize(
    ("visible", "passed", "detail"),
    [
        (
            None,
            False,
            f"4 x {H100}, driver 580.82.07, 2 of 80 GiB free; more than half of the memory is in use on GPU 1",
        ),
        ("2, 3", True, f"2 x {H100}, driver 580.82.07, 40 of 80 GiB free"),
        (
            "1",
            False,
            f"1 x {H100}, driver 580.82.07, 2 of 80 GiB free; more than half of the memory is in use on GPU 1",
        ),
        ("GPU-0,GPU-2a", True, f"2 x {H100}, driver 580.82.07, 78 of 80 GiB free"),
        (
            "MIG-1,2",
            False,
            f"4 x {H100}, driver 580.82.07, 2 of 80 GiB free; more than half of the memory is in use on GPU 1",
        ),
    ],
)
def test_only_gpus_that_a_launch_would_see_are_judged(
    visible: str | None, passed: bool, detail: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = "\n".join(", ".join(gpu) for gpu in h100s(81000, 2048, 80000, 40800))
    put_nvidia_smi(tmp_path, monkeypatch, f"printf '{listing}\n'")
    monkeypatch.setattr("verl_pivot.diagnosis.machine.has_accelerator", lambda: True)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    found = check_accelerator()

    assert (found.passed, found.detail) == (passed, detail)


def test_a_launch_that_may_see_no_gpu_is_told_of_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_nvidia_smi(tmp_path, monkeypatch, f"echo '{', '.join(h100s(2048)[0])}'")
    monkeypatch.setattr("verl_pivot.diagnosis.machine.has_accelerator", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    assert check_accelerator().detail.startswith("none that CUDA_VISIBLE_DEVICES leaves: add +local=cpu")


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
