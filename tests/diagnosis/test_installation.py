"""What `verl-pivot doctor` says of engines and Ray workers, and that its remedies are commands of the docs."""

import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.support.resolving import pip_commands
from verl_pivot.diagnosis.background import Answer
from verl_pivot.diagnosis.installation import (
    check_configs,
    diagnose_engines,
    diagnose_import,
    diagnose_ray_worker,
    ray_settings,
    start_ray_worker,
)

WORKS = Answer(succeeded=True, line="0.5.12")
FAILS = Answer(succeeded=False, line="ImportError: libcuda.so.1: cannot open shared object file")


@pytest.mark.parametrize(
    ("answers", "passed", "detail"),
    [
        ({"sglang": WORKS}, True, "sglang 0.5.12"),
        ({"vllm": WORKS, "sglang": FAILS}, True, f"vllm 0.5.12; sglang cannot be imported: {FAILS.line}"),
        ({"sglang": FAILS}, False, f"sglang cannot be imported: {FAILS.line}"),
        ({}, False, "neither SGLang nor vLLM is installed"),
    ],
)
def test_one_engine_that_can_be_imported_is_enough(answers: dict[str, Answer], passed: bool, detail: str) -> None:
    found = diagnose_engines(answers)

    assert (found.passed, found.detail) == (passed, detail)


@pytest.mark.parametrize(
    ("answer", "passed", "detail"),
    [
        (Answer(succeeded=True, line="with"), True, "a worker imported verl with our plugin"),
        (Answer(succeeded=True, line="without"), False, "a worker imported verl without our plugin"),
        (FAILS, False, FAILS.line),
    ],
)
def test_a_ray_worker_without_the_plugin_fails(answer: Answer, passed: bool, detail: str) -> None:
    found = diagnose_ray_worker(answer)

    assert (found.passed, found.detail) == (passed, detail)


def test_a_ray_cluster_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")

    remedy = diagnose_ray_worker(Answer(succeeded=False, line="no answer within 60 s")).remedy

    assert remedy.startswith("start the Ray cluster at RAY_ADDRESS=head:6379, or unset")


def test_a_cluster_of_ray_start_that_is_down_is_no_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    found = diagnose_ray_worker(Answer(succeeded=False, line="ConnectionError: 10.0.0.7:6379 does not answer: refused"))

    assert found.remedy.startswith("start the Ray cluster of this machine again, or run `ray stop`")


def test_a_worker_is_asked_in_the_cluster_that_a_launch_would_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    own = {"num_cpus": 1, "include_dashboard": False}
    assert ray_settings() == own

    (tmp_path / "ray").mkdir()
    with socket.create_server(("0.0.0.0", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        (tmp_path / "ray" / "ray_current_cluster").write_text(address)  # as `ray start` does
        assert ray_settings() == {}
        monkeypatch.setenv("RAY_ADDRESS", "local")
        assert ray_settings() == own
        monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
        assert ray_settings() == {}
    monkeypatch.delenv("RAY_ADDRESS")
    with pytest.raises(ConnectionError, match="does not answer"):
        ray_settings()


@pytest.mark.slow
def test_a_node_of_a_running_cluster_passes_though_all_its_cpus_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder's path is short, since paths of Ray's sockets within it may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        sizes = ("--num-cpus=0", "--object-store-memory=80000000", "--include-dashboard=false", "--port=0")
        ray = Path(sys.executable).parent / "ray"
        head = subprocess.Popen([ray, "start", "--head", "--block", *sizes], stdout=subprocess.DEVNULL)
        try:
            while not Path(folder, "ray", "ray_current_cluster").is_file():
                assert head.poll() is None
                time.sleep(0.5)
            program = start_ray_worker()
            try:
                assert program.answer() == Answer(succeeded=True, line="with")
            finally:
                program.stop()
        finally:
            head.terminate()
            head.wait()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ("OSError('libcudart.so.13: cannot open')", "OSError: libcudart.so.13: cannot open"),
        ("ValueError('numpy.dtype size changed')", "ValueError: numpy.dtype size changed"),
        (
            "TypeError('Descriptors cannot be created directly.\\n')",
            "TypeError: Descriptors cannot be created directly.",
        ),
        ("KeyError()", "KeyError: "),
    ],
)
def test_a_package_that_breaks_while_it_is_imported_is_a_failure_and_no_traceback(
    error: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_package.py").write_text(f"raise {error}")
    monkeypatch.syspath_prepend(tmp_path)

    found = diagnose_import("broken_package")

    assert (found.passed, found.detail) == (False, f"cannot be imported: {line}")


def test_configs_that_cannot_be_composed_are_a_failure_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a plugin of Hydra that breaks while it is loaded."""

    def compose(*args: object, **kwargs: object) -> None:
        raise ValueError("numpy.dtype size changed")

    monkeypatch.setattr("hydra.compose", compose)

    found = check_configs()

    assert (found.passed, found.detail) == (False, "ValueError: numpy.dtype size changed")


@pytest.mark.parametrize("file", ["sglang", "cpu"])
def test_the_locked_files_that_remedies_name_are_installed_as_the_docs_say(file: str) -> None:
    assert f"--no-deps -r requirements/{file}.txt" in pip_commands()
