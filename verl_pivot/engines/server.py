"""Checkpoint -> SGLang server that runs for the length of a with-block, on a GPU or on the CPU."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
from rich.console import Console
from rich.text import Text

from verl_pivot.errors import EngineError
from verl_pivot.local.environment import GRPC_PORT, cpu_engine_variables, has_accelerator

CPU_FLAGS = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--dtype", "float32"),  # as in training on a CPU; SGLang's default halves the precision of a float32 model
    *("--mem-fraction-static", "0.3", "--max-total-tokens", "65536", "--max-running-requests", "64"),
    "--disable-overlap-schedule",
    "--sleep-on-idle",  # otherwise the scheduler of an idle server keeps one core busy
)

GPU_FLAGS = ("--dtype", "bfloat16", "--disable-piecewise-cuda-graph")
"""The default precision of verl's `rollout.dtype`; without it, SGLang serves a float32 checkpoint in float16.

SGLang 0.5.12 did not start with a policy of a million parameters unless its piecewise CUDA graphs were disabled.
"""

# Asks Linux to send SIGKILL (9) to the new process when its parent ends (PR_SET_PDEATHSIG, 1), then runs the module.
_TIE_AND_RUN = """
import ctypes, os, sys
parent = int(sys.argv.pop(1))
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == parent:
    os.execv(sys.executable, [sys.executable, "-m", *sys.argv[1:]])
"""


@contextmanager
def sglang_server(
    model: str,
    *,
    log: Path,
    seed: int = 0,
    extra_flags: Sequence[str] = (),
    start_seconds: float = 1800.0,
    console: Console | None = None,
) -> Iterator[str]:
    """Serve `model` on a free port of this machine; yields the URL once the server answers.

    Args:
        model: Checkpoint folder or Hugging Face name.
        log: File for all output of the server.
        seed: Seed of the server's random generator.
        extra_flags: Flags of `python -m sglang.launch_server`, which follow ours and so override them.
        start_seconds: Maximum number of seconds to wait until the server answers.
        console: Console that shows the progress; the default writes to stderr.

    Raises:
        EngineError: If the server does not start. The message names the log file and quotes its end.
    """
    port = free_port()
    flags = server_flags(model, port=port, seed=seed, on_cpu=not has_accelerator()) + tuple(extra_flags)
    with log.open("wb") as output:
        process = subprocess.Popen(
            tied_to_parent("sglang.launch_server", *flags),
            stdin=subprocess.DEVNULL,
            stdout=output,  # a file: SGLang's helper processes outlive the server and would keep a pipe open
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=server_environment(os.environ, model, on_cpu=not has_accelerator()),
        )
    url = f"http://127.0.0.1:{port}"
    try:
        await_ready(process, url, model, log, start_seconds, console or Console(stderr=True))
        yield url
    finally:
        end_process_group(process)


def tied_to_parent(module: str, *arguments: str) -> list[str]:
    """Command line that runs a Python module, which is killed when this process ends, even by SIGKILL.

    Processes that the module starts are not killed.
    """
    return [sys.executable, "-c", _TIE_AND_RUN, str(os.getpid()), module, *arguments]


def server_flags(model: str, *, port: int, seed: int, on_cpu: bool) -> tuple[str, ...]:
    """Flags of `sglang.launch_server`."""
    return (
        *("--model-path", model, "--host", "127.0.0.1", "--port", str(port), "--random-seed", str(seed)),
        *("--log-level-http", "warning", "--decode-log-interval", "1000"),
        *(CPU_FLAGS if on_cpu else GPU_FLAGS),
    )


def server_environment(environment: Mapping[str, str], model: str, *, on_cpu: bool) -> dict[str, str]:
    """Environment variables of the server: the given ones, no proxy for 127.0.0.1, and on a CPU those of the shims."""
    variables = {**GRPC_PORT, **environment, **no_proxy_for_loopback(environment)}
    if Path(model).is_dir():
        variables["HF_HUB_OFFLINE"] = "1"
    return {**variables, **cpu_engine_variables(environment)} if on_cpu else variables


def no_proxy_for_loopback(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variables with which a program reaches servers on 127.0.0.1 directly, even if a proxy is set."""
    no_proxy = ",".join(filter(None, [environment.get("NO_PROXY", environment.get("no_proxy", "")), "127.0.0.1"]))
    return {"NO_PROXY": no_proxy, "no_proxy": no_proxy}


def end_process_group(process: "subprocess.Popen[bytes]", grace_seconds: float = 10.0) -> None:
    """End the process group that `process` leads: SIGTERM, and SIGKILL for processes that outlive the grace time.

    The leader is reaped last, because until then no other process group can get its id.
    """
    os.killpg(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while not _has_exited(process) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def await_ready(
    process: "subprocess.Popen[bytes]", url: str, model: str, log: Path, start_seconds: float, console: Console
) -> None:
    """Wait until a server answers, and show the time that has passed.

    Raises:
        EngineError: If the server does not start. The message names the log file and quotes its end.
    """
    begin = time.monotonic()
    with console.status("") as status, httpx.Client(timeout=5.0, trust_env=False) as client:
        while not _is_ready(client, url):
            seconds = time.monotonic() - begin
            status.update(Text(f"starting SGLang for {model}: {seconds:.0f} s (log: {log})"))
            if _has_exited(process):
                raise EngineError(f"SGLang for {model} exited while starting; its log {log} ends with:\n{_tail(log)}")
            if seconds > start_seconds:
                raise EngineError(
                    f"SGLang for {model} did not answer within {start_seconds:.0f} s; its log {log} ends "
                    f"with:\n{_tail(log)}"
                )
            time.sleep(0.5)


def _is_ready(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


def _has_exited(process: "subprocess.Popen[bytes]") -> bool:
    """Whether a process has ended, without reaping it as `poll` would."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _tail(log: Path, num_lines: int = 15) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-num_lines:])


def free_port() -> int:
    """A port of this machine on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
